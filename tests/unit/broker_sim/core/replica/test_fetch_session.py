"""Fetch sessions at the broker: which request goes on with one, which gives way, what is news."""

from __future__ import annotations

import uuid
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from support.core.broker_build import BrokerOnDisk, fetch_request, request

from broker_sim.core.config.key import INT32_MAX
from broker_sim.core.replica.changes import Changes
from broker_sim.core.replica.fetch_session import (
    EVICTION_MS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    FetchContext,
    FetchedPartition,
    FetchSession,
    FetchSessions,
    Key,
    next_epoch,
)
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import iter_batches
from txnlog_kafka.wire.topic_partition import TopicPartition


def key(number: int) -> Key:
    return ("orders", 0, number)


def partition_of(number: int) -> FetchedPartition:
    return FetchedPartition(key(number), uuid.UUID(int=0), SimpleNamespace(fetch_offset=0))


def named(*numbers: int) -> dict[Key, FetchedPartition]:
    return {key(number): partition_of(number) for number in numbers}


class Cache:
    """Sessions, and the time."""

    def __init__(self, slots: int = 10) -> None:
        self.sessions = FetchSessions(slots, Random(1))
        self.now_ms = 0

    def create(self, *numbers: int, privileged: bool = False) -> int:
        return self.sessions.create(
            named(*numbers),
            "client",
            is_privileged=privileged,
            uses_topic_ids=False,
            now_ms=self.now_ms,
        )

    def context(
        self,
        session_id: int,
        epoch: int,
        *numbers: int,
        forget: tuple[int, ...] = (),
        asker: str = "client",
        by_id: bool = False,
    ) -> FetchContext | ErrorCode:
        message = SimpleNamespace(session_id=session_id, session_epoch=epoch)
        return self.sessions.context(
            message,
            named(*numbers),
            map(key, forget),
            asker,
            uses_topic_ids=by_id,
            now_ms=self.now_ms,
        )

    def session(self, session_id: int, epoch: int, *numbers: int) -> FetchSession:
        """The session that a request goes on with."""
        found = self.context(session_id, epoch, *numbers)
        assert isinstance(found, FetchContext)
        assert found.session is not None
        return found.session

    def changed(self, *names: tuple[str, int]) -> list[FetchSession]:
        changes = Changes()
        for name in names:
            changes.add(TopicPartition(*name))
        return self.sessions.on_changed(changes)

    def wanted(self, *args: Any, **options: Any) -> list[int]:
        found = self.context(*args, **options)
        assert isinstance(found, FetchContext)
        return [each.key[2] for each in found.wanted()]


# --------------------------------------------------------------------------- which session


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (lambda own: (own + 1, 1), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (lambda _: (INVALID_SESSION_ID, 1), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (lambda own: (own, 2), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (lambda own: (own, -2), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ],
)
def test_a_request_that_goes_on_with_no_session_is_refused(asked, error) -> None:
    cache = Cache()
    assert cache.context(*asked(cache.create(0))) is error


def test_a_session_names_topics_in_one_way() -> None:
    cache = Cache()
    session_id = cache.create(0)
    assert cache.context(session_id, 1, by_id=True) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert isinstance(cache.context(session_id, 1), FetchContext)


def test_each_request_has_the_next_epoch() -> None:
    cache = Cache()
    session_id = cache.create(0)
    for epoch in (1, 2, 3):
        assert isinstance(cache.context(session_id, epoch), FetchContext)
    assert cache.context(session_id, 3) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert next_epoch(INT32_MAX) == 1


@pytest.mark.parametrize("epoch", [INITIAL_EPOCH, FINAL_EPOCH])
def test_a_whole_request_closes_the_session_that_it_names(epoch: int) -> None:
    cache = Cache()
    session_id = cache.create(0)
    assert cache.wanted(session_id, epoch, 5) == [5]
    assert cache.context(session_id, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(cache.sessions) == 0


def test_a_session_without_partitions_is_closed() -> None:
    cache = Cache()
    session_id = cache.create(0)
    found = cache.context(session_id, 1, forget=(0,))
    assert isinstance(found, FetchContext)
    assert (found.session, list(found.wanted())) == (None, [])
    assert len(cache.sessions) == 0


# --------------------------------------------------------------------------- what is looked at


def settled(cache: Cache, *numbers: int, privileged: bool = False) -> int:
    """A session whose partitions have been looked at, and have nothing new."""
    session_id = cache.create(*numbers, privileged=privileged)
    session = cache.session(session_id, 1)
    for partition in session.wanted():
        cache.sessions.watch(session, partition, TopicPartition("orders", partition.key[2]))
        session.settle(partition)
    return session_id


def test_at_first_all_is_looked_at_and_then_what_is_named_or_has_changed() -> None:
    cache = Cache()
    session_id = settled(cache, 0, 1, 2, 3)
    assert cache.wanted(session_id, 2) == []
    cache.changed(("orders", 2), ("other", 1))
    assert cache.wanted(session_id, 3, 1, 7) == [2, 1, 7]


def test_what_is_forgotten_is_not_heard_of_any_more() -> None:
    cache = Cache()
    session_id = settled(cache, 0, 1)
    cache.changed(("orders", 1))
    assert cache.wanted(session_id, 2, forget=(1, 9)) == []
    assert cache.changed(("orders", 1)) == []
    assert cache.wanted(session_id, 3) == []


def test_who_asks_otherwise_is_told_of_all() -> None:
    cache = Cache()
    session_id = settled(cache, 0, 1)
    assert cache.wanted(session_id, 2, asker="another") == [0, 1]


def test_a_session_that_is_gone_hears_of_nothing() -> None:
    cache = Cache()
    cache.context(settled(cache, 0, 1), FINAL_EPOCH)
    assert cache.changed(("orders", 0)) == []


def test_a_topic_that_was_created_again_is_heard_of_though_the_old_one_is_forgotten() -> None:
    cache = Cache()
    session_id = settled(cache, 0)
    session = cache.session(session_id, 2, 5)
    cache.sessions.watch(session, session.partitions[key(5)], TopicPartition("orders", 0))
    session.settle(session.partitions[key(5)])
    assert cache.wanted(session_id, 3, forget=(0,)) == []
    cache.changed(("orders", 0))
    assert cache.wanted(session_id, 4) == [5]


@pytest.mark.parametrize("privileged", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_an_append_is_for_followers_and_a_commit_for_consumers(privileged, committed) -> None:
    """A change may be news to followers and consumers, but only one of the two may read more."""
    cache = Cache()
    session_id = settled(cache, 0, privileged=privileged)
    changes, name = Changes(), TopicPartition("orders", 0)
    if committed:
        changes.committed(name)
    else:
        changes.appended(name)
    assert bool(cache.sessions.on_changed(changes)) is (privileged is not committed)
    assert cache.wanted(session_id, 2) == [0]


def answer(**fields: Any) -> SimpleNamespace:
    quiet = {
        "error_code": 0, "preferred_read_replica": -1, "diverging_epoch": None,
        "high_watermark": 5, "log_start_offset": 1,
    }  # fmt: skip
    return SimpleNamespace(**quiet | fields)


@pytest.mark.parametrize(
    ("fields", "news"),
    [
        ({}, False),
        ({"high_watermark": 6}, True),
        ({"log_start_offset": 2}, True),
        ({"error_code": 1}, True),
        ({"preferred_read_replica": 2}, True),
        ({"diverging_epoch": SimpleNamespace(epoch=1, end_offset=0)}, True),
        ({"diverging_epoch": SimpleNamespace(epoch=-1, end_offset=-1)}, False),
    ],
)
def test_what_is_news(fields: dict[str, Any], news: bool) -> None:
    partition = partition_of(0)
    partition.on_answered(answer())
    assert partition.has_news(answer(**fields)) is news


def test_after_an_error_all_is_news() -> None:
    partition = partition_of(0)
    partition.on_answered(answer(error_code=3))
    assert partition.has_news(answer())


# --------------------------------------------------------------------------- who gives way

OLD = EVICTION_MS + 1


@pytest.mark.parametrize(
    ("held", "idle_ms", "asks", "gets"),
    [
        ({"size": 1}, 0, {"size": 5}, False),
        ({"size": 1}, OLD, {"size": 1}, True),
        ({"size": 9, "privileged": True}, OLD, {"size": 1}, True),
        ({"size": 9}, 0, {"size": 1, "privileged": True}, True),
        ({"size": 1, "privileged": True}, 0, {"size": 9, "privileged": True}, False),
        ({"size": 2, "used": True}, 0, {"size": 3}, True),
        ({"size": 2, "used": True}, 0, {"size": 2}, False),
        ({"size": 1, "privileged": True, "used": True}, 0, {"size": 9}, False),
        ({"size": 1, "privileged": True, "used": True}, 0, {"size": 9, "privileged": True}, True),
    ],
)
def test_who_gives_way_when_there_is_no_place(held, idle_ms, asks, gets) -> None:
    """`used`: it is older than two minutes, and was used just now."""
    cache = Cache(slots=1)
    first = cache.create(*range(held["size"]), privileged=held.get("privileged", False))
    if held.get("used"):
        cache.now_ms += OLD
        cache.context(first, 1)
    cache.now_ms += idle_ms
    made = cache.create(*range(asks["size"]), privileged=asks.get("privileged", False))
    assert (made != INVALID_SESSION_ID) is gets
    assert len(cache.sessions) == 1
    assert (cache.context(first, 2) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND) is gets


def test_without_slots_there_are_no_sessions() -> None:
    assert Cache(slots=0).create(0) == INVALID_SESSION_ID


# --------------------------------------------------------------------------- in a broker


class Client:
    """Fetches of one session, answered at once."""

    def __init__(self, broker: BrokerOnDisk, **fields: Any) -> None:
        self.broker = broker
        self.fields = {"max_wait_ms": 0} | fields
        self.session_id = INVALID_SESSION_ID
        self.epoch = INITIAL_EPOCH

    def request(self, *offsets: tuple[int, int], forget: tuple[int, ...] = ()) -> Any:
        made = fetch_request(
            "orders", session_id=self.session_id, session_epoch=self.epoch, **self.fields
        )
        topics, made.topics = made.topics, []
        for partition, offset in offsets:
            made.topics += fetch_request("orders", offset, partition=partition).topics
        forgotten = type(made).ForgottenTopic
        made.forgotten_topics_data = [
            forgotten(topic="orders", topic_id=topics[0].topic_id, partitions=list(forget))
        ]
        return made

    def fetch(self, *offsets: tuple[int, int], forget: tuple[int, ...] = ()) -> dict[int, Any]:
        """The partitions of the answer, which must have no error."""
        return self.take(self.broker.ask(self.request(*offsets, forget=forget), 12))

    def take(self, answer: Any) -> dict[int, Any]:
        assert answer.error_code == 0
        self.session_id, self.epoch = answer.session_id, self.epoch + 1
        return {p.partition_index: p for topic in answer.responses for p in topic.partitions}


@pytest.fixture
def broker() -> BrokerOnDisk:
    made = BrokerOnDisk()
    made.create_topic("orders", 4)
    return made


def all_of(offset: int = 0) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(4)]


def offsets_of(partition: Any) -> list[int]:
    return [header.base_offset for header, _ in iter_batches(bytes(partition.records or b""))]


def test_only_partitions_with_news_are_answered(broker: BrokerOnDisk) -> None:
    client = Client(broker)
    assert set(client.fetch(*all_of())) == {0, 1, 2, 3}
    assert client.fetch() == {}
    broker.produce("orders", "a", partition=2)
    found = client.fetch()
    assert {number: offsets_of(each) for number, each in found.items()} == {2: [0]}
    assert set(client.fetch()) == {2}, "it was not asked for another offset"
    assert client.fetch((2, 1)) == {}


def test_a_quiet_partition_is_not_looked_at(broker: BrokerOnDisk) -> None:
    client = Client(broker)
    client.fetch(*all_of())
    client.fetch()
    session = broker.parts.sessions._by_id[client.session_id]
    assert session.wanted() == []
    broker.produce("orders", "a", partition=3)
    assert [each.key[2] for each in session.wanted()] == [3]


def test_a_long_poll_of_a_session_is_answered_by_an_append(broker: BrokerOnDisk) -> None:
    client = Client(broker, max_wait_ms=500)
    broker.produce("orders", "a")
    client.fetch(*all_of())
    sent = broker.send(client.request((0, 1)), 12)
    assert sent not in broker.asked.answers
    broker.produce("orders", "b", partition=1)
    found = client.take(broker.asked.answers[sent])
    assert {number: offsets_of(each) for number, each in found.items()} == {1: [0]}
    assert len(broker.parts.fetches) == 0


def test_a_session_waits_for_min_bytes_and_tells_at_the_deadline_what_there_is(broker) -> None:
    client = Client(broker, max_wait_ms=300, min_bytes=10_000)
    sent = broker.send(client.request(*all_of()), 12)
    broker.advance(300)
    client.take(broker.asked.answers[sent])
    sent = broker.send(client.request(), 12)
    broker.produce("orders", "a")
    assert sent not in broker.asked.answers
    broker.advance(300)
    assert offsets_of(client.take(broker.asked.answers[sent])[0]) == [0]


def test_a_request_that_was_overtaken_is_refused(broker: BrokerOnDisk) -> None:
    client = Client(broker, max_wait_ms=300)
    sent = broker.send(client.request(*all_of()), 12)
    broker.advance(300)
    client.take(broker.asked.answers[sent])
    lost = broker.send(client.request(), 12)
    client.epoch += 1
    broker.send(client.request(), 12, connection_id=2)
    broker.advance(300)
    assert broker.asked.answers[lost].error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_an_error_is_told_again_and_again_until_it_is_gone(broker: BrokerOnDisk) -> None:
    client = Client(broker, max_wait_ms=500)
    found = client.fetch((0, 5), (9, 0))
    assert found[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert found[9].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert set(client.fetch()) == {0, 9}
    assert set(client.fetch((0, 0))) == {0, 9}
    client.fields["max_wait_ms"] = 0
    assert client.fetch(forget=(9,)) == {}


def test_of_more_than_an_answer_holds_the_rest_comes_first_next_time(broker: BrokerOnDisk) -> None:
    client = Client(broker, max_bytes=1)
    for partition in (0, 1, 2):
        broker.produce("orders", "a", partition=partition)
    seen = []
    asked = all_of()
    for _ in range(3):
        (number,) = [n for n, each in client.fetch(*asked).items() if each.records]
        seen.append(number)
        asked = [(number, 1)]
    assert sorted(seen) == [0, 1, 2]


def test_a_log_start_that_has_moved_is_news(broker: BrokerOnDisk) -> None:
    broker.produce("orders", "a")
    client = Client(broker)
    client.fetch(*all_of(0)[1:], (0, 1))
    client.fetch()
    places = [{"partition_index": 0, "offset": 1}]
    topics = [{"name": "orders", "partitions": places}]
    broker.ask(request(ApiKey.DELETE_RECORDS, topics=topics, timeout_ms=100), 2)
    assert {n: each.log_start_offset for n, each in client.fetch().items()} == {0: 1}


def test_a_deleted_topic_is_told_to_its_sessions(broker: BrokerOnDisk) -> None:
    client = Client(broker)
    client.fetch(*all_of())
    client.fetch()
    broker.delete_topic("orders")
    codes = {each.error_code for each in client.fetch().values()}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
