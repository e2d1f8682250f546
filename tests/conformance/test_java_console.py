"""The console, verifiable and performance clients of Apache Kafka, on both brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.brokers.probe import ports_of, wait_until
from support.clients.librdkafka import (
    TIMEOUT_S,
    committed_offsets,
    create_topic,
    produce_values,
    read_topic,
    transactional,
    values_of,
)
from support.clients.talking import Talking
from support.kafka.java_tools import (
    COMPATIBILITY,
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    CONSUMER_PERF,
    GET_OFFSETS,
    GROUPS,
    LATENCY,
    MESSAGE_COPIER,
    PRODUCER_PERF,
    VERIFIABLE_CONSUMER,
    VERIFIABLE_PRODUCER,
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

    def offsets(self, *words: object) -> list[str]:
        """Lines of kafka-get-offsets, "partition:offset"."""
        lines = self.java.ok(GET_OFFSETS, *self.where, *words).lines
        return [line.removeprefix(f"{self.topic}:") for line in lines]


@pytest.fixture
def console(java, bootstrap, unique) -> Callable[..., Console]:
    """Makes a topic and the tools on it."""

    def make(partitions: int = 1, name: str = "console") -> Console:
        return Console(java, bootstrap, create_topic(bootstrap, unique(name), partitions))

    return make


def printing(*fields: str) -> list[str]:
    """Options that make the console consumer print these fields."""
    return [word for each in fields for word in ("--formatter-property", f"print.{each}=true")]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_console_consumer_prints_what_the_console_producer_sent(console, codec):
    pair = console()
    headers = ("--reader-property", "parse.headers=true", "--compression-codec", codec)
    lines = [f"h1:v1,h2:{n}\tkey{n}:value {n} {'x' * 50}" for n in range(100)]
    pair.produce("\n".join(lines) + "\n", *headers)
    found = pair.consume(100, "--from-beginning", *printing("headers", "key", "offset"))
    assert found == [f"Offset:{n}\th1:v1,h2:{n}\tkey{n}\tvalue {n} {'x' * 50}" for n in range(100)]


def test_the_console_consumer_starts_at_an_offset_and_at_the_group_s_position(console, unique):
    pair = console()
    pair.produce("".join(f"k:{n}\n" for n in range(10)))
    assert pair.consume(3, "--partition", "0", "--offset", "4") == ["4", "5", "6"]
    group = unique("group")
    assert pair.consume(4, "--group", group, "--from-beginning") == ["0", "1", "2", "3"]
    assert pair.consume(2, "--group", group) == ["4", "5"]
    assert pair.consume(4, "--group", group) == ["6", "7", "8", "9"]


def test_the_console_consumer_under_read_committed_sees_no_open_and_no_aborted_record(
    console, bootstrap, unique
):
    pair = console()
    writer = transactional(bootstrap, unique("writer"))
    for value, end in (("good", writer.commit_transaction), ("bad", writer.abort_transaction)):
        writer.begin_transaction()
        writer.produce(pair.topic, value)
        assert writer.flush(TIMEOUT_S) == 0
        end(TIMEOUT_S)
    writer.begin_transaction()
    writer.produce(pair.topic, "open")
    assert writer.flush(TIMEOUT_S) == 0
    uncommitted = ("--from-beginning", "--isolation-level", "read_uncommitted")
    assert pair.consume(3, *uncommitted) == ["good", "bad", "open"]
    committed = ("--from-beginning", "--isolation-level", "read_committed")
    words = [*pair.where, *committed, "--timeout-ms", 1000]
    lines: list[str] = []

    def any_line() -> bool:
        # On a busy machine a second may be over before the tool's consumer has a partition.
        lines[:] = pair.java.run(CONSOLE_CONSUMER, *words).lines
        return bool(lines)

    wait_until(any_line, "the tool to read something")
    assert lines == ["good"]
    writer.commit_transaction(TIMEOUT_S)
    assert pair.consume(2, *committed) == ["good", "open"]


def test_kafka_get_offsets_finds_both_ends_a_time_and_the_latest_timestamp(console):
    pair = console(2)
    pair.produce("k:1\n" * 3)
    ends = dict(line.split(":") for line in pair.offsets("--time", "-1"))
    assert sorted(ends.values()) == ["0", "3"]
    (used,) = [partition for partition, offset in ends.items() if offset == "3"]
    assert pair.offsets("--time", "-2") == ["0:0", "1:0"]
    assert pair.offsets("--time", "earliest-local") == ["0:0", "1:0"]
    assert pair.offsets("--time", "earliest-pending-upload") == []  # there are no tiers
    (newest,) = pair.offsets("--time", "max-timestamp", "--partitions", used)
    assert newest.split(":")[0] == used
    assert pair.offsets("--time", "1000000000000", "--partitions", used) == [f"{used}:0"]
    assert pair.offsets("--time", "9000000000000", "--partitions", used) == []


def test_kafka_get_offsets_ends_where_nothing_matches(console, unique):
    pair = console()
    done = pair.java.run(GET_OFFSETS, *pair.where[:2], "--topic", unique("absent"))
    assert (done.code, done.out) == (1, "")


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
    ends = [int(line.split(":")[1]) for line in pair.offsets()]
    assert 5003 <= sum(ends) < 7000
    read = pair.java.ok(CONSUMER_PERF, *pair.where, "--num-records", 5000, "--hide-header")
    assert read.lines[-1].split(", ")[4] == "5000"


def test_the_latency_tool_gets_back_each_record_that_it_sent(console):
    pair = console()
    words = [*pair.where, "--num-records", 100, "--producer-acks", "all", "--record-size", 100]
    done = pair.java.ok(LATENCY, *words)
    assert re.search(r"99th = \d+", done.out)
    assert pair.offsets() == ["0:100"]


def events(lines: list[str]) -> list[dict]:
    """The JSON lines of a verifiable client."""
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.no_kill("Kafka's verifiable producer sends nothing again: it sets retries=0")
def test_the_verifiable_producer_s_acknowledged_offsets_hold_its_values(
    console, java_process, bootstrap
):
    pair = console(2)
    words = [*pair.where, "--max-messages", 50, "--acks", -1, "--value-prefix", 7]
    with java_process(VERIFIABLE_PRODUCER, *words) as process:
        total = process.wait_event("tool_data")
        assert process.wait_end() == 0
    sent = [each for each in events(process.seen) if each["name"] == "producer_send_success"]
    stored = read_topic(bootstrap, pair.topic)
    told = sorted((each["partition"], each["offset"], each["value"]) for each in sent)
    assert told == [(each.partition, each.offset, each.value.decode()) for each in stored]
    assert (total["sent"], total["acked"]) == (50, 50)


@pytest.fixture
def verifiable(java_process, bootstrap, tmp_path) -> Callable[..., Talking]:
    """Starts a verifiable consumer that commits what it has read."""

    def start(topic: str, group: str, *words: object, **settings: str) -> Talking:
        path = Path(tmp_path) / "consumer.properties"
        lines = {"max.poll.records": "10", "heartbeat.interval.ms": "300", **settings}.items()
        path.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in lines))
        return java_process(
            VERIFIABLE_CONSUMER, "--bootstrap-server", bootstrap, "--topic", topic,
            "--group-id", group, "--reset-policy", "earliest", "--command-config", path,
            # Longer than a killed one's successor may take to start.
            "--session-timeout", 60_000, *words,
        )  # fmt: skip

    return start


def test_the_verifiable_consumer_reads_in_order_and_commits(console, verifiable, bootstrap, unique):
    pair = console()
    group = unique("group")
    produce_values(bootstrap, pair.topic, map(str, range(100)))
    # It leaves auto-commit off unless told.
    with verifiable(
        pair.topic, group, "--max-messages", 100, isolation_level="read_committed"
    ) as it:
        assert it.wait_end() == 0
        it.wait_event("shutdown_complete")
    seen = events(it.seen)
    assert sum(each["count"] for each in seen if each["name"] == "records_consumed") == 100
    commits = [each for each in seen if each["name"] == "offsets_committed"]
    assert all(each["success"] for each in commits)
    assert commits[-1]["offsets"] == [{"topic": pair.topic, "partition": 0, "offset": 100}]
    assert committed_offsets(bootstrap, group, pair.topic, 1) == {0: 100}


def assigned(process: Talking, count: int) -> None:
    """Wait until the consumer says that it owns `count` partitions; eager members say all."""
    process.wait_line(
        lambda line: (
            '"partitions_assigned"' in line and len(json.loads(line)["partitions"]) == count
        ),
        f"{count} partitions",
    )


def test_a_static_verifiable_consumer_restarts_without_a_rebalance(console, verifiable, unique):
    pair = console(4)
    group = unique("group")
    name = ("--group-instance-id",)
    first = verifiable(pair.topic, group, *name, "one")
    assigned(first, 4)
    second = verifiable(pair.topic, group, *name, "two")
    assigned(second, 2)
    assigned(first, 2)
    told = len(first.seen)
    second.kill()
    again = verifiable(pair.topic, group, *name, "two")
    assigned(again, 2)
    first.terminate()
    first.wait_event("shutdown_complete")
    kinds = [each["name"] for each in events(first.seen[told:])]
    # Nothing was taken from it or given to it until it was told to end.
    assert kinds[0] == "shutdown_requested"


def test_cooperative_verifiable_consumers_hand_over_only_what_moves(console, verifiable, unique):
    pair = console(4)
    group = unique("group")
    strategy = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    first = verifiable(pair.topic, group, "--assignment-strategy", strategy)
    assigned(first, 4)
    told = len(first.seen)
    second = verifiable(pair.topic, group, "--assignment-strategy", strategy)
    assigned(second, 2)
    moved = first.wait_event("partitions_revoked")["partitions"]
    assert len(moved) == 2
    assert [each["name"] for each in events(first.seen[told:])].count("partitions_revoked") == 1
    second.terminate()
    # What is assigned anew is what the other gave back.
    assigned(first, 2)


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
