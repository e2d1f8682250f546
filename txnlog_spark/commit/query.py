"""The commit of one micro-batch of a streaming query, beginning with its checkpoint.

Spark builds a new writer in a reused worker process for every commit: batch n may be committed in
one process, n + 1 in another. So only the checkpoint remembers anything between two commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from txnlog_kafka.operations.effects import Failpoint, Operation
from txnlog_kafka.operations.metadata import require_cluster
from txnlog_kafka.operations.producer import StagedChunk
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
    """Micro-batch, as Spark's driver hands it to the sink.

    `checkpoint` is the prefix of its files' paths, `location` the same place normalised. `query_id`
    is the id that the tasks were given, None if Spark does not tell it. `is_function` is True for a
    function of foreachBatch. `Committer` explains the other fields.
    """

    checkpoint: str
    location: str
    batch_id: int
    options: CommitOptions
    staged: Sequence[StagedChunk]
    run_id: str
    query_id: str | None = None
    is_function: bool = False
    host: str = ""
    pid: int = -1


def commit_query_batch(session: Session, batch: QueryBatch) -> Operation[CommitOutcome]:
    """Commit the batch exactly once, even if several drivers try it, or one driver tries it again.

    Raises ProducerFenced, CommitStateUnknown, ProgressError, TransactionTimedOut, WrongCluster,
    OptionError and the brokers' refusals: Spark stops the query, and a restart replays the batch.
    """
    yield Failpoint("collect", "before", batch.batch_id)
    query_id = yield from checkpoint.read_query_id(batch.checkpoint)
    sources = yield from checkpoint.read_batch_offsets(batch.checkpoint, batch.batch_id)
    if batch.query_id is None:
        yield from checkpoint.check_uncommitted(batch.checkpoint, batch.batch_id)
    elif batch.query_id != query_id:
        raise TxnLogError(
            f"the tasks belong to query {batch.query_id}, but the checkpoint to {query_id}: "
            "set the writer's option checkpointLocation to this query's own checkpoint"
        )
    yield Failpoint("collect", "after", batch.batch_id)
    yield from require_cluster(session)
    plan = yield from _plan(session, batch, query_id, sources)
    try:
        check_sources(plan, sources)
    except OptionError as error:
        if plan.committer.output.copy and plan.begun is None:
            raise CheckpointCopied(
                f"the checkpoint {batch.location} is a copy, and its batch {batch.batch_id} was "
                "planned before the copy got its own options. Nothing was written. "
                f"{_planned_before(batch)}, and start the copy again: it then plans the batch with "
                "its own options"
            ) from error
        raise
    _warn_of_options(session, plan, sources)
    try:
        outcome = yield from commit_batch(session, plan)
    except ProducerFenced as error:
        raise _explained(error, plan) from None
    _warn_of_missing(session, plan, outcome)
    return outcome


def foresee_query_batch(
    session: Session, batch: QueryBatch, *, is_planned: bool
) -> Operation[Decision]:
    """Return the decision that the commit of this batch would take now; change nothing.

    A batch that is not planned yet begins where the batch before it ended, and counts as empty.
    Raises the errors of `commit_query_batch` for a batch that is refused.
    """
    query_id = yield from checkpoint.read_query_id(batch.checkpoint)
    logged = batch.batch_id if is_planned else batch.batch_id - 1
    sources = yield from checkpoint.read_batch_offsets(batch.checkpoint, logged)
    if not is_planned:
        sources = replace(sources, batch_hash="")
    yield from require_cluster(session)
    plan = yield from _plan(session, batch, query_id, sources)
    check_sources(plan, sources)
    return (yield from foresee(session, plan))


def _plan(
    session: Session, batch: QueryBatch, query_id: str, sources: BatchOffsets
) -> Operation[CommitPlan]:
    """Return the commit as a value, with the checkpoint's record of the batches before."""
    # Who commits: the recorded transactional id stays, so that former drivers can be fenced.
    options = batch.options
    folder = journal.journal_folder(batch.checkpoint, options.sink_name)
    begun = yield from journal.read_begun(folder, query_id)
    recorded = "" if begun is None else begun.output.transactional_id
    output = Output(
        query_id=query_id,
        checkpoint=batch.location,
        sink_name=options.sink_name,
        transactional_id=options.transactional_id_of(query_id, recorded),
        target=options.topic or "",
        cluster_id=session.cluster.cluster_id or "",
    )
    # The same query, or a copy of it: a copy goes on with progress of its own.
    if begun is not None:
        journal.check_cluster(begun.output, output.cluster_id)
        output = yield from _recognised(batch, output, begun)
        if output.copy != begun.output.copy:
            session.notice(
                f"the checkpoint {output.checkpoint} is a copy of {begun.output.checkpoint}: it "
                f"continues with transactional id {output.transactional_id} and its own progress"
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
        folder=folder,
        leaves_out_batches=batch.is_function,
        host=batch.host,
        pid=batch.pid,
    )
    plan = CommitPlan(committer, _batch(batch, sources), begun)
    # A driver that was overtaken stops here, before it fences the newer one.
    if begun is not None:
        yield from journal.check_not_overtaken(plan, begun)
    return plan


def _recognised(batch: QueryBatch, output: Output, begun: Begun) -> Operation[Output]:
    """Return the output as the same query's, or as a copy's. Raises CheckpointCopied."""
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
    # A planned batch notes the group that it was read with. Writing it with another is refused.
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


def _explained(error: ProducerFenced, plan: CommitPlan) -> ProducerFenced:
    """Add the driver that took over and the origin of the id: the brokers cannot know these."""
    options = plan.committer.options
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


def _warn_of_options(session: Session, plan: CommitPlan, sources: BatchOffsets) -> None:
    """Warn once in a run of settings that are allowed but seldom meant."""
    options = plan.committer.options
    if plan.begun is not None and plan.begun.run_id == plan.committer.run_id:
        return
    group_id = next((s.note.group_id for s in sources.sources if s.note and s.note.group_id), None)
    if group_id is not None and options.read_group_id is None:
        session.notice(
            f"kafka.group.id={group_id} is set on the reader only: no offsets are committed for "
            "it. Set it on the writer as well"
        )
    elif _lacks_group(plan, sources):
        session.notice(
            f"{plan.query} has no {GROUP_OPTION}: if its checkpoint is lost, the next start begins "
            "at startingOffsets again. With earliest, it writes its output a second time; with "
            "latest, the default, it never writes the records that came in between. Set "
            f"{GROUP_OPTION} to the same name on the reader and the writer, and "
            "startingOffsets=committedOrEarliest on the reader"
        )
    if options.topic in {topic for topic, _ in plan.batch.source_offsets}:
        session.notice(
            f"the query writes to {options.topic}, which it also reads: it will never be done"
        )


def _lacks_group(plan: CommitPlan, sources: BatchOffsets) -> bool:
    """True if the query is new, and could have a group: its sources are Kafka's on this cluster."""
    cluster_id = plan.committer.output.cluster_id
    return (
        plan.begun is None
        and plan.committer.options.read_group_id is None
        and plan.batch.is_pinned
        and all(s.note is not None and s.note.cluster_id == cluster_id for s in sources.sources)
        and bool(plan.batch.source_offsets)
    )


def _warn_of_missing(session: Session, plan: CommitPlan, outcome: CommitOutcome) -> None:
    if outcome.missing_sources:
        names = ", ".join(f"{topic}-{number}" for topic, number in sorted(outcome.missing_sources))
        session.notice(
            f"{plan.name} is committed without offsets for {names} in group {plan.group_id}: the "
            "topics were deleted, and may have been created again"
        )


# ------------------------------------------------------------------ which sources a group may have
#
# With `kafka.group.id` every Kafka source has to read the cluster that the sink writes to, each
# partition once; without it the checkpoint alone keeps the query exactly-once, and all is allowed.


def check_sources(plan: CommitPlan, sources: BatchOffsets) -> None:
    """Raise OptionError or WrongCluster for offsets that the group must not be moved to."""
    group_id, watched = plan.committer.options.group_id, plan.committer.options.read_group_id
    for source in sources.sources:
        note, starts = source.note, source.group_start != ""
        read_by = note.group_id if note is not None and (starts or watched is not None) else None
        if read_by is not None and read_by != watched:
            why = "(it starts from its committed offsets)" if starts else "(on the reader)"
            raise OptionError(
                GROUP_OPTION,
                group_id,
                f"set it to {read_by!r} on the writer as well: the query reads with that group "
                f"{why}, and the sink has to commit its offsets",
            )
    if group_id is None:
        return
    _check_cluster(group_id, sources, plan.committer.output.cluster_id)
    if twice := sources.read_differently:
        raise OptionError(
            GROUP_OPTION,
            group_id,
            f"remove it from the writer: two sources of the query read {twice[0]} up to different "
            "offsets, but a group has one position in a partition. A union of two selections of "
            "one load() reads both up to the same offsets; a join of one load() with itself does "
            "not. The query stays exactly-once by its checkpoint",
        )
    if not sources.is_whole:
        _check_start(group_id, sources)


def _check_cluster(group_id: str, sources: BatchOffsets, cluster_id: str) -> None:
    """Raise WrongCluster if a source reads another cluster than the sink's; "" is unknown."""
    for source in sources.sources:
        note = source.note
        if note is not None and source.offsets and cluster_id not in ("", note.cluster_id):
            topics = ", ".join(sorted({p.topic for p in source.offsets}))
            raise WrongCluster(
                f"{GROUP_OPTION}={group_id!r} works on one cluster only: the source of {topics} "
                f"reads cluster {note.cluster_id}, the sink writes to cluster {cluster_id}, "
                "and the offsets of one mean nothing on the other. Nothing was written. Remove "
                f"{GROUP_OPTION} from the writer and the reader: the query stays exactly-once by "
                "its checkpoint"
            )


def _check_start(group_id: str, sources: BatchOffsets) -> None:
    """Raise OptionError if only some sources can start from committed offsets."""
    starts = {each.note.group_start for each in sources.sources if each.note is not None}
    if starts <= {"", positions_digest({})}:
        return
    raise OptionError(
        "startingOffsets",
        "committed",
        f"the query also has a source that is not a Kafka topic. With a new checkpoint that source "
        f"is read from its beginning again, while group {group_id!r} continues where it was, so "
        "the source's records would be in the output twice. Restore the checkpoint; or remove the "
        "data that the source has delivered before",
    )


def pins_records(group_id: str | None, sources: BatchOffsets) -> bool:
    """True if equal source offsets mean equal records: Kafka's offsets, each partition once.

    Offsets of another source's connector may have the same shape. They count as Kafka's if our
    source noted its cluster, or if they are committed for a group, which checks them.
    """
    known = all(s.note is not None or group_id is not None for s in sources.sources)
    return sources.is_whole and known
