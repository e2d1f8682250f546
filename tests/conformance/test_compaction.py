"""Compaction and deleted records, as clients see them, are the same on both brokers."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import KafkaError
from support.brokers.probe import wait_until
from support.clients.librdkafka import TIMEOUT_S, create_topic, producer, read_topic, transactional
from support.kafka.java_tools import DUMP_LOG
from support.raw.raw import message_class
from support.raw.routed import connect

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import ApiKey

KEYS = 6
ROUNDS = 30
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "index.interval.bytes": "100",
}


class Writer:
    """Transactions over a few keys; knows what a read_committed reader must find in the end."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.latest: dict[bytes, tuple[int, bytes | None]] = {}

    def transactions(self) -> None:
        """Commit two of three, now and then with a tombstone."""
        made = transactional(self.bootstrap, f"writer-{self.topic}", compression_type="lz4")
        for number in range(ROUNDS):
            commits = number % 3 != 2
            seen: dict[bytes, tuple[int, bytes | None]] = {}

            def delivered(error, message, seen=seen) -> None:
                assert error is None, error
                seen[message.key()] = (message.offset(), message.value())

            made.begin_transaction()
            for at in range(4):
                value = None if (number + at) % 7 == 0 else f"{number}-{at}".encode() * 10
                key = f"k{(number + at) % KEYS}".encode()
                made.produce(self.topic, value, key=key, partition=0, on_delivery=delivered)
            assert made.flush(TIMEOUT_S) == 0
            (made.commit_transaction if commits else made.abort_transaction)(TIMEOUT_S)
            if commits:
                self.latest |= seen

    def fill(self) -> None:
        """Close the segments that have the transactions in them."""
        made = producer(self.bootstrap, linger_ms=0)
        for at in range(40):
            made.produce(self.topic, f"{at}" * 100, key=b"fill", partition=0)
            assert made.flush(TIMEOUT_S) == 0

    def left(self, isolation: str) -> list[tuple[bytes, int, bytes | None]]:
        """(key, offset, value) of the transactions' records that are still there."""
        seen = read_topic(self.bootstrap, self.topic, isolation=isolation)
        return sorted((s.key, s.offset, s.value) for s in seen if s.key != b"fill")


def test_of_each_key_the_latest_committed_record_is_left(new_broker, unique, java):
    broker = new_broker({"log.cleaner.backoff.ms": "100"})
    topic = create_topic(broker.bootstrap_servers, unique("keyed"), config=COMPACTED)
    writer = Writer(broker.bootstrap_servers, topic)
    writer.transactions()
    writer.fill()
    expected = sorted((key, at, value) for key, (at, value) in writer.latest.items())
    assert len(expected) == KEYS
    wait_until(lambda: writer.left("read_uncommitted") == expected, "the topic to be compacted")
    assert writer.left("read_committed") == expected
    broker.stop()
    files = sorted((broker.data_dir / f"{topic}-0").glob("*.log"))
    names = ",".join(map(str, files))
    done = java.ok(DUMP_LOG, "--files", names, "--deep-iteration", "--print-data-log")
    assert "invalid bytes" not in done.out
    assert "isvalid: false" not in done.out
    # The producer's last batch was aborted: what is left of it keeps its sequence.
    assert re.search(
        r"count: 0 baseSequence: \d+ lastSequence: \d+ .* isTransactional: true", done.out
    )
    printed = re.findall(r"^\| offset: (\d+) .* key: (k\d)", done.out, re.MULTILINE)
    assert sorted((key.encode(), int(at)) for at, key in printed) == [e[:2] for e in expected]
    done = java.ok(DUMP_LOG, "--files", names.replace(".log", ".index"), "--index-sanity-check")
    assert "passed sanity check" in done.out


def test_a_compacted_topic_takes_no_record_without_a_key(bootstrap, unique):
    topic = create_topic(bootstrap, unique("keyed"), config=COMPACTED)
    for codec in ("none", "zstd"):
        errors = []
        made = producer(bootstrap, compression_type=codec)
        made.produce(topic, b"x", on_delivery=lambda error, _, seen=errors: seen.append(error))
        assert made.flush(TIMEOUT_S) == 0
        assert [error.code() for error in errors] == [KafkaError.INVALID_RECORD]


@pytest.fixture
def delete(broker):
    """Sends DeleteRecords for one partition: (error name, low watermark)."""
    with connect(broker) as connection:

        def send(topic: str, offset: int, partition: int = 0, version: int = 2):
            cls = message_class(ApiKey.DELETE_RECORDS)
            place = cls.DeleteRecordsTopic.DeleteRecordsPartition(
                partition_index=partition, offset=offset
            )
            topics = [cls.DeleteRecordsTopic(name=topic, partitions=[place])]
            answer = connection.ask(cls(topics=topics, timeout_ms=10_000), version)
            result = answer.topics[0].partitions[0]
            return error_name(result.error_code), result.low_watermark

        yield send


def test_records_are_deleted_up_to_an_offset(bootstrap, unique, delete):
    topic = create_topic(bootstrap, unique("deleted"))
    made = producer(bootstrap)
    for at in range(10):
        made.produce(topic, str(at))
    assert made.flush(TIMEOUT_S) == 0
    for version, offset in enumerate((2, 3, 4)):
        assert delete(topic, offset, version=version) == ("NONE", offset)
    assert delete(topic, 1) == ("NONE", 4)
    assert delete(topic, -2) == ("OFFSET_OUT_OF_RANGE", -1)
    assert delete(topic, 11) == ("OFFSET_OUT_OF_RANGE", -1)
    assert [s.offset for s in read_topic(bootstrap, topic)] == list(range(4, 10))
    assert delete(topic, -1) == ("NONE", 10)
    assert read_topic(bootstrap, topic) == []


def test_records_that_may_not_be_deleted(bootstrap, unique, delete):
    topic = create_topic(bootstrap, unique("kept"), config=COMPACTED)
    both = COMPACTED | {"cleanup.policy": "compact,delete"}
    assert delete(topic, 0) == ("POLICY_VIOLATION", -1)
    assert delete(topic, 0, partition=1) == ("UNKNOWN_TOPIC_OR_PARTITION", -1)
    assert delete(unique("nothing"), 0) == ("UNKNOWN_TOPIC_OR_PARTITION", -1)
    both_topic = create_topic(bootstrap, unique("both"), config=both)
    assert delete(both_topic, 0) == ("NONE", 0)
    read_topic(bootstrap, topic)
    transactional(bootstrap, unique("txn"))
    assert delete("__transaction_state", 0) == ("INVALID_TOPIC_EXCEPTION", -1)
