"""`confluent_kafka` programs, unchanged from what one writes for Kafka, on both brokers."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException
from support.brokers.probe import wait_for, wait_until
from support.clients.librdkafka import (
    TIMEOUT_S,
    committed_offsets,
    consumer,
    create_topic,
    poll_count,
    produce_values,
    read_topic,
    transactional,
    values_of,
)

PARTITIONS = 3


def numbered(prefix: str, count: int) -> list[str]:
    """Such as ["a-000", "a-001", ...], sorted."""
    return [f"{prefix}-{number:03}" for number in range(count)]


@pytest.fixture
def topics(broker, unique) -> tuple[str, str, str]:
    """(bootstrap servers, input topic with 30 records, empty output topic)."""
    bootstrap = broker.bootstrap_servers
    source = create_topic(bootstrap, unique("in"), PARTITIONS)
    target = create_topic(bootstrap, unique("out"), PARTITIONS)
    produce_values(bootstrap, source, numbered("in", 30))
    return bootstrap, source, target


def transform(producer, subscriber, target: str, messages) -> None:
    """Produce each message's upper case and hand the consumer's position to the transaction."""
    for message in messages:
        producer.produce(target, message.value().upper(), key=message.key())
    position = subscriber.position(subscriber.assignment())
    offsets = [each for each in position if each.offset >= 0]
    producer.send_offsets_to_transaction(offsets, subscriber.consumer_group_metadata(), TIMEOUT_S)


def test_commit_shows_output_and_consumer_offsets_together(topics, unique):
    bootstrap, source, target = topics
    group = unique("group")
    subscriber = consumer(bootstrap, group, isolation_level="read_committed")
    subscriber.subscribe([source])
    producer = transactional(bootstrap, unique("txn"))
    for _ in range(3):
        producer.begin_transaction()
        transform(producer, subscriber, target, poll_count(subscriber, 10))
        producer.commit_transaction(TIMEOUT_S)
    subscriber.close()
    assert values_of(read_topic(bootstrap, target)) == numbered("IN", 30)
    assert sum(committed_offsets(bootstrap, group, source, PARTITIONS).values()) == 30


def test_abort_leaves_no_output_and_no_offsets_and_the_redo_is_exactly_once(topics, unique):
    bootstrap, source, target = topics
    group = unique("group")
    producer = transactional(bootstrap, unique("txn"))
    subscriber = consumer(bootstrap, group)
    subscriber.subscribe([source])
    producer.begin_transaction()
    transform(producer, subscriber, target, poll_count(subscriber, 30))
    producer.flush(TIMEOUT_S)
    producer.abort_transaction(TIMEOUT_S)
    subscriber.close()
    assert read_topic(bootstrap, target) == []
    uncommitted = read_topic(bootstrap, target, isolation="read_uncommitted")
    assert values_of(uncommitted) == numbered("IN", 30)
    assert committed_offsets(bootstrap, group, source, PARTITIONS) == {}

    again = consumer(bootstrap, group)
    again.subscribe([source])
    producer.begin_transaction()
    transform(producer, again, target, poll_count(again, 30))
    producer.commit_transaction(TIMEOUT_S)
    again.close()
    assert values_of(read_topic(bootstrap, target)) == numbered("IN", 30)
    assert sum(committed_offsets(bootstrap, group, source, PARTITIONS).values()) == 30


def test_a_second_producer_with_the_transactional_id_fences_the_first(topics, unique):
    bootstrap, _, target = topics
    first = transactional(bootstrap, unique("txn"))
    first.begin_transaction()
    first.produce(target, b"zombie", partition=0)
    first.flush(TIMEOUT_S)

    second = transactional(bootstrap, unique("txn"))
    second.begin_transaction()
    second.produce(target, b"heir", partition=0)
    second.commit_transaction(TIMEOUT_S)

    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].fatal()
    assert caught.value.args[0].name() in ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
    assert values_of(read_topic(bootstrap, target)) == ["heir"]


def test_read_committed_stops_before_the_oldest_open_transaction(topics, unique):
    bootstrap, _, target = topics
    producer = transactional(bootstrap, unique("txn"))
    produce_values(bootstrap, target, ["before"], partition=0)
    producer.begin_transaction()
    producer.produce(target, b"open", partition=0)
    producer.flush(TIMEOUT_S)
    produce_values(bootstrap, target, ["after"], partition=0)
    assert values_of(read_topic(bootstrap, target)) == ["before"]
    uncommitted = read_topic(bootstrap, target, isolation="read_uncommitted")
    assert [each.value for each in uncommitted] == [b"before", b"open", b"after"]
    producer.commit_transaction(TIMEOUT_S)
    wait_for(
        lambda: values_of(read_topic(bootstrap, target)),
        ["after", "before", "open"],
    )
    offsets = [each.offset for each in read_topic(bootstrap, target)]
    assert offsets == [0, 1, 2]


def test_the_marker_takes_one_offset_that_no_consumer_sees(topics, unique):
    bootstrap, _, target = topics
    producer = transactional(bootstrap, unique("txn"))
    for number in range(2):
        producer.begin_transaction()
        producer.produce(target, f"{number}".encode(), partition=0)
        producer.commit_transaction(TIMEOUT_S)
    wait_for(lambda: len(read_topic(bootstrap, target)), 2)
    assert [each.offset for each in read_topic(bootstrap, target)] == [0, 2]


def test_many_aborted_and_committed_transactions_interleaved(topics, unique):
    bootstrap, _, target = topics
    producers = [transactional(bootstrap, unique(f"txn{number}")) for number in range(3)]
    expected = []
    for round_number in range(8):
        for each in producers:
            each.begin_transaction()
        for number, each in enumerate(producers):
            for item in range(5):
                value = f"{round_number}-{number}-{item}"
                each.produce(target, value.encode(), partition=0)
                if (round_number + number) % 2 == 0:
                    expected.append(value)
            each.flush(TIMEOUT_S)
        for number, each in enumerate(reversed(producers)):
            if (round_number + len(producers) - 1 - number) % 2 == 0:
                each.commit_transaction(TIMEOUT_S)
            else:
                each.abort_transaction(TIMEOUT_S)
    wait_for(lambda: values_of(read_topic(bootstrap, target)), sorted(expected))
    everything = read_topic(bootstrap, target, isolation="read_uncommitted")
    assert len(everything) == 8 * 3 * 5
    # Small fetches start in the middle of what is aborted: the aborted list must still fit.
    small = read_topic(bootstrap, target, fetch_message_max_bytes=300, fetch_max_bytes=1000000)
    assert values_of(small) == sorted(expected)


def test_a_transaction_that_is_left_alone_times_out_and_its_producer_is_fenced(topics, unique):
    bootstrap, _, target = topics
    slow = transactional(bootstrap, unique("txn"), transaction_timeout_ms=1000)
    slow.begin_transaction()
    slow.produce(target, b"late", partition=0)
    slow.flush(TIMEOUT_S)
    produce_values(bootstrap, target, ["after"], partition=0)
    wait_for(lambda: values_of(read_topic(bootstrap, target)), ["after"])
    with pytest.raises(KafkaException) as caught:
        slow.commit_transaction(TIMEOUT_S)
    error = caught.value.args[0]
    assert error.fatal() or error.txn_requires_abort()
    assert values_of(read_topic(bootstrap, target)) == ["after"]


def test_offsets_metadata_comes_back_as_it_was_committed(topics, unique):
    from confluent_kafka import TopicPartition

    bootstrap, source, _ = topics
    group = unique("group")
    subscriber = consumer(bootstrap, group)
    subscriber.subscribe([source])
    poll_count(subscriber, 30)
    offsets = [TopicPartition(source, 1, 3, metadata="naïve ✓ " + "x" * 1000)]
    producer = transactional(bootstrap, unique("txn"))
    producer.begin_transaction()
    metadata = subscriber.consumer_group_metadata()
    producer.send_offsets_to_transaction(offsets, metadata, TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)

    def stored() -> str | None:
        (answer,) = subscriber.committed([TopicPartition(source, 1)], TIMEOUT_S)
        return answer.metadata

    wait_until(lambda: stored() == offsets[0].metadata, "the committed metadata")
    subscriber.close()
