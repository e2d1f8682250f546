"""Batch reads with filters: the same rows, and what they exclude is not asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan
from support.clients.librdkafka import produce_values
from support.spark.connector import Pipe

from txnlog_spark.source.batch import FilteringBatchReader
from txnlog_spark.source.settings import read_source_settings

CONFIG = "spark.sql.python.filterPushdown.enabled"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def fed(pipe: Pipe) -> Pipe:
    """Three partitions of 40 records, one a minute; the last of each is an hour early."""
    rows = pipe.spark.range(120).selectExpr(
        "cast(id as string) value",
        "cast(id % 3 as int) partition",
        f"timestamp_millis({int(BEGIN.timestamp() * 1000)} + (id div 3) * 60000 "
        "- if(id >= 117, 3600000, 0)) at",
    )
    pipe.save(rows.coalesce(1), timestampColumn="at")
    return pipe


@pytest.fixture
def pushing(pipe: Pipe) -> Iterator[None]:
    pipe.spark.conf.set(CONFIG, "true")
    yield
    pipe.spark.conf.unset(CONFIG)


@pytest.mark.matrix
def test_the_rows_are_those_without_push_down(fed: Pipe, pushing: None) -> None:
    after, before = BEGIN + timedelta(minutes=5), BEGIN + timedelta(minutes=30, milliseconds=1)
    conditions = [
        "partition = 1",
        "partition in (0, 2) and offset between 5 and 9",
        "partition != 1 and not (offset < 38)",
        "offset in (3, 7) or partition = 9",
        "offset in (3, 7)",
        "partition is null",
        sf.col("timestamp") >= sf.lit(after),
        (sf.col("timestamp") > sf.lit(after)) & (sf.col("timestamp") < sf.lit(before)),
        (sf.col("timestamp") == sf.lit(after)) & (sf.col("partition") == 0),
        "offset > 20 and cast(value as string) like '%1'",
    ]
    columns = ("partition", "offset", "value")
    everything = fed.read(fed.output).cache()
    for condition in conditions:
        plain = everything.filter(condition).select(*columns).collect()
        pushed = fed.read(fed.output, filterPushdown="true").filter(condition)
        assert sorted(pushed.select(*columns).collect()) == sorted(plain), condition
    everything.unpersist()
    assert fed.read(fed.output, filterPushdown="true").filter("partition = 1").count() == 40


def test_spark_says_what_to_set_when_its_own_configuration_is_off(fed: Pipe) -> None:
    with pytest.raises(PySparkException, match=CONFIG):
        fed.read(fed.output, filterPushdown="true").filter("partition = 1").collect()


def test_what_is_excluded_is_not_fetched(pipe: Pipe, requests: Counter[str]) -> None:
    for number in range(3):
        for _ in range(4):  # batches that no Fetch of 64 KiB brings together
            produce_values(pipe.bootstrap, pipe.input, ["x" * 60_000], partition=number)

    def fetches(*filters: Filter) -> tuple[int, int]:
        """(Fetch requests, rows) of a read."""
        given = {"kafka.bootstrap.servers": pipe.bootstrap, "subscribe": pipe.input}
        given |= {"kafka.fetch.max.bytes": "65536", "filterPushdown": "true", "minPartitions": "3"}
        reader = FilteringBatchReader(read_source_settings(given, streaming=False))
        list(reader.pushFilters(list(filters)))
        requests.clear()
        rows = sum(b.num_rows for p in reader.partitions() for b in reader.read(p))
        return requests["FETCH"], rows

    everything, rows = fetches()
    assert rows == 12
    assert everything >= 12
    assert fetches(EqualTo(("partition",), 1)) == (everything // 3, 4)
    assert fetches(EqualTo(("partition",), 7)) == (0, 0)
    few, rows = fetches(LessThan(("offset",), 1))
    assert (few <= everything // 4, rows) == (True, 3)
    late = datetime.now(UTC) + timedelta(days=1)
    assert fetches(GreaterThanOrEqual(("timestamp",), late)) == (0, 0)
