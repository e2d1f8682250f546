"""The commit of one batch: the heart of exactly-once. Batches of all kinds are committed here.

"One way to commit" in docs/internals/commit-protocol.md lists the steps. The brokers' state
decides, never the driver's memory.

- A batch is committed if the progress says so, or if EndTxn(commit) was answered with success.
- A batch is not committed if the progress says so after an InitProducerId, if EndTxn(abort) was
  answered with success, or if the record says that no transaction of it was begun.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from txnlog_kafka.operations.effects import Ask, Failpoint, Operation, Outcome
from txnlog_kafka.operations.metadata import require_cluster, require_leaders
from txnlog_kafka.operations.operation_group import OperationGroup, side_by_side
from txnlog_kafka.operations.produce import produce_staged, staged_totals
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.operations.transaction import (
    Transaction,
    abort_transaction,
    commit_transaction,
    transaction_version,
)
from txnlog_kafka.operations.transaction_timeout import is_timeout, timeout_error
from txnlog_kafka.wire.invariants import check, present
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit import judgement
from txnlog_spark.commit.attempt import (
    TransactionTry,
    add_groups,
    begin_transaction,
    commit_baseline,
    commit_batch_offsets,
    confirm,
    identify_topics,
    initialise,
    judge_for_certain,
)
from txnlog_spark.commit.facts import (
    facts_of,
    former_outputs,
    group_offsets,
    stable_facts,
    visible_progress,
)
from txnlog_spark.commit.journal import begin, flush_plan
from txnlog_spark.commit.judgement import Decision, judge
from txnlog_spark.commit.plan import CommitOutcome, CommitPlan, Evidence, LocatedPlan, Progress
from txnlog_spark.commit.progress import baseline_of, place_progress, progress_after
from txnlog_spark.errors import AbortableError, ProducerFenced, TxnLogError


def commit_batch(session: Session, plan: CommitPlan) -> Operation[CommitOutcome]:
    """Commit the batch exactly once, or find that it is committed.

    Raises ProducerFenced (another driver has the transactional id), AbortableError (after
    `attempts_max` tries), RecordRefused, UnknownTopic and other FatalErrors (the batch is aborted),
    ProgressError (a person must look), CommitStateUnknown (ask again after InitProducerId),
    StagedBatchesInvalid, DeadlineExceeded, RemoteProtocolError.
    """
    check(plan.batch.batch_id >= 0, "batch ids start at 0", batch_id=plan.batch.batch_id)
    number, place = 1, None
    while True:
        located, seen = yield from _look_up_progress(session, plan, place)
        attempt = TransactionTry(located, number)
        try:
            return (yield from _run_attempt(session, attempt, seen))
        except TxnLogError as error:
            failure: TxnLogError = error
        is_aborted = False
        try:
            # A fenced driver must not abort: the transaction now belongs to another driver.
            if not isinstance(failure, ProducerFenced):
                is_aborted = yield from _abort_attempt(session, attempt)
        except ProducerFenced as fenced:
            failure = fenced
        # The timeout is checked after the abort: the coordinator may have aborted the transaction
        # for its timeout before this driver's abort arrived.
        if (too_late := (yield from _timed_out(session, attempt, failure))) is not None:
            raise too_late from failure
        redo = isinstance(failure, AbortableError) and number < plan.committer.attempts_max
        if not is_aborted or not redo:
            raise failure
        if attempt.judged is not None:
            plan, place = _known_aborted(plan), located.place
        number += 1


def _abort_attempt(session: Session, attempt: TransactionTry) -> Operation[bool]:
    """Abort the try's transaction if allowed. Return True if certainly no transaction is open."""
    transaction = attempt.transaction
    if attempt.commit_sent:
        return False
    if transaction is None or not transaction.begun:
        return True
    return (yield from abort_transaction(session, transaction))


def _timed_out(
    session: Session, attempt: TransactionTry, failure: TxnLogError
) -> Operation[TxnLogError | None]:
    """Return the transaction timeout as an error, if that is the cause of `failure`."""
    plan, transaction = attempt.to_produce, attempt.transaction
    elapsed_ms = session.monotonic_ms() - attempt.began_ms
    if transaction is None or not is_timeout(failure, elapsed_ms, plan.transaction_timeout_ms):
        return None
    done = attempt.produced.bytes
    return (yield from timeout_error(session, transaction, plan, elapsed_ms, done))


def _known_aborted(plan: CommitPlan) -> CommitPlan:
    """Return the plan for another try: no transaction of the batch was committed so far."""
    begun = plan.begun
    if begun is None or begun.batch_id < plan.batch.batch_id:
        return plan
    before = plan.last_begun_below
    before = plan.batch.batch_id - 1 if before is None else before
    return replace(plan, begun=replace(begun, batch_id=before))


def _look_up_progress(
    session: Session, plan: CommitPlan, before: TopicPartition | None
) -> Operation[tuple[LocatedPlan, Evidence]]:
    """Return where progress lies and the visible facts; fence no driver. Raises AnotherOutput."""
    batch_id = plan.batch.batch_id
    yield Failpoint("look_up", "before", batch_id)
    yield from require_cluster(session)
    visible: Progress | None
    visible, version, place = yield from side_by_side(
        session.monotonic_ms,
        visible_progress(session, plan),
        transaction_version(session, plan.committer.transactional_id),
        place_progress(session, plan, before),
    )
    seen = Evidence(visible, (yield from former_outputs(plan, visible)))
    judgement.check_output(plan, seen)
    located = plan.located(place, version)
    if judgement.is_committed(plan, visible) and not judgement.is_same_plan(plan, visible):
        group = yield from group_offsets(session, plan)
        seen = yield from facts_of(session, located, visible, group)
    yield Failpoint("look_up", "after", batch_id)
    return located, seen


def foresee(session: Session, plan: CommitPlan) -> Operation[Decision]:
    """Return the decision of `judge` by the visible facts, which an open transaction may change."""
    visible = yield from visible_progress(session, plan)
    located = plan.located((yield from place_progress(session, plan)), version=1)
    group = yield from group_offsets(session, plan, require_stable=False)
    return judge(located, (yield from facts_of(session, located, visible, group)))


def _run_attempt(
    session: Session, attempt: TransactionTry, seen: Evidence
) -> Operation[CommitOutcome]:
    plan, batch_id = attempt.plan, attempt.plan.batch.batch_id
    if judgement.is_committed(plan, seen.progress) and judge(plan, seen) is Decision.SKIP:
        return _skipped(attempt, seen)
    identity = yield from initialise(session, plan)
    yield Failpoint("judge", "before", batch_id)
    judged = yield from stable_facts(session, plan)
    decision = yield from judge_for_certain(session, attempt, judged, identity)
    if decision is Decision.SKIP:
        yield Failpoint("judge", "after", batch_id)
        return _skipped(attempt, judged)
    attempt.judged, attempt.is_empty = judged, decision is Decision.PASS
    if plan.committer.is_query:
        yield from flush_plan(plan)  # the baseline, too, says that it is planned
        if judged.progress is None:
            identity = yield from commit_baseline(session, attempt, identity)
            attempt.judged = replace(judged, progress=baseline_of(plan))
        topics = yield from identify_topics(session, attempt)
        yield from begin(plan, has_state=judged.has_state, topics=topics)
        if judgement.is_unproved(plan, judged):
            session.notice(
                f"{plan.name}: the position of group {plan.watched_group_id} was not checked, "
                "because the query's progress is of txnlog_spark 0.1.0 and Spark has purged the "
                "offset log of the batch before"
            )
    yield Failpoint("judge", "after", batch_id)
    transaction = begin_transaction(session, attempt, identity)
    yield from _write(session, attempt, transaction)
    return (yield from _commit(session, attempt, transaction))


def _skipped(attempt: TransactionTry, facts: Evidence) -> CommitOutcome:
    progress = present(facts.progress, "a batch that is skipped has progress")
    return CommitOutcome(True, progress, attempts=attempt.number)


def _write(session: Session, attempt: TransactionTry, transaction: Transaction) -> Operation[None]:
    """Send everything that belongs to the transaction: records and offsets, at the same time."""
    batch = attempt.plan.batch
    partitions = attempt.written
    yield from require_leaders(session, partitions, allow_auto_create=True)
    yield Failpoint("add_partitions", "before", batch.batch_id)
    yield from add_groups(session, attempt, transaction, partitions)
    yield Failpoint("add_partitions", "after", batch.batch_id)
    deadline = session.deadline()
    parts: OperationGroup[str, TxnLogError | None] = OperationGroup(session.monotonic_ms)
    # Offsets go first. On version 2 a transaction takes one addition at a time: leaders wait for
    # their turn, group coordinators refuse.
    records = _produce(session, attempt, transaction)
    offsets = _commit_offsets(session, attempt, transaction, deadline)
    yield from parts.start("offsets", _caught(offsets))
    yield from parts.start("records", _caught(records))
    failure: TxnLogError | None = None
    while not parts.is_empty:
        # Wait for both: a request that is still on its way would arrive after the abort.
        _, error = yield from parts.next_done()
        if error is not None:
            failure = failure or error
            attempt.produced.is_stopped, deadline.timeout_ms = True, 0
    if failure is not None:
        raise failure


def _produce(
    session: Session, attempt: TransactionTry, transaction: Transaction
) -> Operation[None]:
    plan, produced = attempt.to_produce, attempt.produced
    yield Failpoint("produce", "before", plan.batch_id)
    yield from produce_staged(session, transaction, plan, produced)
    yield Failpoint("produce", "after", plan.batch_id)
    total = staged_totals(plan.staged)
    # A mistake in queues, rounds or sequences would change one of these sums: then send no EndTxn.
    check(
        produced.is_stopped or (produced.bytes, produced.records) == (total.bytes, total.records),
        "what was acknowledged is not what was staged",
        produced=(produced.records, produced.bytes),
        staged=(total.records, total.bytes),
    )


def _commit_offsets(
    session: Session, attempt: TransactionTry, transaction: Transaction, deadline: Deadline
) -> Operation[None]:
    done = yield from commit_batch_offsets(session, attempt, transaction, deadline=deadline)
    judged = present(attempt.judged, "a batch is judged before it is committed")
    yield from confirm(session, attempt.plan, judged, done)


def _caught(operation: Operation[None]) -> Generator[Ask, Outcome, TxnLogError | None]:
    """Run the operation. Return the error that ends it, None without one."""
    try:
        yield from operation
    except TxnLogError as error:
        return error
    return None


def _commit(
    session: Session, attempt: TransactionTry, transaction: Transaction
) -> Operation[CommitOutcome]:
    """Send EndTxn(commit). After the first request has been sent, no error leads to an abort."""
    batch_id = attempt.plan.batch.batch_id
    yield Failpoint("end_txn", "before", batch_id)
    attempt.commit_sent = True
    yield from commit_transaction(session, transaction, batch_id=batch_id)
    yield Failpoint("end_txn", "after", batch_id)
    return CommitOutcome(
        skipped=False,
        progress=progress_after(attempt.plan),
        produced_records=attempt.produced.records,
        produced_bytes=attempt.produced.bytes,
        produced_partitions=len(attempt.produced.partitions),
        transaction_version=transaction.version,
        attempts=attempt.number,
        missing_sources=attempt.missing_sources,
    )
