"""What only librdkafka does, or has an own call for, unchanged, on both brokers."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
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


@pytest.fixture
def topic(bootstrap, unique) -> str:
    """An empty topic of six partitions."""
    return create_topic(bootstrap, unique("topic"), PARTITIONS)


def test_only_stored_offsets_are_committed_on_close(bootstrap, topic, unique):
    group = unique("group")
    produce_values(bootstrap, topic, ["a", "b", "c", "d"], partition=2)
    settings = {"enable_auto_commit": True, "enable_auto_offset_store": False}
    subscriber = consumer(bootstrap, group, **settings)
    subscriber.subscribe([topic])
    messages = poll_count(subscriber, 4)
    subscriber.store_offsets(message=messages[1])
    subscriber.close()
    assert committed_offsets(bootstrap, group, topic, PARTITIONS) == {2: 2}


def test_partitions_assigned_and_taken_away_one_by_one_are_read_from_their_offsets(
    bootstrap, topic, unique
):
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


def test_statistics_tell_lag_against_the_last_stable_offset(bootstrap, unique):
    group = unique("group")
    topic = create_topic(bootstrap, unique("lag"))
    produce_values(bootstrap, topic, ["a", "b", "c"])
    made = transactional(bootstrap, unique("txn"))
    made.begin_transaction()
    made.produce(topic, b"open")
    made.flush(TIMEOUT_S)
    told: list[dict] = []
    settings = {"isolation_level": "read_committed", "statistics_interval_ms": 100}
    settings |= {"stats_cb": lambda text: told.append(json.loads(text))}
    subscriber = consumer(bootstrap, group, **settings)
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
