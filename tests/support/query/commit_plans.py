"""Plans of micro-batches for tests of the commit operation, and what must hold afterwards."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from support.core.core_broker import CoreBroker
from support.query.staged_pieces import served, staged_of

from simulation.hosts.checkpoint import Checkpoint, Files
from txnlog_kafka.operations.effects import Ask, FileAsk, Operation, relayed
from txnlog_kafka.operations.offsets import CommittedOffset
from txnlog_kafka.operations.producer import StagedChunk
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import Record, encode_batch, parse_header
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.checkpoint import parse_batch_offsets
from txnlog_spark.commit.journal import check_not_overtaken, read_begun, write_begun
from txnlog_spark.commit.micro_batch import commit_batch
from txnlog_spark.commit.output import Output
from txnlog_spark.commit.plan import (
    Batch,
    Begun,
    CommitOptions,
    CommitOutcome,
    CommitPlan,
    Committer,
    Progress,
)
from txnlog_spark.commit.progress import newest_progress, progress_offset
from txnlog_spark.errors import TxnLogError

QUERY = "query-1"
PROGRESS_GROUP = "t.progress.query-1"
CHECKPOINT = "cp"
FOLDER = f"{CHECKPOINT}/txnlog"
RESTARTS_MAX = 4


def record_batch(*values: str) -> bytes:
    return encode_batch([Record(None, v.encode(), 1) for v in values])


def staged(topic: str, partition: int, *pieces: bytes) -> tuple[StagedChunk, ...]:
    return staged_of(topic, partition, pieces)


def build_plan(batch_id: int = 0, **changes: Any) -> CommitPlan:
    """Five records in two partitions, a source group, and the progress; of a query that is new.

    `changes` are fields of the plan, of its committer, options, batch or output, by their names;
    `folder=""` makes it a batch write's.
    """
    output = Output(QUERY, CHECKPOINT, transactional_id="t", target="out", cluster_id="c")
    committer = Committer(
        output=output,
        run_id="run-1",
        transactional_id="t",
        progress_group_id=PROGRESS_GROUP,
        options=CommitOptions(group_id="g"),
        checkpoint=CHECKPOINT,
        folder=FOLDER,
    )
    batch = Batch(
        batch_id,
        staged=(
            *staged("out", 0, record_batch("a0", "a1"), record_batch("a2")),
            *staged("out", 1, record_batch("b0"), record_batch("b1")),
        ),
        source_offsets={TopicPartition("in", 0): 5},
        source_digest="digest-5",
        batch_hash=f"planned-{batch_id}",
        is_pinned=True,
    )
    return changed(CommitPlan(committer, batch), **changes)


def changed(plan: CommitPlan, **changes: Any) -> CommitPlan:
    """The plan with other values, by the names of the fields; `transactional_id` is in two."""
    left = set(changes)
    if "source_offsets" in changes:
        ends = changes["source_offsets"].items()
        changes["source_offsets"] = {TopicPartition(*p): end for p, end in ends}

    def apply(value: Any) -> Any:
        mine = {f.name for f in fields(value)} & changes.keys()
        left.difference_update(mine)
        return replace(value, **{name: changes[name] for name in mine})

    committer = replace(
        plan.committer,
        output=apply(plan.committer.output),
        options=apply(plan.committer.options),
    )
    committer = apply(committer)
    made: CommitPlan = apply(replace(plan, committer=committer, batch=apply(plan.batch)))
    assert not left, f"no such fields: {left}"
    return made


def recorded(plan: CommitPlan, **changes: Any) -> Begun:
    """Return the record in the checkpoint after the plan's batch was begun, with progress on
    out-0."""
    begun = Begun(
        output=plan.committer.output,
        batch_id=plan.batch.batch_id,
        run_id=plan.committer.run_id,
        progress_group_id=plan.committer.progress_group_id,
        progress_partition=TopicPartition("out", 0),
    )
    return replace(begun, **changes)


EXPECTED = {("out", 0): [b"a0", b"a1", b"a2"], ("out", 1): [b"b0", b"b1"]}


def commit_recorded(session: Session, plan: CommitPlan) -> Operation[CommitOutcome]:
    """`commit_batch` as a query calls it: with what its checkpoint says was begun before."""
    begun = yield from read_begun(plan.committer.folder)
    if begun is not None:
        yield from check_not_overtaken(plan, begun)
        committer = replace(plan.committer, progress_group_id=begun.progress_group_id)
        plan = replace(plan, committer=committer, begun=begun)
    return (yield from commit_batch(session, plan))


def commit(cluster: CoreBroker, plan: CommitPlan, session: Session | None = None) -> Any:
    """The outcome of a commit on a scripted cluster, by a client that knows nothing yet."""
    return cluster.run(commit_recorded(session or cluster.session(), plan))


def new_checkpoint() -> Checkpoint:
    return Checkpoint(CHECKPOINT, QUERY, Files(), starts_committed=False)


def committing(
    client: Any, plan: CommitPlan, checkpoint: Checkpoint | None = None
) -> Operation[CommitOutcome]:
    """Run a commit with a real client, on the files of a checkpoint: a new one if none is given."""
    files = checkpoint or new_checkpoint()

    def answer(ask: Ask) -> Operation[Any]:
        return files.perform(ask) if isinstance(ask, FileAsk) else (yield ask)

    return relayed(served(commit_recorded(client.session, plan)), answer)


def commit_on(client: Any, plan: CommitPlan, checkpoint: Checkpoint | None = None) -> CommitOutcome:
    return client.run(committing(client, plan, checkpoint))


def put_progress(
    cluster: CoreBroker,
    next_batch_id: int,
    partition: tuple[str, int] = ("out", 0),
    *,
    of: CommitPlan | None = None,
    **digests: str,
) -> None:
    """The query's committed progress; `of` says whose, and digests what its last batch was."""
    output = (of or build_plan()).committer.output
    own = {"output_digest": output.digest, "target": output.target}
    progress = Progress(output.query_id, next_batch_id, **own | digests)
    offset = progress_offset(progress)
    group_id = PROGRESS_GROUP if of is None else of.committer.progress_group_id
    cluster.commit_offsets(group_id, {partition: (offset.committed_offset, offset.metadata)})


def with_baseline(version: int = 2, **settings: Any) -> CoreBroker:
    cluster = CoreBroker(version, **settings)
    put_progress(cluster, 0)
    return cluster


def logged(cluster: CoreBroker, batch_id: int, text: str) -> str:
    """Put an entry of Spark's offset log, and return its `batch_hash`."""
    path = f"{CHECKPOINT}/offsets/{batch_id}"
    cluster.files[path] = text.encode()
    return parse_batch_offsets(path, text).batch_hash


def put_begun(cluster: CoreBroker, begun: Begun) -> None:
    cluster.run(write_begun(FOLDER, begun))


def recorded_on(cluster: CoreBroker) -> Begun | None:
    return cluster.run(read_begun(FOLDER))


def is_committed(cluster: CoreBroker, plan: CommitPlan) -> bool:
    """True if the whole batch is visible; fail if it is visible in part, or twice."""
    seen = {p: cluster.committed_values(*p) for p in EXPECTED}
    committed = seen == EXPECTED
    assert committed or not any(seen.values()), f"torn or doubled: {seen}"
    progress = newest_progress(
        QUERY, [CommittedOffset(o, m) for o, m in cluster.offsets(PROGRESS_GROUP).values()]
    )
    reached = progress is not None and progress.next_batch_id == plan.batch.batch_id + 1
    assert reached == committed, "progress and records must agree"
    assert (cluster.offsets("g").get(("in", 0)) == (5, "")) == committed, (
        "offsets and records must agree"
    )
    return committed


def nothing_is_written(cluster: CoreBroker, since: int = 0) -> bool:
    """True if no record was sent and no transaction committed, after the first `since` requests."""
    return not any(
        each.api_key == ApiKey.PRODUCE
        or (each.api_key == ApiKey.END_TXN and each.message.committed)
        for each in cluster.asked[since:]
    )


def check_wire_discipline(cluster: CoreBroker) -> None:
    """Check that no abort follows EndTxn(commit), and that one payload exists per (partition,
    producer, epoch, sequences)."""
    sent = set()
    payloads: dict[tuple, bytes] = {}
    for asked in cluster.asked:
        message = asked.message
        if asked.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
            # Version 1: the next transaction of the same epoch begins.
            sent.discard(
                (
                    message.v3_and_below_transactional_id,
                    message.v3_and_below_producer_id,
                    message.v3_and_below_producer_epoch,
                )
            )
        if asked.api_key == ApiKey.END_TXN:
            committer = (message.transactional_id, message.producer_id, message.producer_epoch)
            assert message.committed or committer not in sent, "abort after EndTxn(commit) was sent"
            if message.committed:
                sent.add(committer)
        if asked.api_key == ApiKey.PRODUCE:
            for topic in message.topic_data:
                for part in topic.partition_data:
                    data = bytes(part.records)
                    h = parse_header(data)
                    # A batch that was too large comes again in parts, the first from its sequence.
                    sequences = (h.base_sequence, h.record_count)
                    key = (topic.name, part.index, h.producer_id, h.producer_epoch, *sequences)
                    assert payloads.setdefault(key, data) == data, f"other bytes for {key}"


def restart_until_done(cluster: CoreBroker, plan: CommitPlan) -> CommitOutcome:
    """New drivers, one after another, as Spark's user would start them."""
    cluster.faults.clear()
    cluster.always.clear()
    for number in range(RESTARTS_MAX):
        try:
            return commit(cluster, changed(plan, run_id=f"restart-{number}"))
        except TxnLogError as error:
            last = error
    raise last
