"""One try of a batch's transaction: how far it came decides what may follow an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from txnlog_kafka.operations.effects import Milestone, Operation
from txnlog_kafka.operations.offsets import CommittedOffset
from txnlog_kafka.operations.produce import Produced
from txnlog_kafka.operations.producer import ProducerIdentity, StagedPartition
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.operations.transaction import (
    OffsetsCommitted,
    Transaction,
    add_to_transaction,
    commit_all_offsets,
)
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.plan import Evidence, LocatedPlan, Progress
from txnlog_spark.commit.progress import progress_after, progress_offset
from txnlog_spark.group_note import GroupNote, format_note
from txnlog_spark.offsets import positions_digest

Groups = dict[str, dict[TopicPartition, CommittedOffset]]


@dataclass(slots=True)
class TransactionTry:
    """One try of the whole batch."""

    plan: LocatedPlan
    number: int = 1
    judged: Evidence | None = None
    """What the batch was judged by, once it is to be done."""
    staged: Sequence[StagedPartition] = ()
    """What it has to produce then."""
    transaction: Transaction | None = None
    began_ms: int = 0
    commit_sent: bool = False
    """EndTxn(commit) may have left: from here on nothing is aborted."""
    produced: Produced = field(default_factory=Produced)
    missing_sources: frozenset[TopicPartition] = frozenset()


def begin_transaction(
    session: Session, attempt: TransactionTry, identity: ProducerIdentity
) -> Transaction:
    """A transaction of `identity`; nothing is sent."""
    attempt.transaction = Transaction(
        identity.transactional_id,
        identity.producer_id,
        identity.producer_epoch,
        attempt.plan.version,
    )
    attempt.began_ms = session.monotonic_ms()
    return attempt.transaction


def offsets_of(plan: LocatedPlan, judged: Evidence | None) -> Groups:
    """Return what the batch's transaction commits: offsets of the source group, and the progress.

    Offsets that stand where the batch ends are left out, but for the first of each source, which
    has the source's note beside it.
    """
    groups: Groups = {}
    if plan.group_id is not None:
        check(plan.group_id != plan.committer.progress_group_id, "progress has a group of its own")
        ends, notes = plan.batch.source_offsets, _notes(plan, judged)
        stand = {} if judged is None else judged.group
        groups[plan.group_id] = {
            p: CommittedOffset(end, notes.get(p, ""))
            for p, end in ends.items()
            if p in notes or stand.get(p) != end
        }
    groups[plan.committer.progress_group_id] = _placed(plan, progress_after(plan))
    return groups


def _notes(plan: LocatedPlan, judged: Evidence | None) -> dict[TopicPartition, str]:
    """Return the text beside the first partition of each source (`GroupNote`).

    Rows are needed again by the state of a query, and by a function of foreachBatch, whose other
    work the commit does not know.
    """
    committer, batch = plan.committer, plan.batch
    are_needed = committer.leaves_out_batches or judged is None or judged.has_state
    notes = {}
    for source in batch.sources:
        positions = positions_digest(source.offsets)
        source_id = "" if are_needed else source.source_id
        query_id = committer.output.query_id
        note = GroupNote(query_id, batch.batch_id, positions, source_id)
        notes[min(source.offsets)] = format_note(note)
    return notes


def add_groups(
    session: Session,
    attempt: TransactionTry,
    transaction: Transaction,
    partitions: Sequence[TopicPartition] = (),
) -> Operation[None]:
    """AddOffsetsToTxn of each group, at the same time AddPartitionsToTxn, on transaction version 1;
    on version 2 nothing is asked."""
    batch_id = attempt.plan.batch.batch_id
    yield Milestone("add_offsets", "before", batch_id)
    if transaction.version < 2:
        groups = offsets_of(attempt.plan, attempt.judged)
        yield from add_to_transaction(session, transaction, partitions, groups)
    yield Milestone("add_offsets", "after", batch_id)


def commit_batch_offsets(
    session: Session,
    attempt: TransactionTry,
    transaction: Transaction,
    *,
    deadline: Deadline | None = None,
) -> Operation[OffsetsCommitted]:
    """TxnOffsetCommit: the source group's offsets and the progress join the transaction."""
    plan = attempt.plan
    yield Milestone("txn_offset_commit", "before", plan.batch.batch_id)
    done = yield from commit_all_offsets(
        session,
        transaction,
        offsets_of(plan, attempt.judged),
        may_be_gone=plan.group_id,
        deadline=deadline,
    )
    attempt.missing_sources = done.missing
    yield Milestone("txn_offset_commit", "after", plan.batch.batch_id)
    return done


def add_progress(
    session: Session, plan: LocatedPlan, transaction: Transaction, progress: Progress
) -> Operation[None]:
    """The progress alone becomes part of the transaction."""
    group_id = plan.committer.progress_group_id
    if transaction.version < 2:
        yield from add_to_transaction(session, transaction, (), [group_id])
    groups = {group_id: _placed(plan, progress)}
    yield from commit_all_offsets(session, transaction, groups, may_be_gone=None)


def _placed(plan: LocatedPlan, progress: Progress) -> dict[TopicPartition, CommittedOffset]:
    return {plan.place: progress_offset(progress)}
