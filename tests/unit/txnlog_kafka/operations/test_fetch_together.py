"""A Fetch for many partitions: its leaders, and the partitions that need their own Fetch."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from support.core.core_broker import CoreBroker

from txnlog_kafka.errors import CorruptData
from txnlog_kafka.operations.cluster_view import ClusterView, TopicView
from txnlog_kafka.operations.effects import Call, Calls, Reply, Unanswered
from txnlog_kafka.operations.fetch import SHARE_BYTES_MIN, fetch_together
from txnlog_kafka.operations.fetch_cursor import FetchCursor
from txnlog_kafka.operations.session_knowledge import FetchSizes
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.records import Record, encode_batch

FETCH = APIS[ApiKey.FETCH].response
A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
IDS = {"a": uuid.UUID(int=1), "b": uuid.UUID(int=2)}


def batch(base_offset: int, count: int = 2) -> bytes:
    return encode_batch([Record(None, b"v", 1)] * count, base_offset=base_offset)


class Leaders:
    """Leaders that answer a Fetch from a log of bytes or error codes by partition."""

    def __init__(self, log: dict[tuple[str, int], bytes | int], *, ids: bool = True) -> None:
        self.log = log
        self.asked: list[Call] = []
        self.silent: set[int] = set()
        self.throttling: set[int] = set()
        self.metadata_requests = 0
        self.session = CoreBroker(2).session()
        topics = {
            "a": TopicView(IDS["a"].bytes if ids else bytes(16), {0: 1, 1: 2}),
            "b": TopicView(IDS["b"].bytes if ids else bytes(16), {0: 1}),
        }
        self.session.cluster = ClusterView({1: ("h", 1), 2: ("h", 2)}, topics)

    def run(self, *cursors: FetchCursor):
        operation = fetch_together(self.session, cursors)
        outcome = None
        while True:
            try:
                ask = operation.send(outcome)
            except StopIteration as stop:
                return stop.value
            assert isinstance(ask, Calls)
            outcome = tuple(self._answer(call) for call in ask.calls)

    def _answer(self, call: Call) -> Reply | Unanswered:
        if type(call.message).__name__ == "MetadataRequest":
            self.metadata_requests += 1
            return Reply(APIS[ApiKey.METADATA].response(brokers=[], topics=[]), 12)
        self.asked.append(call)
        if call.node in self.silent:
            return Unanswered("silent", sent=True)
        if call.node in self.throttling:
            return Reply(FETCH(throttle_time_ms=500, responses=[]), 17)
        version = 17 if call.version_max is None else call.version_max
        topic_type = FETCH.FetchableTopicResponse
        topics = []
        for topic in reversed(call.message.topics):
            parts = []
            for p in topic.partitions:
                held = self.log.get((topic.topic, p.partition), b"")
                parts.append(
                    topic_type.PartitionData(
                        partition_index=p.partition,
                        error_code=held if isinstance(held, int) else E.NONE,
                        high_watermark=100,
                        aborted_transactions=[],
                        records=b"" if isinstance(held, int) else held,
                    )
                )
            named = {"topic": topic.topic} if version <= 12 else {"topic_id": topic.topic_id}
            topics.append(topic_type(partitions=parts, **named))
        return Reply(FETCH(responses=topics), version)


def cursor(partition: tuple[str, int], max_bytes: int = 1 << 20) -> FetchCursor:
    return FetchCursor(partition, 0, 90, read_committed=True, max_bytes=max_bytes)


@pytest.mark.parametrize("ids", [True, False])
def test_each_leader_is_asked_once_for_all_of_its_partitions(ids: bool) -> None:
    leaders = Leaders({A0: batch(0), A1: batch(4), B0: batch(0, 7)}, ids=ids)
    cursors = [cursor(p) for p in (A0, A1, B0)]
    found = leaders.run(*cursors)
    assert {p: f.next_offset for p, f in found.items()} == {A0: 2, A1: 6, B0: 7}
    assert [c.next_offset for c in cursors] == [2, 6, 7]
    assert [call.node for call in leaders.asked] == [1, 2]
    first = leaders.asked[0].message
    assert first.max_bytes == 1 << 20
    assert [p.partition_max_bytes for t in first.topics for p in t.partitions] == [1 << 19] * 2
    assert leaders.metadata_requests == 0


def test_the_bytes_of_each_of_many_have_a_lower_bound() -> None:
    leaders = Leaders({})
    leaders.run(cursor(A0, SHARE_BYTES_MIN), cursor(B0, SHARE_BYTES_MIN))
    (call,) = leaders.asked
    sizes = [p.partition_max_bytes for t in call.message.topics for p in t.partitions]
    assert sizes == [SHARE_BYTES_MIN] * 2


@pytest.mark.parametrize(
    "held",
    [b"", batch(0)[:-1], E.OFFSET_OUT_OF_RANGE, E.CORRUPT_MESSAGE, E.TOPIC_AUTHORIZATION_FAILED],
)
def test_a_partition_without_a_whole_batch_is_left_alone_and_the_others_are_taken(
    held: bytes | int,
) -> None:
    leaders = Leaders({A0: held, B0: batch(0)})
    left = cursor(A0)
    assert set(leaders.run(left, cursor(B0))) == {B0}
    assert left.next_offset == 0
    assert leaders.session.cluster.leader(A0) == 1


def test_a_leader_that_moved_or_does_not_answer_is_looked_for_before_the_next_fetch() -> None:
    leaders = Leaders({A0: E.NOT_LEADER_OR_FOLLOWER, B0: batch(0)})
    leaders.silent = {2}
    assert set(leaders.run(cursor(A0), cursor(A1), cursor(B0))) == {B0}
    assert [leaders.session.cluster.leader(p) for p in (A0, A1, B0)] == [-1, -1, 1]
    assert leaders.run(cursor(A0), cursor(A1)) == {}
    assert leaders.metadata_requests == 1


def test_a_leader_that_throttles_is_still_the_leader() -> None:
    leaders = Leaders({A1: batch(0)})
    leaders.throttling = {1}
    assert set(leaders.run(cursor(A0), cursor(A1))) == {A1}
    assert leaders.session.cluster.leader(A0) == 1


def test_a_range_is_of_the_topic_that_it_was_planned_in_and_not_of_one_that_has_its_name_now() -> (
    None
):
    planned = uuid.UUID(int=9)
    leaders = Leaders({A0: batch(0), B0: batch(0)})
    of_former = replace(cursor(A0), topic_id=planned.bytes)
    assert set(leaders.run(of_former, cursor(B0))) == {A0, B0}
    (call,) = leaders.asked
    assert {each.topic: each.topic_id for each in call.message.topics} == {
        "a": planned,
        "b": IDS["b"],
    }
    named = Leaders({A0: batch(0)}, ids=False)
    assert set(named.run(replace(of_former, next_offset=0))) == {A0}, "a broker without topic ids"


def test_damaged_bytes_are_refused() -> None:
    damaged = bytearray(batch(0) + batch(2))
    damaged[16] = 1  # the magic byte
    with pytest.raises(CorruptData):
        Leaders({A0: bytes(damaged), B0: batch(0)}).run(cursor(A0), cursor(B0))


def asked_bytes(leaders: Leaders) -> list[int]:
    return [
        p.partition_max_bytes
        for call in leaders.asked
        for t in call.message.topics
        for p in t.partitions
    ]


def test_what_a_range_takes_is_asked_for_once_answers_have_shown_it() -> None:
    """The client asks for two batches more, because a range may begin and end inside a batch."""
    held = batch(0, 10)
    leaders = Leaders({A0: held, B0: b""})
    leaders.run(cursor(A0), cursor(B0))
    assert asked_bytes(leaders) == [1 << 19] * 2
    leaders.asked.clear()
    again = FetchCursor(A0, 0, 20, read_committed=True, max_bytes=1 << 20)
    leaders.run(again, cursor(B0))
    assert asked_bytes(leaders) == [len(held) * 2 * 9 // 8 + 2 * len(held), 1 << 19]


def test_a_large_batch_of_late_is_remembered_for_a_while() -> None:
    sizes = FetchSizes()
    sizes.note("t", 1000, 10, 800)
    for batch_bytes in (400, 200, 100, 50):
        sizes.note("t", 1000, 1000, 10)
        assert sizes.wanted_bytes("t", 8, 5000) == 9 + 2 * batch_bytes
    assert sizes.wanted_bytes("t", 10**9, 5000) == 5000
    assert sizes.wanted_bytes("u", 8, 5000) == 5000


def test_the_sizes_of_an_answer_are_noted_once() -> None:
    small = batch(0, 1)
    leaders = Leaders({A0: small, B0: b""})
    leaders.session.fetch_sizes.note("a", 8000, 10, 8000)
    leaders.run(cursor(A0), cursor(B0))
    wanted = leaders.session.fetch_sizes.wanted_bytes("a", 0, 1 << 20)
    assert wanted == 2 * 4000
