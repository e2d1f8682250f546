"""Produce: pipelined, in order, each staged batch exactly once whatever a leader answers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
from support.core.core_broker import CoreBroker
from support.core.scripted_faults import ANSWER_LOST, LOST, refused
from support.query.commit_plans import (
    build_plan,
    commit,
    put_progress,
    record_batch,
    staged,
    with_baseline,
)
from support.query.staged_pieces import piece_of

from txnlog_kafka.errors import (
    AbortableError,
    RecordRefused,
    RemoteProtocolError,
    StagedBatchesInvalid,
    UnknownTopic,
)
from txnlog_kafka.operations.produce import Produced, produce_staged, staged_totals
from txnlog_kafka.operations.producer import ProducePlan, StagedChunk
from txnlog_kafka.operations.transaction import Transaction, add_to_transaction, init_producer_id
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.records import SEQUENCE_MAX, parse_header
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import TransactionTimedOut

FOUR_LEADERS = {("out", p): 1 + p % 2 for p in range(4)} | {("in", 0): 1}


def produce_only(cluster, plan, produced=None, sequences=None):
    """Produce inside a transaction of its own, without the rest of a commit."""

    def operation(session):
        identity = yield from init_producer_id(session, "t", 60_000)
        version = cluster.transaction_version
        transaction = Transaction("t", identity.producer_id, identity.producer_epoch, version)
        transaction.sequences |= sequences or {}
        if version < 2:
            yield from add_to_transaction(session, transaction, list(transaction.sequences), ())
        yield from produce_staged(session, transaction, plan, produced or Produced())
        return transaction

    return cluster.run(operation(cluster.session()))


def appended(cluster, partition: int) -> list[bytes]:
    return cluster.values("out", partition)


def many(partition: int, count: int) -> tuple[StagedChunk, ...]:
    pieces = [record_batch(f"{partition}.{i:03}" + "x" * 50) for i in range(count)]
    return staged("out", partition, *pieces)


def values(partition: int, count: int) -> list[bytes]:
    return [f"{partition}.{i:03}".encode() + b"x" * 50 for i in range(count)]


def entries(message):
    return [
        (t.name, p.index, bytes(p.records)) for t in message.topic_data for p in t.partition_data
    ]


def test_work_is_pipelined_to_all_leaders_within_the_limits():
    cluster = CoreBroker(2, leaders=FOUR_LEADERS, nodes=(1, 2))
    staged_rows = tuple(chunk for p in range(4) for chunk in many(p, 40))
    produce_only(cluster, ProducePlan(0, staged_rows, produce_request_bytes=300))
    assert max(cluster.most_in_flight.values()) == 5
    assert {node for node, most in cluster.most_in_flight.items() if most > 1} == {1, 2}
    for message in cluster.requests(K.PRODUCE):
        parts = [(topic, index) for topic, index, _ in entries(message)]
        assert len(parts) == len(set(parts)), "one batch per partition and request"
    for p in range(4):
        assert appended(cluster, p) == values(p, 40)


def test_small_partitions_share_a_request():
    cluster = CoreBroker(2, leaders={("out", p): 1 for p in range(50)} | {("in", 0): 1})
    commit(cluster, build_plan(staged=tuple(chunk for p in range(50) for chunk in many(p, 1))))
    assert cluster.apis().count(K.PRODUCE) == 1


def test_several_staged_parts_of_one_partition_keep_their_order(cluster):
    parts = (
        *staged("out", 0, record_batch("a"), record_batch("b")),
        *staged("out", 1, record_batch("z")),
        *staged("out", 0, record_batch("c") + record_batch("d")),
    )
    commit(cluster, build_plan(staged=parts))
    assert cluster.committed_values("out", 0) == [b"a", b"b", b"c", b"d"]


def test_out_of_order_in_front_loses_the_transaction():
    """docs/internals/faults.md B17: never InitProducerId in the middle and then commit."""
    cluster = with_baseline()
    cluster.script(K.PRODUCE, refused(E.OUT_OF_ORDER_SEQUENCE_NUMBER))
    with pytest.raises(AbortableError):
        commit(cluster, build_plan(attempts_max=1))
    assert [m.committed for m in cluster.requests(K.END_TXN)] == [False]


# ------------------------------------------------------------------ what was acknowledged


@pytest.mark.invariant(62)
@pytest.mark.parametrize("fault", [None, LOST, ANSWER_LOST], ids=["none", "lost", "answer"])
def test_what_was_acknowledged_is_what_was_staged_each_batch_once(cluster, fault):
    cluster.script(K.PRODUCE, None, fault, None, fault)
    plan = ProducePlan(0, (*many(0, 12), *many(1, 7)), produce_request_bytes=100)
    produced = Produced()
    produce_only(cluster, plan, produced)
    assert produced == staged_totals(plan.staged)
    assert (produced.records, produced.partitions) == (19, {("out", 0), ("out", 1)})


def notices(ms_a_request, timeout_ms, error=None, count=40):
    """Return the notices, with their times, while `count` batches are produced, each in its own
    request."""
    cluster = CoreBroker(
        2, delay_ms=lambda asked: ms_a_request if asked.api_key == K.PRODUCE else 0
    )
    put_progress(cluster, 0)
    told = []
    session = cluster.session()
    session.notice = lambda text: told.append((cluster.now_ms, text))
    plan = build_plan(
        staged=many(0, count), produce_request_bytes=100, transaction_timeout_ms=timeout_ms
    )
    with pytest.raises(error) if error else nullcontext():
        commit(cluster, plan, session)
    return told


def test_a_batch_too_slow_for_its_transaction_timeout_is_told_once_and_early():
    ((now_ms, text),) = notices(2_000, 60_000, TransactionTimedOut)
    assert now_ms < 10_000
    assert "kafka.transaction.timeout.ms to 120000 or more" in text
    assert "after 6.0 s" in text
    assert "of 0.0 MB" in text
    assert "MB/s" in text
    assert "80 s in all" in text
    assert "after 60 s" in text
    assert "\n" not in text


def test_a_batch_that_will_be_done_in_time_is_not_talked_about():
    assert notices(1_000, 60_000) == []
    assert notices(10_000, 900_000) == []


def test_a_short_timeout_is_warned_of_before_it_is_over():
    ((now_ms, text),) = notices(100, 2_000)
    assert now_ms < 2_000
    assert "kafka.transaction.timeout.ms to 60000" in text


def test_a_session_that_was_told_nothing_else_ignores_notices():
    cluster = CoreBroker(2, delay_ms=lambda _call: 10_000)
    plan = build_plan(staged=many(0, 12), produce_request_bytes=100)
    assert commit(cluster, plan).produced_records == 12


def test_after_an_error_the_caller_knows_how_far_it_got(cluster):
    cluster.script(K.PRODUCE, *[None] * 3, refused(E.MESSAGE_TOO_LARGE))
    plan = ProducePlan(0, many(0, 12), produce_request_bytes=100)
    produced = Produced()
    with pytest.raises(RecordRefused):
        produce_only(cluster, plan, produced)
    assert produced.records == 3
    assert produced.bytes == 3 * len(record_batch("0.000" + "x" * 50))


def test_sequences_wrap_to_0_within_a_batch():
    """docs/internals/faults.md B15.

    In version 2 a leader expects 0 of a producer it does not know.
    """
    cluster = CoreBroker(1)
    five = record_batch(*"abcde")
    plan = ProducePlan(0, staged("out", 0, five, record_batch("f")))
    near_end = {TopicPartition("out", 0): SEQUENCE_MAX - 1}
    transaction = produce_only(cluster, plan, sequences=near_end)
    sent = [parse_header(r).base_sequence for m in cluster.requests(K.PRODUCE)
            for _, _, r in entries(m)]  # fmt: skip
    assert sent == [SEQUENCE_MAX - 1, 3]
    assert transaction.sequences == {("out", 0): 4}


def test_progress_keeps_the_deadline_away(cluster):
    handle, tried = cluster.handle, set()

    def each_lost_once(asked):
        if asked.api_key == K.PRODUCE:
            (data,) = asked.message.topic_data
            (batch,) = data.partition_data
            if (sent := bytes(batch.records)) not in tried:
                tried.add(sent)
                cluster.script(K.PRODUCE, LOST)
        return handle(asked)

    cluster.handle = each_lost_once
    plan = build_plan(staged=many(0, 24), produce_request_bytes=100)
    session = cluster.session(request_timeout_ms=3_000, operation_timeout_ms=40_000)
    assert not commit(cluster, plan, session).skipped
    assert cluster.now_ms > 40_000


@pytest.mark.parametrize(
    ("partition", "text"), [(("nowhere", 0), "does not exist"), (("out", 7), "no partition 7")]
)
def test_a_topic_or_partition_that_is_not_there_is_named(cluster, partition, text):
    with pytest.raises(UnknownTopic, match=text) as caught:
        commit(cluster, build_plan(staged=staged(*partition, record_batch("a"))))
    assert caught.value.topics == (partition[0],)
    assert K.PRODUCE not in cluster.apis()


def test_an_answer_that_leaves_a_partition_out_is_refused(cluster):
    original = cluster.answer

    def without_partitions(asked, message):
        if asked.api_key == K.PRODUCE:
            message.responses = []
        return original(asked, message)

    cluster.answer = without_partitions
    with pytest.raises(RemoteProtocolError, match="leaves out out-0"):
        commit(cluster, build_plan())


def test_an_old_broker_in_a_version_2_cluster_is_refused_before_data_can_hang():
    cluster = CoreBroker(2, versions_max={K.PRODUCE: 11})
    with pytest.raises(RemoteProtocolError, match=r"transaction\.version 2"):
        commit(cluster, build_plan())


# ------------------------------------------------------------------ staged bytes


def _flip(data: bytes, position: int) -> bytes:
    flipped = bytearray(data)
    flipped[position] ^= 1
    return bytes(flipped)


GOOD = record_batch("a", "b")


@pytest.mark.parametrize(
    ("announced", "piece"),
    [
        pytest.param(len(GOOD), _flip(GOOD, len(GOOD) - 1), id="bit"),
        pytest.param(len(GOOD), _flip(GOOD, 25), id="attributes"),
        pytest.param(len(GOOD), GOOD[:-1], id="torn"),
        pytest.param(len(GOOD), GOOD + b"\x00", id="trailing"),
        pytest.param(len(GOOD), GOOD[:40], id="half header"),
        pytest.param(len(GOOD), b"\x00" * 80, id="zeros"),
        pytest.param(7, GOOD, id="announced much shorter"),
        pytest.param(len(GOOD) - 1, GOOD, id="announced shorter"),
        pytest.param(len(GOOD) + 1, GOOD, id="announced longer"),
        pytest.param(2 * len(GOOD), GOOD, id="announced twice as long"),
    ],
)
def test_staged_bytes_that_are_not_what_was_announced_are_never_produced(cluster, announced, piece):
    changed = replace(piece_of(GOOD), size_bytes=announced, source=lambda _, __: piece)
    parts = (*staged("out", 1, GOOD), piece_of(GOOD), changed)
    with pytest.raises(StagedBatchesInvalid, match="out-0"):
        commit(cluster, build_plan(staged=parts))
    assert not cluster.committed_values("out", 0)
    assert not cluster.committed_values("out", 1)


def test_a_staged_file_that_is_gone_is_a_clear_error(cluster):
    def gone():
        raise FileNotFoundError("staging/part-0")

    pieces = [piece_of(GOOD), piece_of(gone, size_bytes=len(GOOD))]
    plan = build_plan(staged=pieces, produce_request_bytes=10)
    with pytest.raises(StagedBatchesInvalid, match="staging/part-0"):
        commit(cluster, plan)
    assert not cluster.committed_values("out", 0)


def test_a_batch_that_has_a_producer_already_is_refused():
    stamped = CoreBroker(2)
    commit(stamped, build_plan())
    used = stamped.log_bytes("out", 0)[: stamped.batches("out", 0)[0].header.size_bytes]
    with pytest.raises(StagedBatchesInvalid, match="not a blank"):
        commit(CoreBroker(2), build_plan(staged=staged("out", 0, used)))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_staged_pieces_may_be_any_bytes_and_only_a_bytearray_is_stamped_where_it_is(cluster, kind):
    piece = kind(GOOD)
    commit(cluster, build_plan(staged=[piece_of(piece)]))
    assert (bytes(piece) == GOOD) == (kind is not bytearray)
    assert cluster.committed_values("out", 0) == [b"a", b"b"]
