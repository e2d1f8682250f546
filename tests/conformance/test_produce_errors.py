"""Produce requests that must be refused, each with Kafka's error, and nothing appended."""

from __future__ import annotations

import struct

import pytest
from confluent_kafka import KafkaError, KafkaException
from support.brokers.probe import wait_for
from support.clients.librdkafka import create_topic, produce_values, read_topic
from support.raw.raw import RawProducer, message_class
from support.raw.routed import connect, leader

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.framing import encode_request
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import (  # fmt: skip
    MarkerType,
    Record,
    TransactionMarker,
    encode_batch,
    encode_marker,
    refresh_crc,
)

TWICE = pytest.mark.no_kill("a plain batch that is sent again is there twice")


@pytest.fixture
def place(broker, unique):
    """(bootstrap servers, topic with one partition, producer without idempotence)."""
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("raw"))
    with connect(broker) as connection:
        yield bootstrap, topic, RawProducer(connection, retries=False)


def plain(*values: str) -> bytearray:
    """A good batch without a producer."""
    return bytearray(encode_batch([Record(None, value.encode(), 1) for value in values]))


def changed(position: int, data: bytes, *, fix_crc: bool = True) -> bytes:
    """A batch of two records with some bytes replaced."""
    batch = plain("a", "b")
    batch[position : position + len(data)] = data
    if fix_crc:
        refresh_crc(batch, 0, len(batch))
    return bytes(batch)


MAGIC_AT, CRC_AT, ATTRIBUTES_AT, COUNT_AT, LAST_OFFSET_DELTA_AT = 16, 17, 21, 57, 23

REFUSED = {
    "bit rot": (changed(65, b"\xff", fix_crc=False), "CORRUPT_MESSAGE"),
    "wrong crc": (changed(CRC_AT, b"\0\0\0\0", fix_crc=False), "CORRUPT_MESSAGE"),
    "count too high": (changed(COUNT_AT, struct.pack(">i", 3)), "INVALID_RECORD"),
    "count too low": (changed(COUNT_AT, struct.pack(">i", 1)), "INVALID_RECORD"),
    "negative count": (changed(COUNT_AT, struct.pack(">i", -1)), "INVALID_RECORD"),
    "offset delta and count differ": (
        changed(LAST_OFFSET_DELTA_AT, struct.pack(">i", 7)), "INVALID_RECORD",
    ),
    "control batch of a client": (
        encode_marker(TransactionMarker(7, 0, MarkerType.COMMIT, 0), timestamp=1),
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    ),
    "plain control batch of a client": (
        changed(ATTRIBUTES_AT, struct.pack(">h", 32)), "INVALID_RECORD",
    ),
    "transactional batch in a plain request": (
        changed(ATTRIBUTES_AT, struct.pack(">h", 16)), "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    ),
    "two batches": (bytes(plain("a") + plain("b")), "INVALID_RECORD"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@TWICE
def test_a_wrong_batch_is_refused_and_not_appended(place, name):
    bootstrap, topic, producer = place
    records, error = REFUSED[name]
    assert producer.produce_bytes(topic, 0, records) == error
    assert producer.produce_bytes(topic, 0, bytes(plain("good"))) == "NONE"
    assert producer.last_offset == 0
    assert [each.value for each in read_topic(bootstrap, topic)] == [b"good"]


def test_a_marker_from_a_transactional_client_is_refused(place, unique):
    _, topic, producer = place
    producer.transactional_id = unique("txn")
    producer.retries = True
    assert (producer.find_coordinator(), producer.init()) == ("NONE", "NONE")
    assert producer.add_partitions(topic, 0) == "NONE"
    marker = TransactionMarker(*producer.identity, MarkerType.COMMIT, 0)
    records = encode_marker(marker, timestamp=1)
    assert producer.produce_bytes(topic, 0, records) == "INVALID_RECORD"


@TWICE
def test_a_torn_batch_is_refused_and_not_appended(place):
    _, topic, producer = place
    batch = bytes(plain("a", "b"))
    assert producer.produce_bytes(topic, 0, batch[:-3]) in ("CORRUPT_MESSAGE", "INVALID_RECORD")
    assert producer.produce_bytes(topic, 0, batch) == "NONE"
    assert producer.last_offset == 0


@TWICE
def test_of_a_partition_named_twice_the_last_batch_counts(place, broker):
    bootstrap, topic, _ = place
    cls = message_class(ApiKey.PRODUCE)
    partition = cls.TopicProduceData.PartitionProduceData
    data = [
        cls.TopicProduceData(
            name=topic, partition_data=[partition(index=0, records=bytes(plain(value)))]
        )
        for value in ("first", "last")
    ]
    message = cls(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=data)
    with connect(broker) as connection:
        answers = [p for t in connection.ask(message, 9).responses for p in t.partition_responses]
    assert [(p.error_code, p.base_offset) for p in answers] == [(0, 0)]
    assert [each.value for each in read_topic(bootstrap, topic)] == [b"last"]


def test_zstd_is_refused_before_version_7(place, broker):
    _, topic, _ = place
    cls = message_class(ApiKey.PRODUCE)
    records = changed(ATTRIBUTES_AT, struct.pack(">h", 4))
    partition = cls.TopicProduceData.PartitionProduceData(index=0, records=records)
    data = [cls.TopicProduceData(name=topic, partition_data=[partition])]
    message = cls(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=data)
    with connect(broker) as connection:
        (answer,) = connection.ask(message, 6).responses[0].partition_responses
    assert answer.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_unknown_topics_and_partitions_are_refused(place, unique):
    _, topic, producer = place
    batch = bytes(plain("a"))
    assert producer.produce_bytes(unique("nowhere"), 0, batch) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert producer.produce_bytes(topic, 1, batch) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert producer.produce_bytes(topic, -1, batch) == "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.no_kill("what nobody acknowledges is lost with the broker that it was sent to")
def test_what_was_sent_without_acks_before_the_producer_left_is_appended(place, broker):
    bootstrap, topic, _ = place
    cls = message_class(ApiKey.PRODUCE)
    frames = []
    for number in range(300):
        records = bytes(plain(str(number)))
        partition = cls.TopicProduceData.PartitionProduceData(index=0, records=records)
        data = [cls.TopicProduceData(name=topic, partition_data=[partition])]
        message = cls(transactional_id=None, acks=0, timeout_ms=10_000, topic_data=data)
        frames.append(encode_request(message, 9, number, "raw"))
    with leader(broker, topic) as connection:
        connection.send_bytes(b"".join(frames))
    wait_for(
        lambda: [each.value for each in read_topic(bootstrap, topic)],
        [str(number).encode() for number in range(300)],
    )


def test_acks_other_than_0_1_and_all_are_refused(place):
    _, topic, producer = place
    batch = bytes(plain("a"))
    assert producer.produce_bytes(topic, 0, batch, acks=2) == "INVALID_REQUIRED_ACKS"
    assert producer.produce_bytes(topic, 0, batch, acks=1) == "NONE"


def test_a_batch_over_max_message_bytes_is_too_large(place, unique):
    bootstrap, topic, producer = place
    batch = bytes(plain("x" * 1_048_588))
    assert producer.produce_bytes(topic, 0, batch) == "MESSAGE_TOO_LARGE"
    assert producer.produce_bytes(topic, 0, bytes(plain("x" * 1_000_000))) == "NONE"
    small = create_topic(bootstrap, unique("small"), 1, {"max.message.bytes": "2000"})
    assert producer.produce_bytes(small, 0, bytes(plain("x" * 2000))) == "MESSAGE_TOO_LARGE"
    assert producer.produce_bytes(small, 0, bytes(plain("x" * 1800))) == "NONE"


def test_librdkafka_reports_message_too_large_for_the_record(bootstrap, unique):
    topic = create_topic(bootstrap, unique("small"), 1, {"max.message.bytes": "2000"})
    with pytest.raises(KafkaException) as caught:
        produce_values(bootstrap, topic, ["x" * 5000])
    assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    produce_values(bootstrap, topic, ["fits"])
    assert [each.value for each in read_topic(bootstrap, topic)] == [b"fits"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 250, "ünïcode"])
def test_invalid_topic_names_are_refused(bootstrap, name):
    if name == "":
        # librdkafka refuses it itself.
        with pytest.raises((KafkaException, ValueError)):
            create_topic(bootstrap, name)
        return
    with pytest.raises(KafkaException) as caught:
        create_topic(bootstrap, name)
    assert caught.value.args[0].code() == KafkaError.TOPIC_EXCEPTION


def test_wrong_partition_and_replica_counts_and_configs_are_refused(bootstrap, unique):
    with pytest.raises(KafkaException) as caught:
        create_topic(bootstrap, unique("none"), 0)
    assert caught.value.args[0].code() == KafkaError.INVALID_PARTITIONS
    with pytest.raises(KafkaException) as caught:
        create_topic(bootstrap, unique("config"), 1, {"no.such.config": "1"})
    assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG
    with pytest.raises(KafkaException) as caught:
        create_topic(bootstrap, unique("value"), 1, {"max.message.bytes": "many"})
    assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG
