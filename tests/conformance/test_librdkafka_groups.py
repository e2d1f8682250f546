"""Consumer groups of librdkafka: assignors, joins and leaves, static members, stored offsets."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from support.brokers.probe import wait_until
from support.clients.librdkafka import (
    TIMEOUT_S,
    committed_offsets,
    consumer,
    create_topic,
    poll_count,
    produce_values,
    transactional,
)

PARTITIONS = 6


class Member:
    """A consumer that writes down what its rebalance callbacks were told."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings) -> None:
        self.consumer = consumer(bootstrap, group, heartbeat_interval_ms=200, **settings)
        self.assigned: list[int] = []
        self.revoked: list[int] = []
        self.lost: list[int] = []
        self.consumer.subscribe(
            [topic],
            on_assign=lambda _, places: self.assigned.append(len(places)),
            on_revoke=lambda _, places: self.revoked.append(len(places)),
            on_lost=lambda _, places: self.lost.append(len(places)),
        )

    @property
    def share(self) -> list[int]:
        """The partitions it has now."""
        return sorted(place.partition for place in self.consumer.assignment())


def shared(members: list[Member]) -> bool:
    """Serve each member once; whether together they have each partition once, evenly."""
    for each in members:
        each.consumer.poll(0.02)
    shares = [each.share for each in members]
    whole = sorted(number for share in shares for number in share)
    return whole == list(range(PARTITIONS)) and len({len(share) for share in shares}) == 1


@pytest.fixture
def topic(broker, unique) -> str:
    """An empty topic of six partitions."""
    return create_topic(broker.bootstrap_servers, unique("shared"), PARTITIONS)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_three_members_come_and_go_and_always_share_all_partitions(broker, topic, unique, assignor):
    settings = {"partition_assignment_strategy": assignor}
    group = unique("group")
    members: list[Member] = []
    try:
        for count in (1, 2, 3):
            members.append(Member(broker.bootstrap_servers, group, topic, **settings))
            wait_until(lambda: shared(members), f"{count} even shares")
        members.pop(0).consumer.close()
        wait_until(lambda: shared(members), "two even shares after one left")
        assert not any(each.lost for each in members)
    finally:
        for each in members:
            each.consumer.close()


def test_a_cooperative_rebalance_takes_away_only_what_moves(broker, topic, unique):
    settings = {"partition_assignment_strategy": "cooperative-sticky"}
    group = unique("group")
    first = Member(broker.bootstrap_servers, group, topic, **settings)
    wait_until(lambda: shared([first]), "all partitions")
    second = Member(broker.bootstrap_servers, group, topic, **settings)
    wait_until(lambda: shared([first, second]), "half each")
    # Six were given once; three went, and the three that stayed were never revoked.
    assert sum(first.revoked) == 3
    assert sum(first.assigned) == 6
    assert (sum(second.assigned), second.revoked) == (3, [])
    second.consumer.close()
    wait_until(lambda: shared([first]), "all partitions again")
    assert (sum(first.assigned), sum(first.revoked)) == (9, 3)
    first.consumer.close()


def test_an_eager_rebalance_takes_away_everything_first(broker, topic, unique):
    settings = {"partition_assignment_strategy": "range"}
    group = unique("group")
    first = Member(broker.bootstrap_servers, group, topic, **settings)
    wait_until(lambda: shared([first]), "all partitions")
    second = Member(broker.bootstrap_servers, group, topic, **settings)
    wait_until(lambda: shared([first, second]), "half each")
    assert first.revoked[0] == 6
    first.consumer.close()
    second.consumer.close()


def test_range_gives_neighbours_to_one_member_and_round_robin_alternates(broker, topic, unique):
    for assignor, expected in (
        ("range", [[0, 1, 2], [3, 4, 5]]),
        ("roundrobin", [[0, 2, 4], [1, 3, 5]]),
    ):
        group = unique(assignor)
        settings = {"partition_assignment_strategy": assignor}
        members = [Member(broker.bootstrap_servers, group, topic, **settings) for _ in range(2)]
        wait_until(lambda each=members: shared(each), "half each")
        assert sorted(each.share for each in members) == expected
        for each in members:
            each.consumer.close()


def test_a_member_that_stops_polling_loses_its_partitions_to_the_other(broker, topic, unique):
    group = unique("group")
    settings = {"session_timeout_ms": 1000, "max_poll_interval_ms": 1000}
    silent = Member(broker.bootstrap_servers, group, topic, **settings)
    wait_until(lambda: shared([silent]), "all partitions")
    busy = Member(broker.bootstrap_servers, group, topic, session_timeout_ms=6000)
    wait_until(lambda: shared([busy]), "the busy one to have everything")
    # The other's commit is of a member that is no more.
    with pytest.raises(KafkaException) as caught:
        silent.consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    assert caught.value.args[0].code() in (
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._STATE,
    )
    busy.consumer.close()
    silent.consumer.close()


def test_a_second_holder_of_a_static_member_s_name_fences_the_first(broker, topic, unique):
    group = unique("group")
    settings = {"group_instance_id": "the-one"}
    first = Member(broker.bootstrap_servers, group, topic, **settings)
    wait_until(lambda: shared([first]), "all partitions")
    second = Member(broker.bootstrap_servers, group, topic, **settings)

    def fenced() -> bool:
        second.consumer.poll(0.02)
        message = first.consumer.poll(0.02)
        error = None if message is None else message.error()
        if error is None:
            return False
        assert error.code() == KafkaError._FATAL
        return "fenced" in error.str()

    wait_until(fenced, "the first to hear that it is fenced")
    with pytest.raises(KafkaException) as caught:
        first.consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    assert caught.value.args[0].code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)
    wait_until(lambda: shared([second]), "the second to have all partitions")
    second.consumer.close()
    first.consumer.close()


def test_only_stored_offsets_are_committed_on_close(broker, topic, unique):
    bootstrap, group = broker.bootstrap_servers, unique("group")
    produce_values(bootstrap, topic, ["a", "b", "c", "d"], partition=2)
    settings = {"enable_auto_commit": True, "enable_auto_offset_store": False}
    subscriber = consumer(bootstrap, group, **settings)
    subscriber.subscribe([topic])
    messages = poll_count(subscriber, 4)
    subscriber.store_offsets(message=messages[1])
    subscriber.close()
    assert committed_offsets(bootstrap, group, topic, PARTITIONS) == {2: 2}


def test_partitions_assigned_and_taken_away_one_by_one_are_read_from_their_offsets(
    broker, topic, unique
):
    bootstrap = broker.bootstrap_servers
    for number in range(3):
        produce_values(bootstrap, topic, [f"{number}-{i}" for i in range(3)], partition=number)
    reader = consumer(bootstrap, unique("group"), enable_partition_eof=True)
    reader.incremental_assign([TopicPartition(topic, 0, 1)])
    assert read_to_ends(reader, 1) == ["0-1", "0-2"]
    reader.incremental_assign([TopicPartition(topic, 1, 0), TopicPartition(topic, 2, 2)])
    reader.incremental_unassign([TopicPartition(topic, 0)])
    assert read_to_ends(reader, 2) == ["1-0", "1-1", "1-2", "2-2"]
    assert sorted(each.partition for each in reader.assignment()) == [1, 2]
    reader.close()


def read_to_ends(reader: Consumer, ends: int) -> list[str]:
    """Values, sorted, until so many partitions said that they ended."""
    values = []
    while ends:
        message = reader.poll(TIMEOUT_S)
        assert message is not None
        if message.error() is None:
            values.append(message.value().decode())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            ends -= 1
    return sorted(values)


def test_statistics_tell_lag_against_the_last_stable_offset(broker, unique):
    bootstrap, group = broker.bootstrap_servers, unique("group")
    topic = create_topic(bootstrap, unique("lag"))
    produce_values(bootstrap, topic, ["a", "b", "c"])
    made = transactional(bootstrap, unique("txn"))
    made.begin_transaction()
    made.produce(topic, b"open")
    made.flush(TIMEOUT_S)
    told: list[dict] = []
    subscriber = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "statistics.interval.ms": 100,
            "stats_cb": lambda text: told.append(json.loads(text)),
        }
    )
    subscriber.subscribe([topic])
    poll_count(subscriber, 1)
    subscriber.commit(asynchronous=False)

    def described() -> bool:
        subscriber.poll(0.05)
        partition = told[-1]["topics"].get(topic, {"partitions": {}})["partitions"].get("0")
        return partition is not None and (
            partition["ls_offset"],
            partition["hi_offset"],
            partition["committed_offset"],
            partition["consumer_lag"],
        ) == (3, 4, 1, 2)

    wait_until(lambda: bool(told) and described(), "both ends and the lag")
    assert told[-1]["cgrp"]["state"] == "up"
    made.abort_transaction(TIMEOUT_S)
    subscriber.close()
