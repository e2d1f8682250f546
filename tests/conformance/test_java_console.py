"""Console and performance clients of Apache Kafka and of its own tests, on both brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from support.brokers.probe import ports_of
from support.clients.librdkafka import (
    committed_offsets,
    create_topic,
    produce_values,
    read_topic,
    values_of,
)
from support.kafka.java_tools import (
    COMPATIBILITY,
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    CONSUMER_PERF,
    GET_OFFSETS,
    GROUPS,
    MESSAGE_COPIER,
    PRODUCER_PERF,
    Done,
    JavaHost,
)

pytestmark = pytest.mark.kafka


class Console:
    """A topic on a broker, and the console tools on it."""

    def __init__(self, java: JavaHost, bootstrap: str, topic: str) -> None:
        self.java = java
        self.topic = topic
        self.where = ("--bootstrap-server", bootstrap, "--topic", topic)

    def produce(self, text: str, *words: str) -> Done:
        """Run the console producer on these lines, with key, separator and headers parsed."""
        reader = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
        return self.java.ok(CONSOLE_PRODUCER, *self.where, *reader, *words, stdin=text)

    def consume(self, count: int, *words: str) -> list[str]:
        """Run the console consumer until it got `count` records; the lines, as printed."""
        end = ["--max-messages", count, "--timeout-ms", 30_000]
        return self.java.ok(CONSOLE_CONSUMER, *self.where, *end, *words).lines


@pytest.fixture
def console(java, bootstrap, unique) -> Callable[..., Console]:
    """Makes a topic and the tools on it."""

    def make(partitions: int = 1) -> Console:
        return Console(java, bootstrap, create_topic(bootstrap, unique("console"), partitions))

    return make


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_console_consumer_prints_what_the_console_producer_sent(console, codec):
    pair = console()
    headers = ("--reader-property", "parse.headers=true", "--compression-codec", codec)
    lines = [f"h1:v1,h2:{n}\tkey{n}:value {n} {'x' * 50}" for n in range(100)]
    pair.produce("\n".join(lines) + "\n", *headers)
    printing = [f"print.{each}=true" for each in ("headers", "key", "offset")]
    words = [word for each in printing for word in ("--formatter-property", each)]
    found = pair.consume(100, "--from-beginning", *words)
    assert found == [f"Offset:{n}\th1:v1,h2:{n}\tkey{n}\tvalue {n} {'x' * 50}" for n in range(100)]


def test_the_console_consumer_starts_at_an_offset_and_at_the_group_s_position(console, unique):
    pair = console()
    pair.produce("".join(f"k:{n}\n" for n in range(10)))
    assert pair.consume(3, "--partition", "0", "--offset", "4") == ["4", "5", "6"]
    group = unique("group")
    assert pair.consume(4, "--group", group, "--from-beginning") == ["0", "1", "2", "3"]
    assert pair.consume(2, "--group", group) == ["4", "5"]
    assert pair.consume(4, "--group", group) == ["6", "7", "8", "9"]


def test_the_performance_tools_write_in_transactions_and_read_all(console, bootstrap, unique):
    pair = console(3)
    config = ["--bootstrap-server", bootstrap]
    written = pair.java.ok(
        PRODUCER_PERF, *config, "--topic", pair.topic, "--num-records", 5000, "--record-size", 100,
        "--throughput", -1, "--transactional-id", unique("perf"), "--transaction-duration-ms", 20,
    )  # fmt: skip
    assert written.lines[-1].startswith("5000 records sent")
    assert len(read_topic(bootstrap, pair.topic)) == 5000
    # The markers take offsets too: one a transaction and partition.
    ends = [int(line.split(":")[2]) for line in pair.java.ok(GET_OFFSETS, *pair.where).lines]
    assert 5003 <= sum(ends) < 7000
    read = pair.java.ok(CONSUMER_PERF, *pair.where, "--num-records", 5000, "--hide-header")
    assert read.lines[-1].split(", ")[4] == "5000"


def events(lines: list[str]) -> list[dict]:
    """The JSON lines of a verifiable client."""
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_the_transactional_message_copier_copies_exactly_once(console, bootstrap, unique):
    pair = console()
    values = [f"{number:03}" for number in range(95)]
    produce_values(bootstrap, pair.topic, values)
    output = create_topic(bootstrap, unique("copy"))
    group = unique("copier")
    words = [
        "--broker-list", bootstrap, "--input-topic", pair.topic,
        "--input-partition", 0, "--output-topic", output, "--consumer-group", group,
        "--transaction-size", 10, "--transactional-id", unique("copier"),
    ]  # fmt: skip
    first = pair.java.ok(MESSAGE_COPIER, *words, "--max-messages", 40, "--group-mode")
    assert events(first.lines)[-1]["consumed"] >= 30
    pair.java.ok(MESSAGE_COPIER, *words, "--max-messages", 95 - 40, "--enable-random-aborts")
    assert values_of(read_topic(bootstrap, output)) == values
    assert committed_offsets(bootstrap, group, pair.topic, 1) == {0: 95}
    described = pair.java.ok(GROUPS, *pair.where[:2], "--describe", "--group", group)
    assert re.search(rf"{pair.topic}\s+0\s+95\s+95\s+0\s", described.out)


@pytest.mark.no_kill("tells which brokers are there")
def test_the_client_compatibility_test_passes(console, bootstrap, unique):
    supported = [
        word
        for name in ("offsets-for-times", "cluster-id", "create-topics", "describe-configs")
        for word in (f"--{name}-supported", "true")
    ]
    pair, brokers = console(), len(ports_of(bootstrap))
    done = pair.java.run(
        COMPATIBILITY, "--bootstrap-server", bootstrap, *supported,
        "--idempotent-producer-supported", "true", "--expect-record-too-large-exception", "false",
        "--num-cluster-nodes", brokers, "--describe-acls-supported", "true",
        "--topic", unique("compat"),
    )  # fmt: skip
    assert (done.code, done.lines[-1]) == (0, "SUCCESS.")
