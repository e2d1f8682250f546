"""The commit of one micro-batch: the heart of exactly-once (DESIGN section 3).

Theory of operation, with the steps' names of the failpoints:

    S1  find the transaction coordinator
    S2  InitProducerId, unless the identity is still good: fences, and ends what was open
    S3  read the query's progress with require_stable; if it has this batch, stop here: skipped;
        the group must still stand where the query started, or where its batch before left it
    S4  AddPartitionsToTxn (transaction version 1; implicit on version 2)
    S5  Produce the staged batches, pipelined; S5.first, S5.middle, S5.last are inside it
    S7  AddOffsetsToTxn (version 1; implicit on version 2)
    S8  TxnOffsetCommit: the source group's offsets, and the progress
    S9  EndTxn(commit) is sent
    S11 its answer has arrived ("before" it is acted on, "after" the outcome is returned)

The broker's state decides, never ours: a batch counts as committed when the progress says so or
EndTxn(commit) was answered with success, and as not committed when the progress says so after an
InitProducerId. An error before S9 aborts; from S9 on nothing is ever aborted.

What is not here: S0, S6, S14, S15 (Spark's and the connector's), S10, S12, S13 (the broker's).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

from txnlog_spark.errors import (
    AbortableError,
    ProducerFenced,
    TxnLogError,
    UnknownTopic,
    check,
)
from txnlog_spark.protocol.calls import TRANSACTION, find_coordinator
from txnlog_spark.protocol.cluster import refresh_metadata, require_leaders, transaction_version
from txnlog_spark.protocol.effects import Ask, Operation, Outcome, Reached
from txnlog_spark.protocol.offsets import CommittedOffset, fetch_committed
from txnlog_spark.protocol.produce import Produced, produce_staged
from txnlog_spark.protocol.progress import (
    check_expected,
    check_previous,
    check_progress_topic,
    decide_batch,
    fetch_progress,
    needs_group_offsets,
    needs_previous_offsets,
    progress_after,
    progress_is_missing,
    progress_offset,
)
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.transaction import (
    Transaction,
    abort_transaction,
    add_offsets,
    add_partitions,
    commit_group_offsets,
    commit_source_offsets,
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
            identity = yield from _give_up(session, attempt, error)
            redo = isinstance(error, AbortableError) and number < plan.attempts_max
            if identity is None or not redo:
                raise
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
    identity = yield from _initialise(session, attempt)
    yield Reached("S3", "before", plan.batch_id)
    partitions = {plan.progress_partition, identity.progress_partition or plan.progress_partition}
    found = yield from fetch_progress(
        session, plan.progress_group_id, plan.query_id, partitions=partitions
    )
    group_offsets = None
    if plan.group_id is not None and needs_group_offsets(plan, found):
        committed = yield from fetch_committed(
            session, plan.group_id, partitions=plan.source_offsets
        )
        group_offsets = {p: c.committed_offset for p, c in committed.items()}
    if progress_is_missing(plan, found):
        yield from check_progress_topic(session, plan)
    skip = decide_batch(plan, found, group_offsets)
    if not skip:
        yield from _check_start(session, plan)
        if needs_previous_offsets(plan, found, identity):
            group_id = plan.group_id or ""
            stand = yield from fetch_committed(session, group_id, partitions=plan.previous_offsets)
            check_previous(plan, {p: c.committed_offset for p, c in stand.items()})
    yield Reached("S3", "after", plan.batch_id)
    if skip:
        check(found is not None, "a skipped batch has progress")
        return CommitOutcome(identity, True, found or progress_after(plan), attempts=attempt.number)
    transaction = yield from _begin(session, attempt, identity)
    yield from _write(session, attempt, transaction)
    return (yield from _commit(session, attempt, transaction))


def _check_start(session: Session, plan: CommitPlan) -> Operation[None]:
    """Compare the offsets that the query started from with the group's, asked for by name."""
    for expected in plan.expected:
        committed = yield from fetch_committed(
            session, expected.group_id, partitions=expected.committed
        )
        check_expected(plan, expected, {p: c.committed_offset for p, c in committed.items()})


def _initialise(session: Session, attempt: _Attempt) -> Operation[ProducerIdentity]:
    """S1 and S2."""
    plan = attempt.plan
    yield Reached("S1", "before", plan.batch_id)
    if not session.cluster.nodes:
        yield from refresh_metadata(session, ())
    yield from find_coordinator(
        session, TRANSACTION, plan.transactional_id, deadline=session.deadline()
    )
    yield Reached("S1", "after", plan.batch_id)
    if attempt.identity is not None and attempt.identity.initialised:
        return attempt.identity
    yield Reached("S2", "before", plan.batch_id)
    identity = yield from init_producer_id(
        session, plan.transactional_id, plan.transaction_timeout_ms, current=attempt.identity
    )
    yield Reached("S2", "after", plan.batch_id)
    if plan.confirm_holder is not None:
        plan.confirm_holder()
    return identity


def _begin(
    session: Session, attempt: _Attempt, identity: ProducerIdentity
) -> Operation[Transaction]:
    deadline = session.deadline()
    node = yield from find_coordinator(
        session, TRANSACTION, identity.transactional_id, deadline=deadline
    )
    version = yield from transaction_version(session, node, deadline=deadline)
    transaction = Transaction(
        identity.transactional_id,
        identity.producer_id,
        identity.producer_epoch,
        version,
        sequences=dict(identity.sequences),
    )
    attempt.transaction = transaction
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
    groups = _group_offsets(plan)
    yield Reached("S7", "before", plan.batch_id)
    if transaction.version < 2:
        for group_id, _ in groups:
            yield from add_offsets(session, transaction, group_id)
    yield Reached("S7", "after", plan.batch_id)
    yield Reached("S8", "before", plan.batch_id)
    for group_id, offsets in groups:
        if group_id == plan.progress_group_id:
            yield from commit_group_offsets(session, transaction, group_id, offsets)
        else:
            attempt.missing_sources = yield from commit_source_offsets(
                session, transaction, group_id, offsets
            )
    yield Reached("S8", "after", plan.batch_id)


def _require_progress_topic(session: Session, plan: CommitPlan) -> Operation[None]:
    """Creates it for a query's first transaction only: in a new one there is no progress."""
    try:
        yield from require_leaders(
            session, [plan.progress_partition], allow_auto_create=not plan.must_exist
        )
    except UnknownTopic:
        yield from check_progress_topic(session, plan)
        raise


def _group_offsets(plan: CommitPlan) -> list[tuple[str, dict[Partition, CommittedOffset]]]:
    """The offsets to commit, per group: the sources', then the progress."""
    progress = {plan.progress_partition: progress_offset(progress_after(plan))}
    groups = [(plan.progress_group_id, progress)]
    if plan.group_id is not None and plan.source_offsets:
        sources = {p: CommittedOffset(end, "") for p, end in plan.source_offsets.items()}
        check(plan.group_id != plan.progress_group_id, "progress has a group of its own")
        groups.insert(0, (plan.group_id, sources))
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
            identity, progress_partition=plan.progress_partition, last_batch_id=plan.batch_id
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


def spent(identity: ProducerIdentity) -> ProducerIdentity:
    """The identity as it has to be used after an exception in the same run."""
    return replace(identity, initialised=False, sequences={}, last_batch_id=None)
