"""The commit of one micro-batch of a streaming query, from its checkpoint on.

Spark builds a new writer in a reused worker process for every commit: batch n may be committed in
one, n + 1 in another. So nothing is remembered between two commits but what lies in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from txnlog_kafka.operations.effects import Milestone, Operation
from txnlog_kafka.operations.metadata import require_cluster
from txnlog_kafka.operations.producer import StagedPartition
from txnlog_kafka.operations.session import Session
from txnlog_spark.commit import checkpoint, journal
from txnlog_spark.commit.checkpoint import BatchOffsets
from txnlog_spark.commit.judgement import Decision
from txnlog_spark.commit.micro_batch import commit_batch, foresee
from txnlog_spark.commit.output import Output, moved_or_copied
from txnlog_spark.commit.plan import (
    Batch,
    Begun,
    CommitOptions,
    CommitOutcome,
    CommitPlan,
    Committer,
)
from txnlog_spark.commit.progress import group_digest
from txnlog_spark.errors import (
    CheckpointCopied,
    OptionError,
    ProducerFenced,
    TxnLogError,
    WrongCluster,
)
from txnlog_spark.offsets import positions_digest

GROUP_OPTION = "kafka.group.id"


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """One micro-batch as Spark's driver hands it to the sink.

    `checkpoint` is what the paths of its files begin with, `location` the same place normalised.
    `run_id` is random, of this start of the query. `query_id` is what the tasks were given, None
    where Spark does not tell it. `is_function` says that it is written in foreachBatch, by a
    function that may leave batches out. `host` and `pid` are this process's, for messages.
    """

    checkpoint: str
    location: str
    batch_id: int
    options: CommitOptions
    staged: Sequence[StagedPartition]
    run_id: str
    query_id: str | None = None
    is_function: bool = False
    host: str = ""
    pid: int = -1

    @property
    def folder(self) -> str:
        """Where this sink keeps its files."""
        return journal.journal_folder(self.checkpoint, self.options.sink_name)


def commit_query_batch(session: Session, batch: QueryBatch) -> Operation[CommitOutcome]:
    """Commit the batch exactly once, also when several drivers try it, or one tries it again.

    Raises ProducerFenced, CommitStateUnknown, ProgressError, TransactionTimedOut, WrongCluster,
    OptionError and what the brokers refuse: Spark stops the query, and its restart replays it.
    """
    yield Milestone("collect", "before", batch.batch_id)
    query_id = yield from checkpoint.read_query_id(batch.checkpoint)
    sources = yield from checkpoint.read_batch_offsets(batch.checkpoint, batch.batch_id)
    if batch.query_id is None:
        yield from checkpoint.check_uncommitted(batch.checkpoint, batch.batch_id)
    elif batch.query_id != query_id:
        raise TxnLogError(
            f"the tasks belong to query {batch.query_id}, the checkpoint to {query_id}: "
            "set the writer's option checkpointLocation to this query's own checkpoint"
        )
    yield Milestone("collect", "after", batch.batch_id)
    yield from require_cluster(session)
    plan = yield from _plan(session, batch, query_id, sources)
    try:
        check_sources(batch.options, sources, session.cluster.cluster_id or "")
    except OptionError as error:
        if plan.committer.output.copy and plan.begun is None:
            raise CheckpointCopied(
                f"the checkpoint {batch.location} is a copy, and its batch {batch.batch_id} was "
                "planned before the copy was given options of its own. Nothing was written. "
                f"{_planned_before(batch)}, and start the copy again: it plans the batch with its "
                "own options"
            ) from error
        raise
    _warn_of_options(session, plan, batch.options, sources)
    try:
        outcome = yield from commit_batch(session, plan)
    except ProducerFenced as error:
        raise _explained(error, batch.options, plan) from None
    _warn_of_missing(session, plan, outcome)
    return outcome


def foresee_query_batch(
    session: Session, batch: QueryBatch, *, is_planned: bool
) -> Operation[Decision]:
    """Return what the commit of this batch would decide now, and change nothing.

    A batch that is not planned yet begins where the one before ended, and is taken for empty.
    Raises what `commit_query_batch` does for a batch that is refused.
    """
    query_id = yield from checkpoint.read_query_id(batch.checkpoint)
    logged = batch.batch_id if is_planned else batch.batch_id - 1
    sources = yield from checkpoint.read_batch_offsets(batch.checkpoint, logged)
    if not is_planned:
        sources = replace(sources, batch_hash="")
    yield from require_cluster(session)
    plan = yield from _plan(session, batch, query_id, sources)
    check_sources(batch.options, sources, session.cluster.cluster_id or "")
    return (yield from foresee(session, plan))


def _plan(
    session: Session, batch: QueryBatch, query_id: str, sources: BatchOffsets
) -> Operation[CommitPlan]:
    """The commit as a value, with what the checkpoint tells of the batches before."""
    options = batch.options
    begun = yield from journal.read_begun(batch.folder, query_id)
    recorded = "" if begun is None else begun.output.transactional_id
    output = Output(
        query_id=query_id,
        checkpoint=batch.location,
        sink_name=options.sink_name,
        transactional_id=options.transactional_id_of(query_id, recorded),
        target=options.topic or "",
        cluster_id=session.cluster.cluster_id or "",
    )
    if begun is not None:
        journal.check_cluster(begun.output, output.cluster_id)
        output = yield from _recognised(batch, output, begun)
        if output.copy != begun.output.copy:
            session.notice(
                f"the checkpoint {output.checkpoint} is a copy of {begun.output.checkpoint}: it "
                f"goes on with transactional id {output.transactional_id} and progress of its own"
            )
            begun = None
    committer = Committer(
        output=output,
        run_id=batch.run_id,
        transactional_id=output.transactional_id,
        progress_group_id=options.progress_group_of(query_id, output.copy)
        if begun is None
        else begun.progress_group_id,
        options=options,
        checkpoint=batch.checkpoint,
        folder=batch.folder,
        leaves_out_batches=batch.is_function,
        host=batch.host,
        pid=batch.pid,
    )
    if begun is not None:
        yield from journal.check_not_overtaken(committer, begun, batch.batch_id)
    return CommitPlan(committer, _batch(batch, sources), begun)


def _recognised(batch: QueryBatch, output: Output, begun: Begun) -> Operation[Output]:
    """The output as the same query's, or as that of a copy. Raises CheckpointCopied."""
    group_id, original = batch.options.group_id, False
    if begun.output.checkpoint != output.checkpoint:
        original = yield from checkpoint.is_query_at(begun.output.checkpoint, output.query_id)
    is_same_group = begun.group_digest != "" and begun.group_digest == group_digest(group_id)
    try:
        return moved_or_copied(
            output, begun.output, original_is_there=original, is_same_group=is_same_group
        )
    except CheckpointCopied as error:
        raise error.with_advice(_planned_before(batch)) from None


def _planned_before(batch: QueryBatch) -> str:
    # A planned batch notes which group it was read with, and to write it with another is refused.
    path = checkpoint.offsets_path(batch.checkpoint, batch.batch_id)
    return f"In a copy, delete {path} and .{batch.batch_id}.crc beside it"


def _batch(batch: QueryBatch, sources: BatchOffsets) -> Batch:
    return Batch(
        batch_id=batch.batch_id,
        staged=batch.staged,
        source_offsets=sources.source_offsets,
        source_digest=sources.digest,
        batch_hash=sources.batch_hash,
        is_pinned=pins_records(batch.options.group_id, sources),
        sources=tuple(source for source in sources.sources if source.offsets),
    )


def _explained(error: ProducerFenced, options: CommitOptions, plan: CommitPlan) -> ProducerFenced:
    """With what the brokers cannot say: which driver took over, and where the id comes from."""
    if options.transactional_id is None:
        origin = "kafka.group.id" if options.group_id is not None else "the query's id"
        error = error.with_advice(
            f"The transactional id {plan.committer.transactional_id!r} was made from {origin}"
        )
    begun = plan.begun
    if begun is not None and begun.run_id != plan.committer.run_id and begun.host:
        error = error.with_advice(
            f"Batch {begun.batch_id} of query {begun.output.query_id} was begun by process "
            f"{begun.pid} on host {begun.host}"
        )
    return error


def _warn_of_options(
    session: Session, plan: CommitPlan, options: CommitOptions, sources: BatchOffsets
) -> None:
    """What is allowed and seldom meant, once in a run."""
    if plan.begun is not None and plan.begun.run_id == plan.committer.run_id:
        return
    group_id = noted_group(sources)
    if group_id is not None and options.read_group_id is None:
        session.notice(
            f"kafka.group.id={group_id} is set on the reader only: no offsets are committed for "
            "it. Set it on the writer as well"
        )
    elif _lacks_group(plan, options, sources):
        session.notice(
            f"{plan.query} has no {GROUP_OPTION}: if its checkpoint is lost, the next start writes "
            f"all of its output a second time. Set {GROUP_OPTION} to the same name on the reader "
            "and the writer, and startingOffsets=committedOrEarliest on the reader"
        )
    if options.topic in {topic for topic, _ in plan.batch.source_offsets}:
        session.notice(f"the query writes to {options.topic}, which it reads: it will not end")


def _lacks_group(plan: CommitPlan, options: CommitOptions, sources: BatchOffsets) -> bool:
    """True if the query is new, and nothing but its checkpoint says what it has read; False if it
    cannot have a group: a source that is not Kafka's, or is of another cluster."""
    cluster_id = plan.committer.output.cluster_id
    return (
        plan.begun is None
        and options.read_group_id is None
        and plan.batch.is_pinned
        and all(s.note is not None and s.note.cluster_id == cluster_id for s in sources.sources)
        and bool(plan.batch.source_offsets)
    )


def _warn_of_missing(session: Session, plan: CommitPlan, outcome: CommitOutcome) -> None:
    if outcome.missing_sources:
        names = ", ".join(f"{topic}-{number}" for topic, number in sorted(outcome.missing_sources))
        session.notice(
            f"{plan.name} is committed without offsets for {names} in group {plan.group_id}: the "
            "topics were deleted"
        )


# ------------------------------------------------------------------ which sources a group may have
#
# With `kafka.group.id` every Kafka source has to read the cluster that the sink writes to, each
# partition once; without it the checkpoint alone keeps the query exactly-once, and all is allowed.


def check_sources(options: CommitOptions, sources: BatchOffsets, cluster_id: str) -> None:
    """Raise OptionError and WrongCluster for offsets that the group must not be moved to.

    `cluster_id` is the sink's, "" when its brokers do not tell.
    """
    group_id = options.group_id
    for source in sources.sources:
        note = source.note
        starts = note is not None and note.group_start != ""
        has_group = options.read_group_id is not None
        read_by = note.group_id if note is not None and (starts or has_group) else None
        if read_by is not None and read_by != options.read_group_id:
            why = "(it starts from its committed offsets)" if starts else "(on the reader)"
            raise OptionError(
                GROUP_OPTION,
                group_id,
                f"set it to {read_by!r} for the writer as well: the query reads with that group "
                f"{why}, and the sink has to commit its offsets",
            )
    if group_id is None:
        return
    _check_cluster(group_id, sources, cluster_id)
    if twice := sources.read_differently:
        raise OptionError(
            GROUP_OPTION,
            group_id,
            f"remove it from the writer: two sources of the query read {twice[0]} up to different "
            "offsets, and a group has one position in a partition. A union of two selections of "
            "one load() reads both up to the same offsets; a join of it with itself does not. The "
            "query stays exactly-once by its checkpoint",
        )
    if not sources.is_whole:
        _check_start(group_id, sources)


def _check_cluster(group_id: str, sources: BatchOffsets, cluster_id: str) -> None:
    for source in sources.sources:
        if source.note is None or not source.offsets or not cluster_id:
            continue
        if source.note.cluster_id != cluster_id:
            topics = ", ".join(sorted({p.topic for p in source.offsets}))
            raise WrongCluster(
                f"{GROUP_OPTION}={group_id!r} works on one cluster only: the source of {topics} "
                f"reads cluster {source.note.cluster_id}, the sink writes to cluster {cluster_id}, "
                "and the offsets of one mean nothing on the other. Nothing was written. Remove "
                f"{GROUP_OPTION} from the writer and the reader: the query stays exactly-once by "
                "its checkpoint"
            )


def _check_start(group_id: str, sources: BatchOffsets) -> None:
    """A start from committed offsets does not hold for what has none, such as a source of files."""
    starts = {each.note.group_start for each in sources.sources if each.note is not None}
    if starts <= {"", positions_digest({})}:
        return
    raise OptionError(
        "startingOffsets",
        "committed",
        f"the query has a source besides that is not a Kafka topic: with a new checkpoint it is "
        f"read from its beginning again, while group {group_id!r} goes on where it was, so its "
        "records would be in the output twice. Restore the checkpoint; or remove what that source "
        "has delivered before",
    )


def pins_records(group_id: str | None, sources: BatchOffsets) -> bool:
    """Whether equal source offsets are equal records: Kafka's offsets, each partition once.

    Offsets of another source's connector may have the same shape; they count as Kafka's when our
    source noted its cluster, or when they are committed for a group, which checks them.
    """
    known = all(s.note is not None or group_id is not None for s in sources.sources)
    return sources.is_whole and known


def noted_group(sources: BatchOffsets) -> str | None:
    """The reader's group, None when it has none or did not note it."""
    return next((s.note.group_id for s in sources.sources if s.note and s.note.group_id), None)
