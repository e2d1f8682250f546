"""The commit of one micro-batch. Signatures first; see the commit that follows."""

from __future__ import annotations

from txnlog_spark.protocol.effects import Operation
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.values import (
    CommitOutcome,
    CommitPlan,
    Partition,
    ProducerIdentity,
    Progress,
    StagedPartition,
)

__all__ = [
    "CommitOutcome",
    "CommitPlan",
    "Partition",
    "ProducerIdentity",
    "Progress",
    "StagedPartition",
    "commit_micro_batch",
]


def commit_micro_batch(
    session: Session, identity: ProducerIdentity | None, plan: CommitPlan
) -> Operation[CommitOutcome]:
    """Commit the batch once and only once; see the module."""
    raise NotImplementedError
