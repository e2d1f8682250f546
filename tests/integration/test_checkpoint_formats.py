"""Formats of Spark's checkpoint that Spark 4 has behind settings, and Spark 5 may have without."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession
from support.spark.connector import Pipe, finish
from support.spark.stateful_query import ROCKS_DB, STATE_FORMAT, STATE_STORE

OFFSET_LOG = "spark.sql.streaming.offsetLog.formatVersion"
EVOLUTION = "spark.sql.streaming.queryEvolution"
NEW_FORMATS = {
    OFFSET_LOG: "2",
    f"{EVOLUTION}.enableSourceEvolution": "true",
    f"{EVOLUTION}.enableSinkEvolution": "true",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "true",
    STATE_FORMAT: "2",
    STATE_STORE: ROCKS_DB,
}

pytestmark = pytest.mark.matrix


@contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    """Give Spark settings for the queries that start meanwhile."""
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in values:
            spark.conf.unset(name)


def versions(pipe: Pipe, log: str) -> list[str]:
    """Return the version of each entry of a log of the checkpoint."""
    folder = pipe.checkpoint / log
    return [(folder / str(n)).read_text().splitlines()[0] for n in pipe.logged(log)]


def upgrade_offset_log(pipe: Pipe) -> None:
    """Add the batch that Spark 5 upgrades the offset log with (SPARK-55795).

    The batch has the offsets of the one before, named by their place, and is in the commit log. The
    sink does not see it.
    """
    last = max(pipe.logged("commits"))
    offsets, commits = pipe.checkpoint / "offsets", pipe.checkpoint / "commits"
    version, metadata, *sources = (offsets / str(last)).read_text().splitlines()
    assert version == "v1"
    named = [f"{place}:{source}" for place, source in enumerate(sources)]
    (offsets / str(last + 1)).write_text("\n".join(["v2", metadata, *named]))
    shutil.copy(commits / str(last), commits / str(last + 1))


@pytest.mark.weekly
def test_a_query_with_all_new_formats_goes_on_after_each_loss(pipe: Pipe) -> None:
    """Source and sink are named; the sink gets another name later."""

    def run_distinct(sink: str) -> None:
        rows = pipe.stream("orders").select("value").dropDuplicates(["value"])
        writer = pipe.write(rows).trigger(availableNow=True)
        writer._jwrite.name(sink)  # PySpark has no method for it yet
        finish(writer.start())

    pipe.feed(range(10))
    with settings(pipe.spark, NEW_FORMATS):
        run_distinct("invoices")
        pipe.lose("commits", 0)
        pipe.feed(range(5, 15))
        run_distinct("invoices")
        pipe.lose("commits", 1)
        run_distinct("bills")
    assert versions(pipe, "offsets") == ["v2", "v2"]
    assert versions(pipe, "commits") == ["v3", "v3"]
    assert list((pipe.checkpoint / "state").rglob("*.zip.crc")) != []
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(15)))


def test_a_checkpoint_of_the_first_format_goes_on_with_the_second(pipe: Pipe) -> None:
    """Spark 4.3 stays with the format of the checkpoint; the batch of Spark 5 changes it."""
    pipe.feed(range(5))
    pipe.copy()
    with settings(pipe.spark, {OFFSET_LOG: "2"}):
        pipe.feed(range(5, 10))
        pipe.copy()
        assert set(versions(pipe, "offsets")) == {"v1"}
        upgrade_offset_log(pipe)
        pipe.feed(range(10, 15))
        pipe.copy()
        assert versions(pipe, "offsets")[-2:] == ["v2", "v2"]
        pipe.lose("commits", max(pipe.logged("commits")))
        pipe.copy()
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(15)))
