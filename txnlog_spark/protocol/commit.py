"""The commit of one micro-batch: the heart of exactly-once.

Theory of operation, with the steps' names of the failpoints:

    S1  find the transaction coordinator; a driver that did not commit the batch before looks at the
        progress that is visible: if it has this batch, stop here: skipped, and nobody is fenced
    S2  InitProducerId, unless the identity is still good: fences, and ends what was open
    S3  read the query's progress with require_stable and judge: skip, do, or refuse; the group must
        still stand where the query started, or where its batch before left it. The driver that
        committed the batch before asks nothing: nobody can have come between without fencing it.
        Before a query's first transaction its progress is made to exist, in a transaction of its
        own (the baseline), so that a driver which was overtaken cannot set progress back; then the
        journal notes that the batch is begun
    S4  AddPartitionsToTxn (transaction version 1; implicit on version 2)
    S5  Produce the staged batches, pipelined; S5.first, S5.middle, S5.last are inside it
    S7  AddOffsetsToTxn (version 1; implicit on version 2)
    S8  TxnOffsetCommit: the source group's offsets and the progress, both at once
    S9  EndTxn(commit) is sent
    S11 its answer has arrived ("before" it is acted on, "after" the outcome is returned)

The broker's state decides, never ours: a batch counts as committed when the progress says so or
EndTxn(commit) was answered with success, and as not committed when the progress says so after an
InitProducerId, or when the journal says that no transaction of it was begun. An error before S9
aborts; from S9 on nothing is ever aborted.

What is not here: S0, S6, S14, S15 (Spark's and the connector's), S10, S12, S13 (the broker's).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace

from txnlog_spark.errors import AbortableError, ProducerFenced, TxnLogError, UnknownTopic
from txnlog_spark.protocol.calls import TRANSACTION, find_coordinator
from txnlog_spark.protocol.cluster import refresh_metadata, require_leaders, transaction_version
from txnlog_spark.protocol.effects import Ask, Operation, Outcome, Reached
from txnlog_spark.protocol.offsets import CommittedOffset, fetch_committed
from txnlog_spark.protocol.produce import Produced, produce_staged, staged_totals
from txnlog_spark.protocol.progress import (
    baseline_of,
    check_previous,
    check_progress_topic,
    decide_batch,
    fetch_progress,
    needs_group_offsets,
    needs_previous_offsets,
    newest_progress,
    progress_after,
    progress_is_missing,
    progress_offset,
)
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.start import check_start
from txnlog_spark.protocol.timeout import is_timeout, timeout_error
from txnlog_spark.protocol.transaction import (
    Transaction,
    abort_transaction,
    add_offsets,
    add_partitions,
    commit_all_offsets,
    commit_group_offsets,
    commit_transaction,
    init_producer_id,
)
from txnlog_spark.protocol.values import (
    CommitOutcome,
    CommitPlan,
    Partition,
    ProducerIdentity,
    Progress,
    StagedPartition,
)
from txnlog_spark.wire.invariants import check

__all__ = [
    "CommitOutcome",
    "CommitPlan",
    "Partition",
    "ProducerIdentity",
    "Progress",
    "StagedPartition",
    "commit_micro_batch",
]

STEPS = ("S1", "S2", "S3", "S4", "S5", "S5.first", "S5.middle", "S5.last", "S7", "S8", "S9", "S11")
"""The failpoints that this operation reaches, in their order."""


@dataclass(slots=True)
class _Attempt:
    """One try of the whole batch. `identity` is what the next try or batch has to use."""

    plan: CommitPlan
    identity: ProducerIdentity | None
    number: int
    transaction: Transaction | None = None
    began_ms: int = 0
    commit_sent: bool = False
    produced: Produced = field(default_factory=Produced)
    missing_sources: frozenset[Partition] = frozenset()


def commit_micro_batch(
    session: Session, identity: ProducerIdentity | None, plan: CommitPlan
) -> Operation[CommitOutcome]:
    """Commit the batch once and only once, or find that it is committed.

    `identity` is the last outcome's of this query run; None takes the transactional id over from
    whoever had it. After any exception the identity is spent: go on with None, or with
    `replace(identity, initialised=False)` inside the same run.

    Raises ProducerFenced (another driver has the transactional id: write nothing), AbortableError
    (after `attempts_max` tries), RecordRefused, UnknownTopic and other FatalErrors (the batch is
    aborted), ProgressError (a person must look), CommitStateUnknown (only asking again after a new
    InitProducerId tells), StagedBatchesInvalid, DeadlineExceeded, RemoteProtocolError.
    """
    check(plan.batch_id >= -1, "batch ids start at 0, -1 is the baseline", batch_id=plan.batch_id)
    check(
        identity is None or identity.transactional_id == plan.transactional_id,
        "an identity belongs to its transactional id",
        plan=plan.transactional_id,
    )
    number = 1
    while True:
        attempt = _Attempt(plan, identity, number)
        try:
            return (yield from _try(session, attempt))
        except TxnLogError as error:
            failure: TxnLogError = error
        elapsed_ms = session.monotonic_ms() - attempt.began_ms
        try:
            identity = yield from _give_up(session, attempt, failure)
        except ProducerFenced as fenced:
            identity, failure = None, fenced
        if attempt.transaction is not None and is_timeout(plan, failure, elapsed_ms):
            done_bytes = attempt.produced.bytes
            raise (yield from timeout_error(session, plan, elapsed_ms, done_bytes)) from failure
        redo = isinstance(failure, AbortableError) and number < plan.attempts_max
        if identity is None or not redo:
            raise failure
        number += 1


def _give_up(
    session: Session, attempt: _Attempt, error: TxnLogError
) -> Operation[ProducerIdentity | None]:
    """Abort what was begun, if that is allowed; the identity for another try, or None."""
    transaction = attempt.transaction
    if transaction is None or attempt.commit_sent or isinstance(error, ProducerFenced):
        return None
    if not transaction.begun:
        return transaction.identity(initialised=False)
    return (yield from abort_transaction(session, transaction))


def _try(session: Session, attempt: _Attempt) -> Operation[CommitOutcome]:
    plan = attempt.plan
    yield Reached("S1", "before", plan.batch_id)
    if not session.cluster.nodes:
        yield from refresh_metadata(session, ())
    identity = attempt.identity
    yield from find_coordinator(
        session, TRANSACTION, plan.transactional_id, deadline=session.deadline()
    )
    follows = goes_on(identity, plan)
    visible = None if follows else (yield from _visible_progress(session, plan))
    yield Reached("S1", "after", plan.batch_id)
    if visible is not None and visible.next_batch_id > plan.batch_id:
        return (yield from _skip(session, attempt, visible))
    identity = yield from _initialise(session, attempt)
    if follows:
        yield Reached("S3", "before", plan.batch_id)
    else:
        judged = yield from _judge(session, attempt, identity)
        if isinstance(judged, CommitOutcome):
            return judged
        identity = judged
    if plan.journal is not None:
        plan.journal.begin()
    yield Reached("S3", "after", plan.batch_id)
    transaction = yield from _begin(session, attempt, identity)
    yield from _write(session, attempt, transaction)
    return (yield from _commit(session, attempt, transaction))


def goes_on(identity: ProducerIdentity | None, plan: CommitPlan) -> bool:
    """Whether this very producer committed the batch before: there is nothing to ask then."""
    return (
        identity is not None
        and identity.initialised
        and plan.is_stream
        and identity.last_batch_id == plan.batch_id - 1
    )


def _visible_progress(session: Session, plan: CommitPlan) -> Operation[Progress | None]:
    """The progress that anybody sees, without waiting for what is undecided.

    It may be old, and never too new: what is visible is committed, and progress does not go back.
    So it can tell that a batch is done, before anybody is fenced, and nothing else.
    """
    committed = yield from fetch_committed(session, plan.progress_group_id, require_stable=False)
    return newest_progress(plan.query_id, committed.values())


def _skip(
    session: Session,
    attempt: _Attempt,
    found: Progress,
    identity: ProducerIdentity | None = None,
) -> Operation[CommitOutcome]:
    """The outcome of a batch that is committed. Raises BatchReplanned if it is another one."""
    plan = attempt.plan
    group_offsets = None
    if needs_group_offsets(plan, found):
        group_offsets = yield from _group_offsets(session, plan.group_id, plan.source_offsets)
    check(decide_batch(plan, found, group_offsets), "a batch that is to be done was skipped")
    return CommitOutcome(identity, True, found, attempts=attempt.number)


def _judge(
    session: Session, attempt: _Attempt, identity: ProducerIdentity
) -> Operation[ProducerIdentity | CommitOutcome]:
    """S3 after a takeover: the outcome of a skipped batch, else the identity to commit it with."""
    plan = attempt.plan
    yield Reached("S3", "before", plan.batch_id)
    partitions = {plan.progress_partition, identity.progress_partition or plan.progress_partition}
    found = yield from fetch_progress(
        session, plan.progress_group_id, plan.query_id, partitions=partitions
    )
    if progress_is_missing(plan, found):
        yield from check_progress_topic(session, plan)
    if found is not None and found.next_batch_id > plan.batch_id:
        outcome = yield from _skip(session, attempt, found, identity)
        yield Reached("S3", "after", plan.batch_id)
        return outcome
    check(not decide_batch(plan, found), "a batch to be skipped has progress beyond it")
    yield from check_start(session, plan, found)
    if needs_previous_offsets(plan, found, identity):
        stand = yield from _group_offsets(session, plan.group_id, plan.previous_offsets)
        check_previous(plan, stand)
    if found is None and plan.journal is not None:
        return (yield from _commit_baseline(session, attempt, identity))
    return identity


def _group_offsets(
    session: Session, group_id: str | None, partitions: Iterable[Partition]
) -> Operation[dict[Partition, int]]:
    check(group_id is not None, "offsets are asked of a group")
    committed = yield from fetch_committed(session, group_id or "", partitions=partitions)
    return {p: c.committed_offset for p, c in committed.items()}


def _initialise(session: Session, attempt: _Attempt) -> Operation[ProducerIdentity]:
    """S2: the identity as it is while it is good, else a new epoch, which fences all others."""
    plan = attempt.plan
    if attempt.identity is not None and attempt.identity.initialised:
        return attempt.identity
    yield Reached("S2", "before", plan.batch_id)
    if plan.previous_transactional_id is not None:
        yield from _leave_previous_id(session, plan, plan.previous_transactional_id)
    identity = yield from init_producer_id(
        session, plan.transactional_id, plan.transaction_timeout_ms, current=attempt.identity
    )
    yield Reached("S2", "after", plan.batch_id)
    if plan.journal is not None:
        plan.journal.confirm_holder()
    return identity


def _leave_previous_id(
    session: Session, plan: CommitPlan, transactional_id: str
) -> Operation[None]:
    """The query's option or group was changed: nobody may commit under the old id any more.

    InitProducerId with the new id does not fence a driver that holds the old one. Fence the old id,
    record the new one, fence again: the second fence stops a driver that initialised the old id
    between the two; later ones see the record (`Journal.confirm_holder`).
    """
    timeout_ms = plan.transaction_timeout_ms
    yield from init_producer_id(session, transactional_id, timeout_ms)
    if plan.journal is not None:
        plan.journal.take_over()
    yield from init_producer_id(session, transactional_id, timeout_ms)
    session.notice(
        f"query {plan.query_id} goes on with transactional id {plan.transactional_id}; "
        f"{transactional_id} was fenced"
    )


def _commit_baseline(
    session: Session, attempt: _Attempt, identity: ProducerIdentity
) -> Operation[ProducerIdentity]:
    """Make the query's progress exist: all batches before this one, which Spark says are done."""
    plan = attempt.plan
    transaction = yield from _begin(session, attempt, identity)
    yield from _require_progress_topic(session, plan)
    if transaction.version < 2:
        yield from add_offsets(session, transaction, plan.progress_group_id)
    progress = {plan.progress_partition: progress_offset(baseline_of(plan))}
    yield from commit_group_offsets(session, transaction, plan.progress_group_id, progress)
    attempt.commit_sent = True
    following = yield from commit_transaction(session, transaction, batch_id=plan.batch_id - 1)
    attempt.transaction, attempt.commit_sent = None, False
    if not following.initialised:
        following = yield from init_producer_id(
            session, plan.transactional_id, plan.transaction_timeout_ms, current=following
        )
    return replace(following, transaction_version=transaction.version)


def _begin(
    session: Session, attempt: _Attempt, identity: ProducerIdentity
) -> Operation[Transaction]:
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


def _write(
    session: Session, attempt: _Attempt, transaction: Transaction
) -> Generator[Ask, Outcome, None]:
    """S4 to S8: everything that belongs to the transaction."""
    plan = attempt.plan
    partitions = sorted({(part.topic, part.partition) for part in plan.staged})
    yield from require_leaders(session, partitions, allow_auto_create=True)
    yield from _require_progress_topic(session, plan)
    yield Reached("S4", "before", plan.batch_id)
    if transaction.version < 2 and partitions:
        yield from add_partitions(session, transaction, partitions)
    yield Reached("S4", "after", plan.batch_id)
    yield Reached("S5", "before", plan.batch_id)
    yield from produce_staged(session, transaction, plan, attempt.produced)
    yield Reached("S5", "after", plan.batch_id)
    _check_all_produced(plan, attempt.produced)
    groups = _offsets_to_commit(plan)
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


def _check_all_produced(plan: CommitPlan, produced: Produced) -> None:
    """Two sums that a slip in queues, rounds or sequences could not both keep: else no EndTxn."""
    staged = staged_totals(plan.staged)
    known = all(part.record_count for part in plan.staged)
    check(
        produced.bytes == staged.bytes and (not known or produced.records == staged.records),
        "what was acknowledged is not what was staged",
        produced=(produced.records, produced.bytes),
        staged=(staged.records, staged.bytes),
    )


def _require_progress_topic(session: Session, plan: CommitPlan) -> Operation[None]:
    """Creates it for a query's first transaction only: in a new one there is no progress."""
    try:
        yield from require_leaders(
            session, [plan.progress_partition], allow_auto_create=not plan.must_exist
        )
    except UnknownTopic:
        yield from check_progress_topic(session, plan)
        raise


def _offsets_to_commit(plan: CommitPlan) -> dict[str, dict[Partition, CommittedOffset]]:
    """The offsets to commit, per group: the sources', then the progress."""
    groups = {}
    if plan.group_id is not None and plan.source_offsets:
        check(plan.group_id != plan.progress_group_id, "progress has a group of its own")
        groups[plan.group_id] = {
            p: CommittedOffset(end, "") for p, end in plan.source_offsets.items()
        }
    groups[plan.progress_group_id] = {
        plan.progress_partition: progress_offset(progress_after(plan))
    }
    return groups


def _commit(
    session: Session, attempt: _Attempt, transaction: Transaction
) -> Operation[CommitOutcome]:
    """S9 to S11. From the first EndTxn(commit) on, no error leads to an abort."""
    plan = attempt.plan
    yield Reached("S9", "before", plan.batch_id)
    attempt.commit_sent = True
    identity = yield from commit_transaction(session, transaction, batch_id=plan.batch_id)
    yield Reached("S9", "after", plan.batch_id)
    yield Reached("S11", "before", plan.batch_id)
    outcome = CommitOutcome(
        identity=replace(
            identity,
            progress_partition=plan.progress_partition,
            last_batch_id=plan.batch_id,
            transaction_version=transaction.version,
        ),
        skipped=False,
        progress=progress_after(plan),
        produced_records=attempt.produced.records,
        produced_bytes=attempt.produced.bytes,
        produced_partitions=len(attempt.produced.partitions),
        transaction_version=transaction.version,
        attempts=attempt.number,
        missing_sources=attempt.missing_sources,
    )
    yield Reached("S11", "after", plan.batch_id)
    return outcome
