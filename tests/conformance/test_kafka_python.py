"""kafka-python programs, unchanged from what one writes for Kafka, on both brokers."""

from __future__ import annotations

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    InvalidProducerEpochError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
)
from kafka.structs import OffsetAndMetadata
from support.brokers.probe import wait_for, wait_until
from support.clients.kafka_python import (
    consumer,
    create_topic,
    poll_count,
    produce_values,
    read_topic,
    transactional,
)
from support.clients.librdkafka import read_topic as read_with_librdkafka
from support.clients.librdkafka import values_of

PARTITIONS = 3


WAITS = pytest.mark.no_kill("kafka-python waits for a killed coordinator, on Apache Kafka too")


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


def transform(producer, subscriber, target: str, records) -> None:
    """Produce each record's upper case and hand the consumer's position to the transaction."""
    for record in records:
        producer.send(target, record.value.upper(), key=record.key)
    offsets = {
        place: OffsetAndMetadata(subscriber.position(place), "", -1)
        for place in subscriber.assignment()
    }
    producer.send_offsets_to_transaction(offsets, subscriber.group_metadata())


def committed_sum(subscriber, topic: str) -> int:
    """The group's committed offsets of a topic, added up; none counts as 0."""
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    return sum(subscriber.committed(place) or 0 for place in places)


@pytest.mark.no_kill(
    "asked again, kafka-python 3.0 forgets the offsets that it was answered before"
)
@pytest.mark.parametrize("version", [(4, 2), (4, 3)])
def test_a_consumer_that_is_told_the_version_of_its_broker_asks_in_its_newest_versions(
    topics, version
):
    bootstrap, source, _ = topics
    subscriber = consumer(bootstrap, None, source, api_version=version)
    assert sorted(values_of(poll_count(subscriber, 30))) == numbered("in", 30)
    places = [TopicPartition(source, number) for number in range(PARTITIONS)]
    assert sum(subscriber.end_offsets(places).values()) == 30
    assert subscriber.beginning_offsets(places) == dict.fromkeys(places, 0)
    subscriber.close()


@WAITS
def test_commit_shows_output_and_consumer_offsets_together(topics, unique):
    bootstrap, source, target = topics
    subscriber = consumer(bootstrap, unique("group"), source, max_poll_records=10)
    producer = transactional(bootstrap, unique("txn"))
    left = 30
    while left > 0:
        producer.begin_transaction()
        records = poll_count(subscriber, 1)
        transform(producer, subscriber, target, records)
        producer.commit_transaction()
        left -= len(records)
    wait_for(lambda: values_of(read_topic(bootstrap, target)), numbered("IN", 30))
    wait_for(lambda: committed_sum(subscriber, source), 30)
    producer.close()
    subscriber.close()


@WAITS
def test_abort_leaves_no_output_and_no_offsets(topics, unique):
    bootstrap, source, target = topics
    subscriber = consumer(bootstrap, unique("group"), source)
    producer = transactional(bootstrap, unique("txn"))
    producer.begin_transaction()
    transform(producer, subscriber, target, poll_count(subscriber, 30))
    producer.flush()
    producer.abort_transaction()
    assert values_of(read_topic(bootstrap, target)) == []
    uncommitted = read_topic(bootstrap, target, isolation="read_uncommitted")
    assert values_of(uncommitted) == numbered("IN", 30)
    assert committed_sum(subscriber, source) == 0
    producer.begin_transaction()
    producer.send(target, b"next").get(timeout=30)
    producer.commit_transaction()
    wait_for(lambda: values_of(read_topic(bootstrap, target)), ["next"])
    producer.close()
    subscriber.close()


@WAITS
def test_a_second_producer_with_the_transactional_id_fences_the_first(topics, unique):
    bootstrap, _, target = topics
    first = transactional(bootstrap, unique("txn"))
    first.begin_transaction()
    first.send(target, b"zombie", partition=0).get(timeout=30)
    second = transactional(bootstrap, unique("txn"))
    second.begin_transaction()
    second.send(target, b"heir", partition=0).get(timeout=30)
    second.commit_transaction()
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
        first.commit_transaction()
    wait_for(lambda: values_of(read_topic(bootstrap, target)), ["heir"])
    first.close(timeout=1)
    second.close()


@WAITS
def test_read_committed_stops_before_the_oldest_open_transaction(topics, unique):
    bootstrap, _, target = topics
    producer = transactional(bootstrap, unique("txn"))
    producer.begin_transaction()
    producer.send(target, b"open", partition=0).get(timeout=30)
    plain = KafkaProducer(bootstrap_servers=bootstrap)
    plain.send(target, b"after", partition=0).get(timeout=30)
    assert read_topic(bootstrap, target) == []
    uncommitted = read_topic(bootstrap, target, isolation="read_uncommitted")
    assert [each.value for each in uncommitted] == [b"open", b"after"]
    producer.commit_transaction()
    wait_for(lambda: values_of(read_topic(bootstrap, target)), ["after", "open"])
    producer.close()
    plain.close()


@WAITS
def test_a_broker_kill_in_the_middle_of_a_transaction(broker, unique):
    bootstrap = broker.bootstrap_servers
    target = create_topic(bootstrap, unique("out"), PARTITIONS)
    producer = transactional(bootstrap, unique("txn"))
    producer.begin_transaction()
    for number in range(20):
        producer.send(target, f"{number:02}".encode(), key=f"{number}".encode())
    producer.flush()
    broker.restart()
    for number in range(20, 40):
        producer.send(target, f"{number:02}".encode(), key=f"{number}".encode())
    try:
        producer.commit_transaction()
    except KafkaError:
        # A program for Kafka aborts and sends again: the first attempt must stay hidden.
        producer.abort_transaction()
        producer.begin_transaction()
        for number in range(40):
            producer.send(target, f"{number:02}".encode(), key=f"{number}".encode())
        producer.commit_transaction()
    expected = [f"{number:02}" for number in range(40)]
    wait_for(lambda: values_of(read_topic(bootstrap, target)), expected)
    producer.close()


@WAITS
def test_the_operators_tools_see_the_transaction_and_its_producer(topics, unique):
    bootstrap, _, target = topics
    transactional_id = unique("txn")
    producer = transactional(bootstrap, transactional_id, transaction_timeout_ms=40_000)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def state() -> str:
        return admin.describe_transactions([transactional_id])[transactional_id].state.value

    assert state() == "Empty"
    producer.begin_transaction()
    producer.send(target, b"x", partition=2).get(timeout=30)
    described = admin.describe_transactions([transactional_id])[transactional_id]
    assert described.state.value == "Ongoing"
    assert described.transaction_timeout_ms == 40_000
    assert {(each.topic, each.partition) for each in described.topic_partitions} == {(target, 2)}
    ongoing = admin.list_transactions(state_filters=["Ongoing"])
    listed = [each for of_broker in ongoing.values() for each in of_broker]
    assert transactional_id in {each.transactional_id for each in listed}
    assert {each.state.value for each in listed} == {"Ongoing"}
    place = TopicPartition(target, 2)
    (active,) = admin.describe_producers([place])[place].active_producers
    assert active.producer_id == described.producer_id
    assert active.current_transaction_start_offset == 0
    producer.commit_transaction()
    wait_until(lambda: state() == "CompleteCommit", "CompleteCommit")
    (active,) = admin.describe_producers([place])[place].active_producers
    assert active.current_transaction_start_offset == -1
    admin.close()
    producer.close()


def test_groups_offsets_and_partitions_through_the_admin_client(topics, unique):
    bootstrap, source, _ = topics
    group = unique("group")
    subscriber = consumer(bootstrap, group, source)
    poll_count(subscriber, 30)
    place = TopicPartition(source, 1)
    subscriber.commit({place: OffsetAndMetadata(2, "note", -1)})
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    offsets = admin.list_group_offsets({group: None})[group]
    assert (offsets[place].offset, offsets[place].metadata) == (2, "note")
    described = admin.describe_groups([group])[group]
    assert len(described["members"]) == 1
    subscriber.close()
    admin.delete_groups([group])
    assert not admin.list_group_offsets({group: None})[group]
    admin.create_partitions({source: 5})
    wait_for(lambda: len(admin.describe_topics([source])[0]["partitions"]), 5)
    admin.close()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4"])
def test_compressed_records_come_back(broker, unique, codec):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("codec"))
    values = [f"{number:04}" * 20 for number in range(200)]
    produce_values(bootstrap, topic, values, compression_type=codec, linger_ms=50)
    assert [each.value.decode() for each in read_topic(bootstrap, topic)] == values


def test_a_commit_succeeds_without_records_that_were_given_up_and_only_their_futures_say_so(
    new_broker, unique
):
    """kafka-python's own: it takes the time that is over for no error of the transaction."""
    broker = new_broker()
    topic = create_topic(broker.bootstrap_servers, unique("given-up"))
    made = transactional(
        broker.bootstrap_servers, unique("id"), delivery_timeout_ms=3000, request_timeout_ms=1500
    )
    made.begin_transaction()
    made.send(topic, b"there", partition=0).get(60)
    broker.kill()
    given_up = made.send(topic, b"given up", partition=0)
    wait_until(lambda: given_up.is_done, "the end of its time")
    assert isinstance(given_up.exception, KafkaTimeoutError)
    broker.restart()
    made.commit_transaction()
    made.close()
    assert values_of(read_with_librdkafka(broker.bootstrap_servers, topic)) == ["there"]
