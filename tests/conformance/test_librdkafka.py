"""Calls that only librdkafka has, unchanged, on both brokers."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from support.brokers.probe import wait_for, wait_until
from support.clients.librdkafka import (
    TIMEOUT_S,
    committed_offsets,
    consumer,
    create_topic,
    poll_count,
    produce_values,
    read_topic,
    transact,
    transactional,
    values_of,
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
    transact(made, topic, "open", commits=None)
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


# Transactions ----------------------------------------------------------------------------------


@pytest.fixture
def source(bootstrap, unique) -> str:
    """A topic of two partitions with four records in each."""
    topic = create_topic(bootstrap, unique("in"), 2)
    for number in range(2):
        produce_values(bootstrap, topic, [f"{number}-{i}" for i in range(4)], partition=number)
    return topic


@pytest.fixture
def target(bootstrap, unique) -> str:
    """An empty topic."""
    return create_topic(bootstrap, unique("out"))


def refused_offsets(made, offsets, metadata) -> KafkaError:
    """The error that handing offsets to the transaction must raise; it asks for an abort.

    An abort waits for a record that was in flight to a broker that dies, and librdkafka does not
    send it again then: nothing is in flight.
    """
    assert made.flush(TIMEOUT_S) == 0
    with pytest.raises(KafkaException) as caught:
        made.send_offsets_to_transaction(offsets, metadata, TIMEOUT_S)
    error = caught.value.args[0]
    assert error.txn_requires_abort(), error
    made.abort_transaction(TIMEOUT_S)
    return error


def test_offsets_of_an_older_generation_are_refused_and_nothing_of_the_transaction_stays(
    bootstrap, source, target, unique
):
    group = unique("group")
    first, second = (consumer(bootstrap, group, heartbeat_interval_ms=200) for _ in range(2))
    first.subscribe([source])
    poll_count(first, 8)
    old = first.consumer_group_metadata()
    second.subscribe([source])

    def divided() -> bool:
        first.poll(0.02)
        second.poll(0.02)
        return len(first.assignment()) == len(second.assignment()) == 1

    wait_until(divided, "the next generation")
    made = transactional(bootstrap, unique("txn"))
    made.begin_transaction()
    made.produce(target, b"stale")
    made.flush(TIMEOUT_S)
    error = refused_offsets(made, [TopicPartition(source, 0, 4)], old)
    assert error.code() == KafkaError.ILLEGAL_GENERATION
    assert committed_offsets(bootstrap, group, source, 2) == {}
    # With the generation of now it works.
    made.begin_transaction()
    made.produce(target, b"current")
    metadata = first.consumer_group_metadata()
    made.send_offsets_to_transaction([TopicPartition(source, 0, 4)], metadata, TIMEOUT_S)
    made.commit_transaction(TIMEOUT_S)
    wait_for(lambda: values_of(read_topic(bootstrap, target)), ["current"])
    wait_for(lambda: committed_offsets(bootstrap, group, source, 2), {0: 4})
    first.close()
    second.close()


@pytest.mark.no_kill("a coordinator that loads its log does not know the epoch before: it fences")
def test_after_a_record_was_refused_for_its_size_aborting_and_trying_again_gets_through(
    bootstrap, target, unique
):
    made = transactional(bootstrap, unique("txn"), message_max_bytes=4_000_000)
    made.begin_transaction()
    made.produce(target, b"small")
    made.produce(target, b"x" * 2_000_000)
    with pytest.raises(KafkaException) as caught:
        made.commit_transaction(TIMEOUT_S)
    error = caught.value.args[0]
    assert (error.txn_requires_abort(), error.fatal()) == (True, False)
    made.abort_transaction(TIMEOUT_S)
    # The refused batch used up its sequence numbers in librdkafka, not here: the next one is out
    # of order, which ends in an abort again, and that one bumps the epoch.
    codes = []
    while not codes or codes[-1] != KafkaError.NO_ERROR:
        made.begin_transaction()
        made.produce(target, b"next")
        codes.append(commit_or_abort(made))
    assert codes == [KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.NO_ERROR]
    wait_for(lambda: values_of(read_topic(bootstrap, target)), ["next"])


def commit_or_abort(made) -> int:
    """Commit; when that asks for an abort, abort. The error code of the commit."""
    try:
        made.commit_transaction(TIMEOUT_S)
    except KafkaException as failed:
        error = failed.args[0]
        assert error.txn_requires_abort(), error
        made.abort_transaction(TIMEOUT_S)
        return error.code()
    return KafkaError.NO_ERROR


def test_one_transaction_over_many_partitions_shows_in_all_of_them_at_once(bootstrap, unique):
    topics = [create_topic(bootstrap, unique(f"wide{number}"), 10) for number in range(3)]
    made = transactional(bootstrap, unique("txn"))
    for commits in (False, True):
        made.begin_transaction()
        for topic in topics:
            for number in range(10):
                made.produce(topic, f"{commits} {number}".encode(), partition=number)
        made.flush(TIMEOUT_S)
        (made.commit_transaction if commits else made.abort_transaction)(TIMEOUT_S)
    for topic in topics:
        expected = [f"True {number}" for number in range(10)]
        wait_for(lambda one=topic: values_of(read_topic(bootstrap, one)), expected)
