"""Spark's own tool gives a stateful query's state another number of partitions, as a batch."""

from __future__ import annotations

from pathlib import Path

from support.spark.connector import Pipe, finish
from support.spark.stateful_query import ROCKS_DB, STATE_STORE


def run_distinct(pipe: Pipe) -> None:
    rows = pipe.stream().select("value").dropDuplicates(["value"])
    finish(pipe.write(rows).trigger(availableNow=True).start())


def sources_of(entry: Path) -> list[str]:
    """The sources' lines of an entry of Spark's offset log."""
    return entry.read_text().splitlines()[2:]


def test_a_query_goes_on_after_its_state_was_repartitioned(pipe: Pipe) -> None:
    spark = pipe.spark
    spark.conf.set(STATE_STORE, ROCKS_DB)  # the only one that the tool takes
    try:
        pipe.feed(range(10))
        run_distinct(pipe)
        partitions = int(spark.conf.get("spark.sql.shuffle.partitions", "")) + 1
        spark._streamingCheckpointManager.repartition(str(pipe.checkpoint), partitions)
        assert pipe.logged("offsets") == pipe.logged("commits") == [0, 1]
        planned, repartitioned = (sources_of(pipe.checkpoint / "offsets" / n) for n in "01")
        assert planned == repartitioned
        pipe.feed(range(5, 15))
        run_distinct(pipe)
    finally:
        spark.conf.unset(STATE_STORE)
    assert pipe.output_values() == sorted(map(str, range(15)))
