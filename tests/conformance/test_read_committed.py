"""Five clients read committed records alone, from every kind of start (B13, SPARK-25005).

Each client, unchanged, reads one log with many decided transactions. The producers' delivery
reports, commits and aborts say which records it must return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Producer
from support.brokers.probe import wait_for
from support.clients.librdkafka import (
    TIMEOUT_S,
    create_topic,
    plain_producer,
    transact,
    transactional,
)
from support.clients.readers import READERS, Place

SMALL_FETCH_BYTES = 1_500


@dataclass
class History:
    """A topic, and the (offset, value) of all its records and of its committed records."""

    topic: str
    everything: list[tuple[int, str]] = field(default_factory=list)
    committed: list[tuple[int, str]] = field(default_factory=list)

    def send(self, made: Producer, values: list[str]) -> list[tuple[int, str]]:
        """Produce to partition 0, wait for the reports, and say where each value went."""
        told: list[tuple[int, str]] = []

        def report(error, message):
            assert error is None, error
            told.append((message.offset(), message.value().decode()))

        for value in values:
            made.produce(self.topic, value.encode(), partition=0, on_delivery=report)
        assert made.flush(TIMEOUT_S) == 0
        self.everything.extend(told)
        return told

    def committed_from(self, start: int) -> list[tuple[int, str]]:
        """Return the records that a read_committed reader gets from an offset on."""
        return [each for each in sorted(self.committed) if each[0] >= start]


def make_history(bootstrap: str, unique: Callable[[str], str]) -> History:
    """Three transactions at a time and a plain producer, in batches of five, some compressed."""
    history = History(create_topic(bootstrap, unique("history")))
    codecs = ("none", "lz4", "zstd")
    plain = plain_producer(bootstrap)
    many = [
        transactional(bootstrap, unique(f"txn-{codec}"), compression_type=codec) for codec in codecs
    ]
    for round_number in range(6):
        sent: dict[int, list[tuple[int, str]]] = {number: [] for number in range(3)}
        for made in many:
            made.begin_transaction()
        for step in range(4):
            for number, made in enumerate(many):
                # Incompressible enough that a small fetch holds about one batch.
                text = f"{round_number}-{number}-{step}-" + "".join(
                    chr(97 + (i * i * 7 + i + number) % 26) for i in range(200)
                )
                sent[number] += history.send(made, [f"{text}-{item}" for item in range(5)])
            if step == 1:
                history.committed += history.send(plain, [f"plain {round_number}"])
        # Which ones commit, and in which order they end, differs from round to round.
        for number in ((0, 1, 2), (2, 0, 1), (1, 2, 0))[round_number % 3]:
            if (round_number + number) % 3 == 0:
                many[number].commit_transaction(TIMEOUT_S)
                history.committed += sent[number]
            else:
                many[number].abort_transaction(TIMEOUT_S)
    return history


@pytest.fixture(scope="module")
def histories(unique_names) -> Callable[..., History]:
    """The history on a broker, made when first asked for."""
    made: dict[str, History] = {}

    def history_on(broker) -> History:
        if broker.name not in made:
            made[broker.name] = make_history(broker.bootstrap_servers, unique_names)
        return made[broker.name]

    return history_on


@pytest.mark.parametrize("client", list(READERS))
def test_no_aborted_record_is_delivered_from_any_start_with_small_fetches(
    broker, histories, client
):
    history = histories(broker)
    place, read = (history.topic, 0), READERS[client]
    end = max(history.everything)[0]
    # All starts but the end lie within a batch; the fetches after them begin anywhere.
    for start in (3, end // 2 + 1, end - 7, end):
        wait_for(
            lambda at=start: (
                read(
                    broker.bootstrap_servers, place, start=at, fetch_bytes=SMALL_FETCH_BYTES
                ).records
            ),
            history.committed_from(start),
        )


@pytest.mark.parametrize("client", list(READERS))
def test_read_uncommitted_delivers_every_record_and_no_marker(broker, histories, client):
    history = histories(broker)
    reading = READERS[client](broker.bootstrap_servers, (history.topic, 0), committed=False)
    assert reading.records == sorted(history.everything)


GAPS = {
    "a batch without any data": "a",
    "the first offset is not data": "ac",
    "the last offset is not data": "ca",
    "a gap in the middle": "cac",
}
"""Per partition, a letter for each transaction in turn: a aborted, c committed."""


@pytest.fixture(scope="module")
def gap_topics(unique_names) -> Callable[..., str]:
    """The topic with the four kinds of gaps on a broker, made when first asked for."""
    made: dict[str, str] = {}

    def topic_on(broker) -> str:
        if broker.name not in made:
            made[broker.name] = make_gaps(broker.bootstrap_servers, unique_names)
        return made[broker.name]

    return topic_on


def make_gaps(bootstrap: str, unique: Callable[[str], str]) -> str:
    """Create a topic with a partition for each kind of gap, and three records per transaction."""
    topic = create_topic(bootstrap, unique("gaps"), len(GAPS))
    made = transactional(bootstrap, unique("txn"))
    for partition, letters in enumerate(GAPS.values()):
        for letter in letters:
            values = [f"{letter}{item}" for item in range(3)]
            transact(made, topic, *values, commits=letter == "c", partition=partition)
    return topic


@pytest.mark.parametrize("client", list(READERS))
def test_gaps_of_aborted_records_and_markers_are_passed_over(broker, gap_topics, client):
    topic, bootstrap = gap_topics(broker), broker.bootstrap_servers
    for partition, letters in enumerate(GAPS.values()):
        # Three records and a marker take four offsets.
        everything = [
            (4 * index + item, f"{letter}{item}")
            for index, letter in enumerate(letters)
            for item in range(3)
        ]
        for start in range(0, 4 * len(letters) + 1, 3):
            expected = [e for e in everything if e[0] >= start and e[1][0] == "c"]
            wait_for(
                lambda at=start, number=partition: (
                    READERS[client](bootstrap, (topic, number), start=at).records
                ),
                expected,
            )


def test_the_position_at_the_last_stable_offset_is_in_range_after_a_restart(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("restart"), 2)
    places: list[Place] = [(topic, number) for number in range(2)]
    made = transactional(bootstrap, unique("txn"))
    for value, commits in ((b"kept", True), (b"dropped", False)):
        made.begin_transaction()
        for _, number in places:
            made.produce(topic, value, partition=number)
        made.flush(TIMEOUT_S)
        (made.commit_transaction if commits else made.abort_transaction)(TIMEOUT_S)
    # Partition 0 ends with aborted records, partition 1 in the middle of a transaction.
    transact(made, topic, "undecided", commits=None, partition=1)
    positions = {}
    for place in places:
        for name, read in READERS.items():
            wait_for(lambda at=place, read=read: read(bootstrap, at).records, [(0, "kept")])
            positions[place, name] = read(bootstrap, place).position
    assert set(positions.values()) <= {1, 4}
    broker.restart()
    for (place, name), position in positions.items():
        assert READERS[name](bootstrap, place, start=position).records == [], (place, name)
    made.abort_transaction(TIMEOUT_S)
    made.begin_transaction()
    for _, number in places:
        made.produce(topic, b"next", partition=number)
    made.commit_transaction(TIMEOUT_S)
    for (place, name), position in positions.items():

        def values(place=place, name=name, start=position) -> list[str]:
            return [value for _, value in READERS[name](bootstrap, place, start=start).records]

        wait_for(values, ["next"])
