"""Five clients read committed records alone, from every kind of start (B13, SPARK-25005).

Each client, unchanged, reads one log with many decided transactions. The producers' delivery
reports, commits and aborts say which records it must return.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Producer
from support.brokers.probe import wait_for
from support.clients.adapter import Client as Adapted
from support.clients.adapter import Place
from support.clients.aiokafka_client import Aiokafka
from support.clients.kafka_python import KafkaPython
from support.clients.kcat import kcat
from support.clients.librdkafka import (
    TIMEOUT_S,
    create_topic,
    plain_producer,
    transact,
    transactional,
)
from support.clients.librdkafka_client import Librdkafka
from support.harness.availability import available

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.offsets import LATEST_TIMESTAMP
from txnlog_spark.codec.decode import decode_batches

FETCH_BYTES = 1_048_576
_KCAT_END = re.compile(r"Reached end of topic \S+ \[\d+\] at offset (\d+)")


@dataclass(frozen=True)
class Reading:
    """(offset, value) of each record delivered, in order; and the position after them."""

    records: list[tuple[int, str]]
    position: int


def _isolation(committed: bool) -> str:
    return "read_committed" if committed else "read_uncommitted"


def read_with_ours(
    bootstrap: str,
    place: Place,
    *,
    start: int = 0,
    committed: bool = True,
    fetch_bytes: int = FETCH_BYTES,
) -> Reading:
    """Read with this project's own client, as the Spark source does."""
    topic, partition = place
    with Client(bootstrap) as client:
        client.topic_partitions([topic])
        ends = client.list_offsets({place: LATEST_TIMESTAMP}, read_committed=committed)
        end = ends[place].offset
        records: list[tuple[int, str]] = []
        position = start
        answers = client.fetch_range(
            topic,
            partition,
            start_offset=start,
            end_offset=end,
            read_committed=committed,
            max_bytes=fetch_bytes,
        )
        for answer in answers:
            columns = decode_batches(
                answer.data, start_offset=position, end_offset=end, aborted=answer.aborted
            )
            values = [value.decode() for value in columns.values.to_pylist()]
            records.extend(zip(columns.offsets.tolist(), values, strict=True))
            position = max(position, answer.next_offset)
        return Reading(records, position)


def read_with(library: Callable[[], Adapted]) -> Callable[..., Reading]:
    """A library behind an adapter: until its position is at the end offset."""

    def read(
        bootstrap: str,
        place: Place,
        *,
        start: int = 0,
        committed: bool = True,
        fetch_bytes: int = FETCH_BYTES,
    ) -> Reading:
        settings = {"isolation_level": _isolation(committed), "fetch_max_wait_ms": 50}
        settings |= {"max_partition_fetch_bytes": fetch_bytes, "max_poll_records": 500}
        with library() as client:
            reader = client.consumer(bootstrap, **settings)
            got = reader.read_to_ends([place], start)
            records = [(each.offset, each.value.decode()) for each in got]
            return Reading(records, reader.position(place))

    return read


def read_with_kcat(
    bootstrap: str,
    place: Place,
    *,
    start: int = 0,
    committed: bool = True,
    fetch_bytes: int = FETCH_BYTES,
) -> Reading:
    """kcat -C -e: until it says that the end was reached. Values must be without newlines."""
    topic, partition = place
    settings = {
        "isolation.level": _isolation(committed),
        "fetch.message.max.bytes": str(fetch_bytes),
        "fetch.wait.max.ms": "50",
    }
    options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    where = ("-t", topic, "-p", str(partition), "-o", str(start))
    done = available(kcat).run(bootstrap, "-C", "-e", *where, *options, "-f", "%o %s\n")
    records = []
    for line in done.stdout.splitlines():
        offset, _, value = line.partition(" ")
        records.append((int(offset), value))
    end = _KCAT_END.search(done.stderr)
    if end is None:
        raise AssertionError(f"kcat told no end: {done.stderr}")
    return Reading(records, int(end[1]))


READERS: dict[str, Callable[..., Reading]] = {
    "ours": read_with_ours,
    "librdkafka": read_with(Librdkafka),
    "kafka-python": read_with(KafkaPython),
    "aiokafka": read_with(Aiokafka),
    "kcat": read_with_kcat,
}


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
