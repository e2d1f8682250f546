"""Plans of micro-batches for tests of the commit operation, and what must hold afterwards."""

from __future__ import annotations

import dataclasses

from support.scripted_broker import ScriptedCluster
from support.staged_pieces import served, staged_of
from txnlog_spark.commit.micro_batch import commit_micro_batch as commit
from txnlog_spark.commit.plan import CommitOutcome, CommitPlan
from txnlog_spark.commit.progress import newest_progress
from txnlog_spark.errors import TxnLogError
from txnlog_spark.protocol.offsets import CommittedOffset
from txnlog_spark.protocol.values import ProducerIdentity, StagedPartition
from txnlog_spark.wire.messages import ApiKey
from txnlog_spark.wire.records import Record, encode_batch, parse_header

QUERY = "query-1"
PROGRESS_GROUP = "t.progress.query-1"
RESTARTS_MAX = 4


def record_batch(*values: str) -> bytes:
    """A staged batch of these values."""
    return encode_batch([Record(None, v.encode(), 1) for v in values])


def staged(topic: str, partition: int, *pieces: bytes) -> StagedPartition:
    """Staged pieces of one partition."""
    return staged_of(topic, partition, pieces)


def build_plan(batch_id: int = 0, **changes) -> CommitPlan:
    """Five records in two partitions, a source group, and the progress."""
    plan = CommitPlan(
        query_id=QUERY,
        run_id="run-1",
        batch_id=batch_id,
        transactional_id="t",
        progress_group_id=PROGRESS_GROUP,
        progress_partition=("out", 0),
        staged=(
            staged("out", 0, record_batch("a0", "a1"), record_batch("a2")),
            staged("out", 1, record_batch("b0"), record_batch("b1")),
        ),
        group_id="g",
        source_offsets={("in", 0): 5},
        source_digest="digest-5",
        batch_hash=f"planned-{batch_id}",
        is_pinned=True,
        must_exist=batch_id > 0,
    )
    return dataclasses.replace(plan, **changes)


EXPECTED = {("out", 0): [b"a0", b"a1", b"a2"], ("out", 1): [b"b0", b"b1"]}


def is_committed(cluster: ScriptedCluster, plan: CommitPlan) -> bool:
    """Whether the batch is wholly visible; fails when it is visible in part, or twice."""
    seen = {p: cluster.state.committed_values(p) for p in EXPECTED}
    committed = seen == EXPECTED
    assert committed or not any(seen.values()), f"torn or doubled: {seen}"
    offsets = cluster.state.offsets
    progress = newest_progress(
        QUERY, [CommittedOffset(o, m) for o, m in offsets[PROGRESS_GROUP].values()]
    )
    reached = progress is not None and progress.next_batch_id == plan.batch_id + 1
    assert reached == committed, "progress and records must agree"
    assert (offsets["g"].get(("in", 0)) == (5, "")) == committed, "offsets and records must agree"
    return committed


def nothing_is_written(cluster: ScriptedCluster, since: int = 0) -> bool:
    """Whether no record was sent and no transaction committed, after so many requests."""
    return not any(
        each.api_key == ApiKey.PRODUCE
        or (each.api_key == ApiKey.END_TXN and each.message.committed)
        for each in cluster.asked[since:]
    )


def check_wire_discipline(cluster: ScriptedCluster) -> None:
    """No abort after EndTxn(commit); one payload per (partition, producer, epoch, sequences)."""
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
            who = (message.transactional_id, message.producer_id, message.producer_epoch)
            assert message.committed or who not in sent, "abort after EndTxn(commit) was sent"
            if message.committed:
                sent.add(who)
        if asked.api_key == ApiKey.PRODUCE:
            for topic in message.topic_data:
                for part in topic.partition_data:
                    data = bytes(part.records)
                    h = parse_header(data)
                    # A batch that was too large comes again in parts, the first from its sequence.
                    sequences = (h.base_sequence, h.record_count)
                    key = (topic.name, part.index, h.producer_id, h.producer_epoch, *sequences)
                    assert payloads.setdefault(key, data) == data, f"other bytes for {key}"


def restart_until_done(cluster: ScriptedCluster, plan: CommitPlan) -> CommitOutcome:
    """New drivers, one after another, as Spark's user would start them."""
    cluster.faults.clear()
    cluster.always.clear()
    for _ in range(RESTARTS_MAX):
        try:
            return cluster.run(commit(cluster.session(), None, plan))
        except TxnLogError as error:
            last = error
    raise last


def commit_on(client, identity: ProducerIdentity | None, plan: CommitPlan) -> CommitOutcome:
    """The commit of one plan on a real client."""
    return client.run(served(commit(client.session, identity, plan)))


def spent(identity: ProducerIdentity) -> ProducerIdentity:
    """The identity as it has to be used after an exception in the same run."""
    return dataclasses.replace(
        identity, initialised=False, sequences={}, last_batch_id=None, transaction_version=0
    )
