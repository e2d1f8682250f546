"""The commit of one micro-batch of a streaming query, from its checkpoint to its identity record.

Theory of operation. Spark builds a new writer in a reused worker process for every commit, and the
workers are one pool for all queries of a session: batch n may be committed in one, n + 1 in
another, n + 2 in the first again. So the producer identity of a query run lives in the checkpoint
(`journal`), and what a worker remembers counts only while the file says the same. A new run of the
query begins with a plain InitProducerId, which fences whatever an older driver still does, but only
when it has something to write: a batch that is committed is skipped without fencing anybody. If the
query had another transactional id before, that one's holder is fenced first.

Kafka deletes a topic's committed offsets with the topic, so all batches of a query commit their
progress for one partition, chosen before the first (`placement`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from txnlog_spark.commit.checkpoint import (
    BatchOffsets,
    check_uncommitted,
    read_batch_offsets,
    read_previous_offsets,
    read_query_id,
)
from txnlog_spark.commit.journal import (
    Attempt,
    Journal,
    RecordedIdentity,
    check_cluster,
    read_attempt,
    read_identity,
    write_identity,
)
from txnlog_spark.commit.micro_batch import commit_micro_batch, goes_on
from txnlog_spark.commit.placement import place_progress
from txnlog_spark.commit.plan import CommitOptions, CommitOutcome, CommitPlan
from txnlog_spark.commit.sources import check_sources, noted_group, pins_records
from txnlog_spark.errors import ProducerFenced, TxnLogError
from txnlog_spark.protocol.effects import Operation, Reached
from txnlog_spark.protocol.metadata import refresh_metadata
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.values import ProducerIdentity, StagedPartition
from txnlog_spark.wire.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class Held:
    """The identity that a worker used last for a transactional id, and for which query run."""

    query_id: str
    run_id: str
    identity: ProducerIdentity


@dataclass(slots=True)
class Worker:
    """What one of Spark's Python workers remembers between commits to one cluster.

    Nothing here is needed for correctness: a worker vanishes and another goes on at any time.
    """

    held: dict[str, Held] = field(default_factory=dict)
    """By transactional id."""
    said: set[tuple[str, str]] = field(default_factory=set)
    """(run id, text) of what was said once and is not said again for every batch."""


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """One micro-batch as Spark's driver hands it to the sink.

    `run_id` and `query_id` are what the tasks were given, None for a batch without tasks; then
    `new_run_id` names the run. `query_id` alone is None for tasks that Spark does not tell it.
    `host` and `pid` are this process's, for messages.
    """

    checkpoint: str
    batch_id: int
    options: CommitOptions
    staged: Sequence[StagedPartition]
    query_id: str | None
    run_id: str | None
    new_run_id: str
    asks_first: bool = False
    """Whether each batch begins with a plain InitProducerId, whatever is recorded: where a run may
    try a batch again, and the checkpoint's store may carry out an earlier write late."""
    host: str = ""
    pid: int = -1

    @property
    def folder(self) -> str:
        """Where this sink keeps its files."""
        return journal_folder(self.checkpoint, self.options.sink_name)


@dataclass(frozen=True, slots=True)
class _Run:
    """Who commits, and what the checkpoint says of the query's batches before this one."""

    query_id: str
    run_id: str
    transactional_id: str
    cluster_id: str
    attempt: Attempt | None
    """Of this query; None before its first."""
    recorded: RecordedIdentity | None
    previous_transactional_id: str | None


def journal_folder(checkpoint: str, sink_name: str = "") -> str:
    """Where a sink keeps its files in the checkpoint."""
    return f"{checkpoint}/txnlog/{sink_name}" if sink_name else f"{checkpoint}/txnlog"


def commit_query_batch(
    session: Session, worker: Worker, batch: QueryBatch
) -> Operation[CommitOutcome]:
    """Commit the batch, exactly once, whoever tries it how often.

    Raises ProducerFenced, CommitStateUnknown, ProgressError, TransactionTimedOut, WrongCluster,
    OptionError and what the brokers refuse; each time Spark stops the query, and its restart
    replays the batch.
    """
    options = batch.options
    yield Reached("S6", "before", batch.batch_id)
    query_id = yield from read_query_id(batch.checkpoint)
    sources = yield from read_batch_offsets(batch.checkpoint, batch.batch_id)
    if batch.run_id is not None and batch.query_id is None:
        yield from check_uncommitted(batch.checkpoint, batch.batch_id)
    run_id = _run_id(batch, query_id)
    yield Reached("S6", "after", batch.batch_id)
    if not session.cluster.nodes:
        yield from refresh_metadata(session, ())
    check_sources(options.group_id, sources, session.cluster.cluster_id or "")
    run = yield from _read_run(session, batch, query_id, run_id)
    held = worker.held.pop(run.transactional_id, None)
    identity = None if batch.asks_first else _identity_of_run(held, run)
    plan = yield from _plan(session, batch, sources, run, identity)
    _say_once(session, worker, plan, options, sources)
    try:
        outcome = yield from commit_micro_batch(session, identity, plan)
    except ProducerFenced as error:
        alone = identity is None or run.recorded is not None
        unread = "" if alone else f"{batch.folder}/identity.json"
        raise _explained(error, options, plan, run.attempt, unread) from error
    if outcome.identity is not None:
        worker.held[run.transactional_id] = Held(query_id, run_id, outcome.identity)
        record = _record(plan, outcome.identity, outcome.progress.next_batch_id)
        yield from write_identity(batch.folder, record, was_skipped=outcome.skipped)
    _warn_of_missing(session, plan, outcome)
    return outcome


def _run_id(batch: QueryBatch, query_id: str) -> str:
    """The query run that the tasks belong to; a name of its own for a batch without tasks."""
    if batch.query_id is not None and batch.query_id != query_id:
        raise TxnLogError(
            f"the tasks belong to query {batch.query_id}, the checkpoint to {query_id}: "
            "set the writer's option checkpointLocation to this query's own checkpoint"
        )
    return batch.run_id or batch.new_run_id


def _read_run(session: Session, batch: QueryBatch, query_id: str, run_id: str) -> Operation[_Run]:
    transactional_id = batch.options.transactional_id_of(query_id)
    cluster_id = session.cluster.cluster_id or ""
    attempt = yield from read_attempt(batch.folder)
    recorded = yield from read_identity(batch.folder)
    previous_id = None
    if attempt is not None and attempt.transactional_id not in ("", transactional_id):
        previous_id = attempt.transactional_id
    if attempt is not None and attempt.query_id != query_id:
        attempt = None  # of another query: its driver may live, its progress says nothing here
    if recorded is not None and recorded.query_id != query_id:
        recorded = None
    if attempt is not None:
        check_cluster(attempt, cluster_id)
    return _Run(query_id, run_id, transactional_id, cluster_id, attempt, recorded, previous_id)


def _identity_of_run(held: Held | None, run: _Run) -> ProducerIdentity | None:
    """What this run may go on with; None makes InitProducerId fence everyone else.

    Another worker of the run may have committed since this one did: then its record counts. When
    another run has the record, the coordinator says whether what this worker holds is still good:
    its epoch may be over, and then nothing is sent with it.

    The run goes on after a batch that it has begun and not recorded when the function given to
    foreachBatch catches an error. What was sent then may be in a transaction that is open, and with
    the epoch of before other rows would be taken for duplicates of that. So the recorded epoch is
    good as it is only while the attempt is the one that it was recorded after: a driver that was
    overtaken may have set the attempt back.
    """
    mine = None
    if held is not None and (held.query_id, held.run_id) == (run.query_id, run.run_id):
        mine = held.identity
    recorded = run.recorded
    if recorded is None or recorded.run_id != run.run_id:
        return None if mine is None else replace(mine, initialised=False)
    if recorded.transactional_id != run.transactional_id or _has_begun_since(run, recorded):
        return None
    identity = recorded.identity()
    epoch = recorded.producer_id, recorded.producer_epoch
    if mine is not None and (mine.producer_id, mine.producer_epoch) == epoch:
        identity = mine
    begun = run.attempt
    last = run.run_id, recorded.next_batch_id - 1
    if begun is None or (begun.run_id, begun.batch_id) != last:
        return replace(identity, initialised=False)
    return identity


def _has_begun_since(run: _Run, recorded: RecordedIdentity) -> bool:
    """Whether this run has begun a batch after the last one whose end it has recorded."""
    begun = run.attempt
    if begun is None or begun.batch_id is None or begun.run_id != run.run_id:
        return False
    return begun.batch_id >= recorded.next_batch_id


def _plan(
    session: Session,
    batch: QueryBatch,
    sources: BatchOffsets,
    run: _Run,
    identity: ProducerIdentity | None,
) -> Operation[CommitPlan]:
    """The commit as a value, with all that the checkpoint tells of the batches before."""
    options, attempt = batch.options, run.attempt
    begun = None if attempt is None else attempt.batch_id
    source_offsets = sources.source_offsets
    group_id = options.group_id if source_offsets else None
    recorded_group = "" if attempt is None else attempt.progress_group_id
    progress_group_id = recorded_group or options.progress_group_of(run.query_id)
    follows = goes_on(identity, batch.batch_id)
    place = yield from place_progress(
        session,
        recorded=None if attempt is None else attempt.progress_partition,
        may_move=not follows and begun is not None and begun < batch.batch_id,
        progress_group_id=progress_group_id,
        query_id=run.query_id,
        sources=source_offsets,
        staged=batch.staged,
        topic=options.topic,
    )
    previous: dict[TopicPartition, int] = {}
    if group_id is not None and not follows:
        previous = yield from read_previous_offsets(batch.checkpoint, batch.batch_id)
    foreign = [s.offsets for s in sources.sources if s.offsets and s.note is None]
    return CommitPlan(
        query_id=run.query_id,
        run_id=run.run_id,
        batch_id=batch.batch_id,
        transactional_id=run.transactional_id,
        progress_group_id=progress_group_id,
        progress_partition=place,
        staged=batch.staged,
        group_id=group_id,
        source_offsets=source_offsets,
        source_digest=sources.digest,
        batch_hash=sources.batch_hash,
        is_pinned=pins_records(options.group_id, sources),
        must_exist=attempt is not None,
        attempted_batch_id=begun,
        attempted_group_digest="" if attempt is None else attempt.group_digest,
        next_batch_id_min=0 if run.recorded is None else run.recorded.next_batch_id,
        previous_transactional_id=run.previous_transactional_id,
        expected=sources.expected,
        previous_offsets=previous,
        foreign_sources=tuple(foreign),
        overwrite_group=options.overwrite_group,
        journal=Journal(
            batch.folder,
            run.cluster_id,
            batch.host,
            batch.pid,
            previous_run_id="" if attempt is None else attempt.run_id,
        ),
        transaction_timeout_ms=options.transaction_timeout_ms,
        produce_request_bytes=options.produce_request_bytes,
    )


def _record(plan: CommitPlan, identity: ProducerIdentity, next_batch_id: int) -> RecordedIdentity:
    return RecordedIdentity(
        query_id=plan.query_id,
        run_id=plan.run_id,
        transactional_id=plan.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        initialised=identity.initialised,
        last_batch_id=identity.last_batch_id,
        transaction_version=identity.transaction_version,
        next_batch_id=next_batch_id,
    )


def _explained(
    error: ProducerFenced,
    options: CommitOptions,
    plan: CommitPlan,
    attempt: Attempt | None,
    unread: str,
) -> ProducerFenced:
    """The error with what the brokers cannot tell: who took over, where the id comes from.

    `unread` is the file that would say what other workers of the run did, if it could not be read.
    """
    texts = [str(error)]
    if unread:
        texts.append(
            f"{unread} could not be read, so it may have been another Python worker of this query: "
            "then start the query again"
        )
    if options.transactional_id is None:
        origin = "kafka.group.id" if options.group_id is not None else "the query's id"
        texts.append(f"The transactional id {plan.transactional_id!r} was made from {origin}")
    if attempt is not None and attempt.run_id != plan.run_id and attempt.host:
        texts.append(
            f"Batch {attempt.batch_id} of query {attempt.query_id} was begun by process "
            f"{attempt.pid} on host {attempt.host}"
        )
    error.args = (". ".join(texts),)
    return error


def _say_once(
    session: Session,
    worker: Worker,
    plan: CommitPlan,
    options: CommitOptions,
    sources: BatchOffsets,
) -> None:
    """What is allowed and seldom meant."""
    texts = []
    group_id = noted_group(sources)
    if group_id is not None and options.group_id is None:
        texts.append(
            f"kafka.group.id={group_id} is set on the reader only: no offsets are committed for "
            "it. Set it on the writer as well"
        )
    read = {topic for topic, _ in plan.source_offsets}
    if options.topic is not None and options.topic in read:
        texts.append(f"the query writes to {options.topic}, which it reads: it will not end")
    for text in texts:
        if (plan.run_id, text) not in worker.said:
            worker.said.add((plan.run_id, text))
            session.notice(text)


def _warn_of_missing(session: Session, plan: CommitPlan, outcome: CommitOutcome) -> None:
    if outcome.missing_sources:
        names = ", ".join(f"{topic}-{number}" for topic, number in sorted(outcome.missing_sources))
        session.notice(
            f"batch {plan.batch_id} is committed without offsets for {names} in group "
            f"{plan.group_id}: the topics were deleted"
        )
