"""One try of a batch's transaction: how far it came decides what may follow an error."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnlog_spark.commit.plan import CommitPlan, Progress
from txnlog_spark.commit.progress import progress_after, progress_offset
from txnlog_spark.protocol.calls import TRANSACTION, find_coordinator
from txnlog_spark.protocol.effects import Operation, Reached
from txnlog_spark.protocol.metadata import transaction_version
from txnlog_spark.protocol.offsets import CommittedOffset
from txnlog_spark.protocol.produce import Produced
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.transaction import (
    Transaction,
    add_offsets,
    commit_all_offsets,
)
from txnlog_spark.protocol.values import ProducerIdentity
from txnlog_spark.wire.invariants import check
from txnlog_spark.wire.topics import TopicPartition


@dataclass(slots=True)
class CommitAttempt:
    """One try of the whole batch. `identity` is what it begins with."""

    plan: CommitPlan
    identity: ProducerIdentity | None
    number: int
    transaction: Transaction | None = None
    began_ms: int = 0
    commit_sent: bool = False
    """EndTxn(commit) may have left: from here on nothing is aborted."""
    produced: Produced = field(default_factory=Produced)
    missing_sources: frozenset[TopicPartition] = frozenset()


def begin_transaction(
    session: Session, attempt: CommitAttempt, identity: ProducerIdentity
) -> Operation[Transaction]:
    """A transaction of `identity`; nothing is sent but, once, a question for its version."""
    version = identity.transaction_version
    if not version:
        deadline = session.deadline()
        key = identity.transactional_id
        node = yield from find_coordinator(session, TRANSACTION, key, deadline=deadline)
        version = yield from transaction_version(session, node, deadline=deadline)
    transaction = Transaction(
        identity.transactional_id,
        identity.producer_id,
        identity.producer_epoch,
        version,
        sequences=dict(identity.sequences),
    )
    attempt.transaction = transaction
    attempt.began_ms = session.monotonic_ms()
    return transaction


def add_batch_offsets(
    session: Session, attempt: CommitAttempt, transaction: Transaction
) -> Operation[None]:
    """S7 and S8: the source group's offsets and the progress become part of the transaction."""
    plan = attempt.plan
    groups = {}
    if plan.group_id is not None and plan.source_offsets:
        check(plan.group_id != plan.progress_group_id, "progress has a group of its own")
        ends = {p: CommittedOffset(end, "") for p, end in plan.source_offsets.items()}
        groups[plan.group_id] = ends
    groups[plan.progress_group_id] = _placed(plan, progress_after(plan))
    yield Reached("S7", "before", plan.batch_id)
    if transaction.version < 2:
        for group_id in groups:
            yield from add_offsets(session, transaction, group_id)
    yield Reached("S7", "after", plan.batch_id)
    yield Reached("S8", "before", plan.batch_id)
    attempt.missing_sources = yield from commit_all_offsets(
        session, transaction, groups, may_be_gone=plan.group_id
    )
    yield Reached("S8", "after", plan.batch_id)


def add_progress(
    session: Session, plan: CommitPlan, transaction: Transaction, progress: Progress
) -> Operation[None]:
    """The progress alone becomes part of the transaction."""
    groups = {plan.progress_group_id: _placed(plan, progress)}
    if transaction.version < 2:
        yield from add_offsets(session, transaction, plan.progress_group_id)
    yield from commit_all_offsets(session, transaction, groups, may_be_gone=None)


def _placed(plan: CommitPlan, progress: Progress) -> dict[TopicPartition, CommittedOffset]:
    return {plan.progress_partition: progress_offset(progress)}
