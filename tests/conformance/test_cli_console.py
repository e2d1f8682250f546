"""`produce` and `consume` on both brokers, beside kcat and Kafka's own console tools."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest
from support.brokers.probe import wait_until
from support.clients.kcat import kcat
from support.clients.librdkafka import TIMEOUT_S, create_topic, transact, transactional
from support.harness.availability import available
from support.kafka.java_tools import CONSOLE_CONSUMER, CONSOLE_PRODUCER

from broker_sim.cli.main import main

SHOWN = ("timestamp", "partition", "offset", "headers", "key")
PRINTING = [word for each in SHOWN for word in ("--property", f"print.{each}=true")]
PARSING = ["--property", "parse.key=true", "--property", "key.separator=:"]
PARSING += ["--property", "parse.headers=true"]


class Console:
    """Our two commands on one topic."""

    def __init__(self, bootstrap: str, topic: str, capfdbinary, monkeypatch) -> None:
        self.topic = topic
        self.bootstrap = bootstrap
        self.where = ["--bootstrap-server", bootstrap, "--topic", topic]
        self._captured = capfdbinary
        self._monkeypatch = monkeypatch
        self.error = ""

    def produce(self, data: bytes, *words: str, code: int = 0) -> None:
        """Run `produce` on these bytes."""
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        self._run("produce", *words, code=code)

    def consume(self, *words: str, idle_ms: int | None = 1500) -> list[str]:
        """The lines that `consume` prints until nothing comes any more."""
        end = [] if idle_ms is None else ["--timeout-ms", str(idle_ms)]
        return self._run("consume", *end, *words).decode(errors="surrogateescape").splitlines()

    def _run(self, command: str, *words: str, code: int = 0) -> bytes:
        self._captured.readouterr()
        found = main([command, *self.where, *words])
        out, error = self._captured.readouterr()
        self.error = error.decode()
        assert found == code, self.error
        return out


@pytest.fixture
def console(bootstrap, unique_names, capfdbinary, monkeypatch) -> Callable[..., Console]:
    """Makes a topic and our commands on it."""

    def make(partitions: int = 1) -> Console:
        topic = create_topic(bootstrap, unique_names("console"), partitions)
        return Console(bootstrap, topic, capfdbinary, monkeypatch)

    return make


LINES = b"".join(b"h1:v1,h2:%d\tkey%d:value %d\n" % (n, n, n) for n in range(40))


def without_times(lines: list[str]) -> list[str]:
    """Printed records but for their time; sorted, as partitions are read in any order."""
    assert all(line.startswith("CreateTime:1") for line in lines)
    return sorted(line.partition("\t")[2] for line in lines)


def test_our_consumer_prints_what_kafkas_own_prints_of_what_our_producer_sent(console, java):
    ours = console(3)
    ours.produce(LINES, *PARSING)
    found = without_times(ours.consume("--from-beginning", *PRINTING))
    assert len(found) == 40
    assert len({line.split("\t")[0] for line in found}) == 3
    end = ["--from-beginning", "--max-messages", 40, "--timeout-ms", 30_000]
    kafkas = [word.replace("--property", "--formatter-property") for word in PRINTING]
    reference = java.ok(CONSOLE_CONSUMER, *ours.where, *end, *kafkas).lines
    assert without_times(reference) == found


def test_our_producer_puts_keys_where_kafkas_own_puts_them(console, java):
    ours, kafkas = console(5), console(5)
    ours.produce(LINES, *PARSING)
    words = [word.replace("--property", "--reader-property") for word in PARSING]
    java.ok(CONSOLE_PRODUCER, *kafkas.where, *words, stdin=LINES.decode())
    assert without_times(ours.consume("--from-beginning", *PRINTING)) == without_times(
        kafkas.consume("--from-beginning", *PRINTING)
    )


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_our_consumer_reads_what_kcat_sent_and_kcat_what_ours_sent(console, codec):
    client = available(kcat)
    ours = console()
    sent = "".join(f"k{n}:value {n}\n" for n in range(20))
    client.run(ours.bootstrap, "-P", "-t", ours.topic, "-K:", "-z", codec, stdin=sent)
    keyed = ("--property", "print.key=true", "--property", "key.separator=:")
    assert ours.consume("--from-beginning", *keyed) == sent.splitlines()
    ours.produce(b"k:-\n-:v\n", *PARSING[:4], "--property", "null.marker=-")
    shown = client.output(
        ours.bootstrap, "-C", "-t", ours.topic, "-o", "20", "-e", "-q", "-Z", "-f", "%k|%s\n"
    )
    assert shown.splitlines() == ["k|NULL", "NULL|v"]


def test_our_consumer_starts_where_it_is_told_and_ends_when_it_has_enough(console):
    ours = console()
    ours.produce(b"".join(b"%d\n" % n for n in range(10)))
    first = ("--partition", "0", "--offset")
    assert ours.consume(*first, "4", "--max-messages", "3", idle_ms=None) == ["4", "5", "6"]
    assert "processed a total of 3 messages" in ours.error
    assert ours.consume(*first, "earliest", "--max-messages", "1") == ["0"]
    assert ours.consume(*first, "latest", idle_ms=1) == []
    assert ours.consume(idle_ms=1) == []
    ours._run("consume", *first, "11", code=1)
    assert f"--offset 11: {ours.topic}-0 holds offsets from 0 to 10" in ours.error
    ours._run("consume", "--partition", "3", code=1)
    assert "has 1 partitions, no --partition 3" in ours.error


def test_open_and_aborted_records_are_shown_to_read_uncommitted_only(console, bootstrap, unique):
    ours = console()
    writer = transactional(bootstrap, unique("writer"))
    for value, commits in (("good", True), ("bad", False)):
        transact(writer, ours.topic, value, commits=commits)
    ours.produce(b"plain\n")
    transact(writer, ours.topic, "open", commits=None)
    uncommitted = ("--from-beginning",)
    committed = ("--from-beginning", "--isolation-level", "read_committed")
    assert ours.consume(*uncommitted) == ["good", "bad", "plain", "open"]
    wait_until(lambda: ours.consume(*committed) == ["good", "plain"], "the markers")
    writer.commit_transaction(TIMEOUT_S)
    wait_until(lambda: ours.consume(*committed) == ["good", "plain", "open"], "the commit")


def test_a_line_without_a_key_is_named_and_what_came_before_is_written(console):
    ours = console()
    ours.produce(b"a:1\nb:2\nno key\nc:3\n", *PARSING[:4], code=1)
    assert "no key.separator (':') in line 3: 'no key'; the 2 records before" in ours.error
    assert ours.consume("--from-beginning") == ["1", "2"]


def test_a_record_that_is_too_large_is_refused_by_kafkas_name(console):
    ours = console()
    ours.produce(b"x" * 2_000_000 + b"\n", code=1)
    assert "MESSAGE_TOO_LARGE" in ours.error
    assert ours.consume("--from-beginning") == []


def test_a_topic_that_is_missing_is_made_by_produce_and_refused_by_consume(console, unique):
    ours = console()
    ours.where[-1] = unique("missing")
    ours._run("consume", "--from-beginning", code=1)
    assert f"topic '{ours.where[-1]}': UNKNOWN_TOPIC_OR_PARTITION" in ours.error
    ours.produce(b"first\n")
    assert ours.consume("--from-beginning") == ["first"]
