"""Kafka Streams, exactly_once_v2: a copy and a word count through kills, on both brokers.

Two processes of one application share four partitions. It copies lines, and counts their words by
a repartition topic and a changelog. The broker and a process are killed while transactions are
open. In the end read_committed sees each line once and in order, and each count of a word once,
rising by one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from support.brokers.apache_kafka import VERSION
from support.brokers.probe import wait_until
from support.clients.librdkafka import (
    TIMEOUT_S,
    Seen,
    consumer,
    create_topic,
    each_record,
    plain_producer,
    read_topic,
)
from support.clients.talking import Talking
from support.harness.availability import available
from support.harness.maven import fetched_jars
from support.kafka.java_tools import java_command

APPLICATION = Path(__file__).parents[1] / "clients" / "streams" / "Words.java"


def streams_command() -> list[str]:
    """Return the command of the application but for its arguments. Unavailable when a jar or the
    compiler is not had."""
    *java, classes = java_command()
    # Kafka's jars have the rest but RocksDB, and the stores are in memory.
    artifacts = {f"org.apache.kafka:kafka-streams:{VERSION}": "*:*"}
    jar = fetched_jars("Kafka Streams", f"kafka-streams/{VERSION}", artifacts)
    return [*java, f"{classes}:{jar}/*", str(APPLICATION)]


pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.kafka]

PARTITIONS = 4
KEYS = 12
WORDS = 7
AHEAD = 400
"""Lines that are produced and not copied yet, at most."""
STEP = 1_000
"""Lines that are copied between two kills."""
END_TIMEOUT_S = 240.0
STALLED = '{"name": "stalled"}'


class Lines:
    """The three topics, and the lines that were produced."""

    def __init__(self, bootstrap: str, names: Callable[[str], str]) -> None:
        self.bootstrap = bootstrap
        self.application = names("words")
        self.source, self.copy, self.counts = (
            create_topic(bootstrap, names(each), PARTITIONS) for each in ("lines", "copy", "counts")
        )
        self.fed: list[tuple[bytes, bytes]] = []
        self._producer = plain_producer(bootstrap, enable_idempotence=True)
        self._seen: Counter[str] = Counter()
        self._watcher = consumer(bootstrap, names("watcher"), isolation_level="read_committed")
        self._watcher.assign(
            [
                TopicPartition(topic, number, 0)
                for topic in (self.copy, self.counts)
                for number in range(PARTITIONS)
            ]
        )

    def feed(self, count: int) -> None:
        """Produce lines of three words."""
        for number in range(len(self.fed), len(self.fed) + count):
            words = (number % WORDS, number % 3, number // 100 % WORDS)
            key, line = b"k%d" % (number % KEYS), b"w%d w%d w%d" % words
            self.fed.append((key, line + b" #%d" % number))
            self._producer.produce(self.source, self.fed[-1][1], key)
        assert self._producer.flush(TIMEOUT_S) == 0

    def flow(self, until: Callable[[], bool], what: str) -> None:
        """Feed and count what is copied, until the condition is met."""

        def met() -> bool:
            self.feed(max(1, AHEAD - len(self.fed) + self._seen[self.copy]))
            self.watch()
            return until()

        wait_until(met, what, timeout_s=END_TIMEOUT_S)

    def watch(self) -> None:
        """Count the committed records that have come."""
        for message in self._watcher.consume(5 * AHEAD, 0.1):
            # The errors of a broker that is away are followed by its records.
            self._seen[message.topic()] += message.error() is None

    def advance(self) -> None:
        """Return when STEP more lines are copied; some are on their way then."""
        goal = self._seen[self.copy] + STEP
        self.flow(lambda: self._seen[self.copy] >= goal, f"{goal} copied lines")

    def wait_done(self) -> None:
        """Return when all is copied and counted."""

        def done() -> bool:
            self.watch()
            words = sum(len(line.split()) for _, line in self.fed)
            return (self._seen[self.copy], self._seen[self.counts]) == (len(self.fed), words)

        wait_until(done, f"all of {len(self.fed)} lines", timeout_s=END_TIMEOUT_S)

    def close(self) -> None:
        """Close the watcher."""
        self._watcher.close()

    def check(self) -> None:
        """Every line once, in order of its key; every count of a word once, in order."""
        assert by_key(each_record(self.bootstrap, self.copy)) == in_order(self.fed)
        counted = Counter(word for _, line in self.fed for word in line.split())
        counts = by_key(each_record(self.bootstrap, self.counts))
        rising = {w: [b"%d" % n for n in range(1, counted[w] + 1)] for w in counted}
        assert {word: counts[word] for word in counted if counts[word] != rising[word]} == {}
        assert counts.keys() == counted.keys()
        # The process that was killed in a transaction had written to one of the topics.
        assert sum(self._aborted(topic) for topic in (self.copy, self.counts)) > 0

    def _aborted(self, topic: str) -> int:
        """Return how many records only read_uncommitted sees."""
        levels = ("read_uncommitted", "read_committed")
        seen = [len(read_topic(self.bootstrap, topic, isolation=level)) for level in levels]
        return seen[0] - seen[1]


def by_key(seen: Iterator[Seen]) -> dict[bytes | None, list[bytes | None]]:
    """Values by their key, in the order of their offsets."""
    found = defaultdict(list)
    for each in seen:
        found[each.key].append(each.value)
    return dict(found)


def in_order(fed: list[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    """The same of what was fed."""
    found = defaultdict(list)
    for key, line in fed:
        found[key].append(line)
    return dict(found)


@pytest.fixture
def lines(bootstrap, unique) -> Iterator[Lines]:
    """Empty topics."""
    made = Lines(bootstrap, unique)
    yield made
    made.close()


@pytest.fixture
def start(lines, talking, tmp_path) -> Callable[[str], Talking]:
    """Starts a process of the application; return it when it shares the work."""
    command = available(streams_command)
    topics = (lines.source, lines.copy, lines.counts)

    def start(name: str) -> Talking:
        folder: Path = tmp_path / name
        words = [lines.bootstrap, lines.application, *topics, str(folder)]
        process = talking([*command, *words])
        process.wait_event("running")
        return process

    return start


def stall(lines: Lines, processes: list[Talking]) -> None:
    """Have each process wait within its next commit, with everything sent."""
    before = [len(each.so_far()) for each in processes]
    for each in processes:
        each.tell("stall")

    def stalled() -> bool:
        pairs = zip(processes, before, strict=True)
        return all(STALLED in each.so_far()[count:] for each, count in pairs)

    lines.flow(stalled, "commits that wait")


@pytest.mark.no_kill("the body kills the broker three times")
def test_a_copy_and_a_word_count_are_exact_through_kills(broker, lines, start):
    first, second = start("first"), start("second")
    lines.advance()
    # In the middle of both transactions: everything sent and nothing committed.
    stall(lines, [first, second])
    broker.restart()
    for each in (first, second):
        each.tell("go")
    lines.advance()
    # Its transaction is open until it times out, and so are the offsets of its partitions.
    stall(lines, [second])
    second.kill()
    third = start("third")
    lines.advance()
    if broker.name != "apache_kafka":
        # At any moment. Apache Kafka must have no transaction prepared then: KAFKA-20734.
        broker.restart()
        lines.advance()
    stall(lines, [first, third])
    broker.restart()
    for each in (first, third):
        each.tell("go")
    lines.advance()
    lines.wait_done()
    for each in (first, third):
        each.tell("close")
        each.wait_event("closed")
        assert each.wait_end() == 0
        assert not any("failed" in line for line in each.seen)
    lines.check()
