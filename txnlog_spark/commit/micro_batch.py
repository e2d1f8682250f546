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
    S8  TxnOffsetCommit: the source group's offsets and the progress, both at once. Whoever did not
        commit the batch before now reads again what S3 judged by (`confirmation`): a former
        coordinator may have answered
    S9  EndTxn(commit) is sent
    S11 its answer has arrived ("before" it is acted on, "after" the outcome is returned)

The broker's state decides, never ours: a batch counts as committed when the progress says so or
EndTxn(commit) was answered with success, and as not committed when the progress says so after an
InitProducerId, or when the journal says that no transaction of it was begun. An error before S9
aborts; from S9 on nothing is ever aborted.

What is not here: S0, S6, S14, S15 (Spark's and the connector's), S10, S12, S13 (the broker's).
"""

from __future__ import annotations

from dataclasses import replace

from txnlog_spark.commit.attempt import CommitAttempt, add_batch_offsets, begin_transaction
from txnlog_spark.commit.confirmation import confirm, judge_for_certain
from txnlog_spark.commit.facts import facts_about, stable_progress, visible_progress
from txnlog_spark.commit.judgement import Facts, Verdict, is_committed, judge
from txnlog_spark.commit.plan import CommitOutcome, CommitPlan, Progress
from txnlog_spark.commit.progress import baseline_of, progress_after
from txnlog_spark.commit.takeover import commit_baseline, initialise, require_progress_topic
from txnlog_spark.commit.timeout import is_timeout, timeout_error
from txnlog_spark.errors import AbortableError, ProducerFenced, TxnLogError
from txnlog_spark.protocol.calls import TRANSACTION, find_coordinator
from txnlog_spark.protocol.effects import Operation, Reached, Sleep
from txnlog_spark.protocol.metadata import refresh_metadata, require_leaders
from txnlog_spark.protocol.produce import Produced, produce_staged, staged_totals
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.transaction import (
    Transaction,
    abort_transaction,
    add_partitions,
    commit_transaction,
)
from txnlog_spark.protocol.values import ProducerIdentity
from txnlog_spark.wire.invariants import check, present
from txnlog_spark.wire.topics import TopicPartition

STEPS = ("S1", "S2", "S3", "S4", "S5", "S5.first", "S5.middle", "S5.last", "S7", "S8", "S9", "S11")
"""The failpoints that this operation reaches, in their order."""
MARKERS_POLL_MS, MARKERS_WAIT_MS = 20, 3_000
"""Between EndTxn and the last marker a few milliseconds pass, unless a leader is away."""


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
        attempt = CommitAttempt(plan, identity, number)
        try:
            return (yield from _try(session, attempt))
        except TxnLogError as error:
            failure: TxnLogError = error
        try:
            identity = yield from _give_up(session, attempt, failure)
        except ProducerFenced as fenced:
            identity, failure = None, fenced
        # Only now: the abort may have come when the coordinator had aborted it for its timeout.
        elapsed_ms = session.monotonic_ms() - attempt.began_ms
        if attempt.transaction is not None and is_timeout(plan, failure, elapsed_ms):
            done_bytes = attempt.produced.bytes
            raise (yield from timeout_error(session, plan, elapsed_ms, done_bytes)) from failure
        redo = isinstance(failure, AbortableError) and number < plan.attempts_max
        if identity is None or not redo:
            raise failure
        number += 1


def _give_up(
    session: Session, attempt: CommitAttempt, error: TxnLogError
) -> Operation[ProducerIdentity | None]:
    """Abort what was begun, if that is allowed; the identity for another try, or None."""
    transaction = attempt.transaction
    if transaction is None or attempt.commit_sent or isinstance(error, ProducerFenced):
        return None
    if not transaction.begun:
        return transaction.identity(initialised=False)
    return (yield from abort_transaction(session, transaction))


def _try(session: Session, attempt: CommitAttempt) -> Operation[CommitOutcome]:
    plan = attempt.plan
    yield Reached("S1", "before", plan.batch_id)
    if not session.cluster.nodes:
        yield from refresh_metadata(session, ())
    identity = attempt.identity
    yield from find_coordinator(
        session, TRANSACTION, plan.transactional_id, deadline=session.deadline()
    )
    follows = plan.is_stream and goes_on(identity, plan.batch_id)
    visible = None if follows else (yield from visible_progress(session, plan))
    if not is_committed(plan, visible) and plan.next_batch_id_min > plan.batch_id:
        visible = yield from _wait_for_markers(session, plan)
    yield Reached("S1", "after", plan.batch_id)
    if is_committed(plan, visible):
        return (yield from _skip(session, attempt, visible))
    identity = yield from initialise(session, plan, identity)
    yield Reached("S3", "before", plan.batch_id)
    judged: Facts | None = None
    if not follows:
        found = yield from stable_progress(session, plan)
        judged = yield from facts_about(session, plan, found)
        verdict = yield from judge_for_certain(session, attempt, judged, identity)
        if verdict is Verdict.SKIP:
            yield Reached("S3", "after", plan.batch_id)
            # With an identity to go on from, the worker that did it may have this very epoch.
            again = replace(identity, initialised=attempt.identity is None)
            return _skipped(attempt, judged, again)
        if found is None and plan.journal is not None:
            identity = yield from commit_baseline(session, attempt, identity)
            judged = replace(judged, progress=baseline_of(plan))
    if plan.journal is not None:
        yield from plan.journal.begin(plan)
    yield Reached("S3", "after", plan.batch_id)
    transaction = yield from begin_transaction(session, attempt, identity)
    yield from _write(session, attempt, transaction)
    if judged is not None:
        yield from confirm(session, plan, judged)
    return (yield from _commit(session, attempt, transaction))


def goes_on(identity: ProducerIdentity | None, batch_id: int) -> bool:
    """Whether this very producer committed the batch before: there is nothing to ask then."""
    return identity is not None and identity.initialised and identity.last_batch_id == batch_id - 1


def _wait_for_markers(session: Session, plan: CommitPlan) -> Operation[Progress | None]:
    """Progress once it has a batch that the record says is committed, or after MARKERS_WAIT_MS.

    Its markers are being written then, and nobody need be fenced for that. A stable read would wait
    for the next transaction as well, which may hang.
    """
    until_ms = session.monotonic_ms() + MARKERS_WAIT_MS
    while True:
        yield Sleep(MARKERS_POLL_MS)
        found = yield from visible_progress(session, plan)
        if is_committed(plan, found) or session.monotonic_ms() >= until_ms:
            return found


def _skip(
    session: Session, attempt: CommitAttempt, found: Progress | None
) -> Operation[CommitOutcome]:
    """The outcome of a batch that visible progress has, before anybody is fenced.

    A commit is answered, and recorded by who asked for it, before its markers are written: what is
    visible may be behind the record without anything being lost.

    Raises BatchReplanned when it is another batch, ProgressMissing.
    """
    plan = attempt.plan
    if found is not None and found.next_batch_id < plan.next_batch_id_min:
        found = yield from stable_progress(session, plan)
    facts = yield from facts_about(session, plan, found)
    verdict = judge(plan, facts)
    check(verdict is Verdict.SKIP, "a batch that is to be done was skipped")
    return _skipped(attempt, facts, None)


def _skipped(
    attempt: CommitAttempt, facts: Facts, identity: ProducerIdentity | None
) -> CommitOutcome:
    progress = present(facts.progress, "a batch that is skipped has progress")
    return CommitOutcome(identity, True, progress, attempts=attempt.number)


def _write(session: Session, attempt: CommitAttempt, transaction: Transaction) -> Operation[None]:
    """S4 to S8: everything that belongs to the transaction."""
    plan = attempt.plan
    partitions = sorted({TopicPartition(part.topic, part.partition) for part in plan.staged})
    yield from require_leaders(session, partitions, allow_auto_create=True)
    yield from require_progress_topic(session, plan)
    yield Reached("S4", "before", plan.batch_id)
    if transaction.version < 2 and partitions:
        yield from add_partitions(session, transaction, partitions)
    yield Reached("S4", "after", plan.batch_id)
    yield Reached("S5", "before", plan.batch_id)
    yield from produce_staged(session, transaction, plan, attempt.produced)
    yield Reached("S5", "after", plan.batch_id)
    _check_all_produced(plan, attempt.produced)
    yield from add_batch_offsets(session, attempt, transaction)


def _check_all_produced(plan: CommitPlan, produced: Produced) -> None:
    """Two sums that a slip in queues, rounds or sequences could not both keep: else no EndTxn."""
    staged = staged_totals(plan.staged)
    check(
        (produced.bytes, produced.records) == (staged.bytes, staged.records),
        "what was acknowledged is not what was staged",
        produced=(produced.records, produced.bytes),
        staged=(staged.records, staged.bytes),
    )


def _commit(
    session: Session, attempt: CommitAttempt, transaction: Transaction
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
