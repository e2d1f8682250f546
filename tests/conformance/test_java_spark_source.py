"""Spark's own JVM source `kafka` under read_committed, over the gaps that transactions leave.

SPARK-25005 has four cases: a planned range without a record, a range whose first offset has no
record, a range whose last offset has no record, and a gap in the middle. The test reads each case
as a batch and as a stream, on both brokers, in one Spark session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.prepared import wait_until_marked
from support.clients.librdkafka import TIMEOUT_S, create_topic, transact, transactional
from support.harness.availability import available
from support.spark import spark_source_reader
from support.spark.json_peer import JsonPeer
from support.spark.spark_kafka_jars import spark_kafka_jars

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
]

RUNS = (("a", True, 5), ("b", False, 5), ("c", True, 3), ("d", False, 2), ("e", False, 1))
"""Transactions: name, whether it commits, how many records. Each leaves a marker."""

COMMITTED = {
    **{n: f"a{n}" for n in range(5)},
    **{12 + n: f"c{n}" for n in range(3)},
}
"""Offset and value of what read_committed sees: a 0-4, marker 5, b 6-10, marker 11, c 12-14,
marker 15, d 16-17, marker 18, e 19, marker 20; the end is 21."""
END = 21


@pytest.fixture(scope="module")
def reader() -> Iterator[JsonPeer]:
    """Start the Spark session that the tests of this module share."""
    started = JsonPeer(spark_source_reader.__file__, available(spark_kafka_jars))
    yield started
    started.stop()


def write(broker, topic: str, runs, name: str) -> None:
    """Run these transactions in turn on partition 0; return when the last marker is written."""
    writer = transactional(broker.bootstrap_servers, name)
    for value, commits, count in runs:
        transact(writer, topic, *(f"{value}{n}" for n in range(count)), commits=commits)
    wait_until_marked(broker.bootstrap_servers)


@pytest.fixture
def read(reader, bootstrap) -> Callable[..., dict[str, Any]]:
    """Reads a topic of the broker with the source, under read_committed."""

    def ask(topic: str, wanted: dict[str, Any] | None = None, **options: object) -> dict[str, Any]:
        given = {
            "kafka.bootstrap.servers": bootstrap,
            "kafka.isolation.level": "read_committed",
            "subscribe": topic,
            "startingOffsets": "earliest",
            "failOnDataLoss": "true",
            **{name: str(value) for name, value in options.items()},
        }
        answer = reader.ask(options=given, **(wanted or {}))
        assert "error" not in answer, answer["error"]
        return answer

    return ask


def expected(start: int = 0, end: int = END) -> list[list[object]]:
    """The rows that a range of offsets holds."""
    return [[0, at, value] for at, value in COMMITTED.items() if start <= at < end]


@pytest.fixture
def gaps(broker, unique) -> str:
    """A topic with the transactions of RUNS."""
    topic = create_topic(broker.bootstrap_servers, unique("gaps"))
    write(broker, topic, RUNS, unique("writer"))
    return topic


def test_a_batch_over_each_kind_of_gap_has_the_committed_records(read, gaps):
    ranges = {
        "no record at all": (6, 12),
        "markers only": (5, 6),
        "first offset is none": (5, 15),
        "last offset is none": (0, 6),
        "gap in the middle": (2, 14),
        "first and last are none": (8, 19),
        "the whole log": (0, END),
    }
    for what, (start, end) in ranges.items():
        places = {"startingOffsets": start, "endingOffsets": end}
        given = {name: json.dumps({gaps: {"0": at}}) for name, at in places.items()}
        answer = read(gaps, None, **given)
        assert (what, answer["rows"]) == (what, expected(start, end))
        # count() asks no column: another path through the source.
        assert (what, answer["count"]) == (what, len(expected(start, end)))


def test_a_batch_up_to_the_latest_offset_ends_before_an_open_transaction(
    read, broker, gaps, unique
):
    writer = transactional(broker.bootstrap_servers, unique("open"))
    transact(writer, gaps, "open", commits=None)
    write(broker, gaps, [("behind", True, 1)], unique("behind"))
    assert read(gaps)["rows"] == expected()
    writer.commit_transaction(TIMEOUT_S)
    wait_until_marked(broker.bootstrap_servers)
    rows = read(gaps)["rows"]
    assert rows == [*expected(), [0, 21, "open"], [0, 22, "behind0"]]


@pytest.mark.parametrize(
    ("size", "counts"),
    [
        # 3: ranges that end with a marker, and four in a row without a record.
        (3, [3, 2, 0, 0, 3, 0, 0]),
        # 7: after a range whose last offsets are none, one whose first offsets are none.
        (7, [5, 2, 1]),
        # 13: a gap in the middle.
        (13, [6, 2]),
    ],
)
def test_a_stream_in_micro_batches_passes_every_kind_of_gap(read, gaps, tmp_path, size, counts):
    wanted = {"checkpoint": str(tmp_path / "checkpoint")}
    answer = read(gaps, wanted, maxOffsetsPerTrigger=size)
    assert answer["rows"] == expected()
    ends = [end[gaps]["0"] for end, _ in answer["batches"]]
    assert ends == [min(size * n, END) for n in range(1, len(counts) + 1)]
    assert [count for _, count in answer["batches"]] == counts


def test_a_stream_goes_on_over_a_gap_at_its_checkpoint(read, broker, tmp_path, unique):
    topic = create_topic(broker.bootstrap_servers, unique("goes-on"))
    wanted = {"checkpoint": str(tmp_path / "checkpoint")}
    seen: list[list[object]] = []
    runs = [[("a", True, 2), ("b", False, 2)], [("c", False, 3)], [("d", True, 1)]]
    for number, part in enumerate(runs):
        write(broker, topic, part, unique(f"writer{number}"))
        seen += read(topic, wanted)["rows"]
    # a 0-1, marker, b 3-4, marker; c 6-8, marker; d at 10.
    assert seen == [[0, 0, "a0"], [0, 1, "a1"], [0, 10, "d0"]]
