"""Signatures first; see the commit that follows. Plain functions over a Client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from txnlog_spark.client.driver import Client
from txnlog_spark.protocol.values import (
    CommitOutcome,
    CommitPlan,
    Partition,
    ProducerIdentity,
    Progress,
)

EARLIEST = -2
LATEST = -1


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """An offset that ListOffsets found, and its record's timestamp (-1 for a special spec)."""

    offset: int
    timestamp_ms: int


def topic_partitions(
    client: Client, topics: Iterable[str] | None, *, allow_auto_create: bool = False
) -> dict[str, tuple[int, ...]]:
    """Partition numbers by topic; None asks for all topics, internal ones left out.

    Raises UnknownTopic naming every topic that is missing.
    """
    raise NotImplementedError


def list_offsets(
    client: Client, specs: Mapping[Partition, int], *, read_committed: bool
) -> dict[Partition, OffsetAndTimestamp]:
    """Per partition: EARLIEST, LATEST (the LSO under read_committed) or a timestamp in ms.

    For a timestamp the offset is -1 when no record is that new. Raises UnknownTopic.
    """
    raise NotImplementedError


def committed_offsets(
    client: Client, group_id: str, *, require_stable: bool = True
) -> dict[Partition, int]:
    """All committed offsets of a group; empty for an unknown one."""
    raise NotImplementedError


def commit_offsets(client: Client, group_id: str, offsets: Mapping[Partition, int]) -> None:
    """A plain OffsetCommit outside any transaction and any group membership."""
    raise NotImplementedError


def create_topic(
    client: Client,
    topic: str,
    *,
    partitions: int,
    replication_factor: int = -1,
    config: Mapping[str, str] | None = None,
    exists_ok: bool = False,
) -> None:
    """Create a topic and wait until it has leaders."""
    raise NotImplementedError


def delete_topic(client: Client, topic: str, *, missing_ok: bool = False) -> None:
    """Delete a topic."""
    raise NotImplementedError


def delete_group(client: Client, group_id: str, *, missing_ok: bool = False) -> None:
    """Delete a group and all its offsets."""
    raise NotImplementedError


def fetch_progress(client: Client, progress_group_id: str, query_id: str) -> Progress | None:
    """The query's stable progress, None when there is none."""
    raise NotImplementedError


def ensure_baseline_progress(client: Client, plan: CommitPlan) -> Progress:
    """The query's stable progress; when there is none, commit `plan.batch_id` as the baseline."""
    raise NotImplementedError


def commit_micro_batch(
    client: Client, identity: ProducerIdentity | None, plan: CommitPlan
) -> CommitOutcome:
    """Run the micro-batch commit (DESIGN section 3). None initialises the producer anew."""
    raise NotImplementedError
