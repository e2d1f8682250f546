"""A job with every shape of Python that Spark runs: it prints what each gave, as one JSON object.

Ten shapes of functions, a data source read in a batch and in streams of two kinds, and sinks of two
kinds, one of which fails; errors are printed as the last line of what the Python process said.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.functions import col, lit, pandas_udf, udf, udtf

ROWS = 20
FAILS_FROM = 10


def functions(spark: SparkSession) -> dict[str, Any]:
    """Return the result of each kind of function for the same rows."""
    rows = spark.range(ROWS).withColumn("key", col("id") % 3).repartition(2, "key")
    added, factor = spark.sparkContext.accumulator(0), spark.sparkContext.broadcast(3)

    def add(value: int) -> int:
        added.add(value)
        return value * factor.value

    plain = udf(lambda value: f"{value}:{os.environ['SPARK_LOCAL_IP']}", "string")
    arrow = udf(lambda value: value + 1, "long", useArrow=True)

    @pandas_udf("long")
    def series(values: pd.Series) -> pd.Series:
        return values * 2

    @pandas_udf("long")
    def chunks(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for part in parts:
            yield part + 100

    @pandas_udf("double")
    def mean(values: pd.Series) -> float:
        return float(values.mean())

    @udtf(returnType="word: string")
    class Repeat:
        def eval(self, times: int) -> Iterator[tuple[str]]:
            yield from (("again",) for _ in range(times))

    def sums(group: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"key": [group["key"].iloc[0]], "total": [group["id"].sum()]})

    def both(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"total": [left["id"].sum() - right["id"].sum()]})

    def batches(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from parts

    groups = rows.groupBy("key")
    return {
        "udf": values_of(rows.select(plain("id"))),
        "arrow udf": values_of(rows.select(arrow("id"))),
        "pandas udf": values_of(rows.select(series("id"))),
        "pandas udf of an iterator": values_of(rows.select(chunks("id"))),
        "pandas udf of a group": values_of(groups.agg(mean("id"))),
        "applyInPandas": values_of(groups.applyInPandas(sums, "key long, total long")),
        "cogroup": values_of(groups.cogroup(groups).applyInPandas(both, "total long")),
        "mapInPandas": values_of(rows.mapInPandas(lambda parts: parts, rows.schema)),
        "mapInArrow": values_of(rows.mapInArrow(batches, rows.schema)),
        "udtf": values_of(Repeat(lit(3))),
        "rdd": sorted(rows.select("id").rdd.map(lambda row: add(row[0])).collect()),
        "accumulator": added.value,
        "error": said(lambda: rows.select(udf(lambda value: 1 // 0, "long")("id")).collect()),
        "exit": said(lambda: rows.select(udf(lambda value: sys.exit(5), "long")("id")).collect()),
    }


class Range(InputPartition):
    def __init__(self, first: int, behind: int) -> None:
        self.first, self.behind = first, behind


def tuples(first: int, behind: int) -> Iterator[tuple[int]]:
    return iter([(number,) for number in range(first, behind)])


class BatchReader(DataSourceReader):
    def partitions(self) -> list[Range]:
        return [Range(0, 3), Range(3, 5)]

    def read(self, partition: Range) -> Iterator[tuple[int]]:  # type: ignore[override]
        return tuples(partition.first, partition.behind)


class StreamReader(DataSourceStreamReader):
    def __init__(self) -> None:
        self.end = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        self.end += 2
        return {"at": self.end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Range]:
        return [Range(start["at"], end["at"])]

    def read(self, partition: Range) -> Iterator[Any]:  # type: ignore[override]
        numbers = range(partition.first, partition.behind)
        yield pa.RecordBatch.from_pydict({"id": pa.array(numbers, pa.int32())})


class SimpleReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
        return tuples(start["at"], start["at"] + 2), {"at": start["at"] + 2}

    def readBetweenOffsets(  # noqa: N802
        self, start: dict[str, int], end: dict[str, int]
    ) -> Iterator[tuple[int]]:
        return tuples(start["at"], end["at"])


class Count(WriterCommitMessage):
    def __init__(self, rows: int) -> None:
        self.rows = rows


class RowWriter(DataSourceStreamWriter):
    """Fails with rows from FAILS_FROM on; `commit` and `abort` say so in a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, iterator: Iterator[Any]) -> Count:
        numbers = [row["id"] for row in iterator]
        if any(number >= FAILS_FROM for number in numbers):
            raise ValueError(f"a row of {FAILS_FROM} or more")
        assert TaskContext.get() is not None
        return Count(len(numbers))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        Path(self.path, f"{batchId}").write_text(f"{sum(each.rows for each in messages)} rows")

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        Path(self.path, f"{batchId}").write_text("aborted")


class ArrowWriter(DataSourceStreamArrowWriter):
    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Count:
        return Count(sum(batch.num_rows for batch in iterator))

    commit = RowWriter.commit
    abort = RowWriter.abort


class _Shapes(DataSource):
    def schema(self) -> str:
        return "id int"

    def reader(self, schema: Any) -> DataSourceReader:
        return BatchReader()


class ArrowShapes(_Shapes):
    @classmethod
    def name(cls) -> str:
        return "arrow"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader()

    def streamWriter(self, schema: Any, overwrite: bool) -> ArrowWriter:  # noqa: N802
        return ArrowWriter(self.options["path"])


class SimpleShapes(_Shapes):
    @classmethod
    def name(cls) -> str:
        return "simple"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:  # noqa: N802
        return SimpleReader()

    def streamWriter(self, schema: Any, overwrite: bool) -> RowWriter:  # noqa: N802
        return RowWriter(self.options["path"])


def sources(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the rows of data sources, and the files that sinks write."""
    found: dict[str, Any] = {}
    for shapes in (ArrowShapes, SimpleShapes):
        kind = shapes.name()
        spark.dataSource.register(shapes)
        found[f"read, {kind}"] = values_of(spark.read.format(kind).load())
        seen: dict[int, list[Any]] = {}
        stream = spark.readStream.format(kind).load()
        query = stream.writeStream.foreachBatch(
            lambda rows, number, seen=seen: seen.update({number: values_of(rows)})
        ).start()
        wait(query, lambda seen=seen: len(seen) > 3)
        query.stop()
        found[f"stream, {kind}"] = [seen[number] for number in range(3)]
        place = folder / kind
        place.mkdir()
        writer = stream.writeStream.format(kind)
        query = writer.option("checkpointLocation", f"{place}-checkpoint").start(str(place))
        found[f"sink, {kind}: error"] = said(
            lambda query=query, place=place: wait(query, lambda: len(list(place.iterdir())) > 6)
        )
        query.stop()
        found[f"sink, {kind}"] = [(place / f"{number}").read_text() for number in range(6)]
    return found


def wait(query: Any, is_done: Any) -> None:
    """Wait for the query's next batches until the condition holds, or the query has ended."""
    while not is_done() and query.isActive:
        query.awaitTermination(0.2)


def values_of(rows: DataFrame) -> list[Any]:
    """Return all rows as lists, sorted."""
    return sorted(list(row) for row in rows.collect())


def said(action: Any) -> str:
    """The last line of a Python process's own error, which is in Spark's."""
    try:
        action()
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if "said(" not in line]
        return next((line for line in lines if "Error:" in line or "Exit" in line), lines[0])
    return "no error"


def main(folder: Path) -> None:
    """Run everything."""
    spark = SparkSession.builder.getOrCreate()
    print(json.dumps(functions(spark) | sources(spark, folder)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
