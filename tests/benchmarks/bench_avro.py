"""Rows a second of from_avro and to_avro, ours and Spark's avro jar's, in one session.

Run: python tests/benchmarks/bench_avro.py [--rows N]. Nothing is asserted: figures depend on the
machine, the ratio is what to compare. Each figure is the fastest of some rounds, in turns, of one
task (ours has a Python process beside the JVM); what a round takes beside the function is measured
too, and subtracted from neither. The floor is a function in Python that has its result already.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pyarrow as pa
from bench_setup import make_session, revision  # first: it decides whose tree is measured
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as spark_functions
from pyspark.sql.avro import functions as jar
from support.spark.spark_avro_peer import spark_avro_jar

from txnlog_spark import avro as ours
from txnlog_spark.formats.avro import functions

ROUNDS = 7
FLAT = {
    "type": "record",
    "name": "Flat",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "count", "type": "int"},
    ],
}
FLAT_SQL = """named_struct('id', id * 7919, 'name', if(id % 10 = 0, null, concat('name ', id)),
    'price', id / 3D, 'at', timestamp_micros(1700000000000000 + id * 1000),
    'count', cast(id % 100 as int))"""

NESTED = {
    "type": "record",
    "name": "Nested",
    "fields": [
        {"name": "flat", "type": ["null", FLAT]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2},
        },
    ],
}
NESTED_SQL = f"""named_struct('flat', if(id % 7 = 0, null, {FLAT_SQL}),
    'tags', slice(array('a tag', 'another', 'and one more'), 1, cast(id % 4 as int)),
    'counts', map('first', id, 'second', id * id),
    'amount', cast(id * 1.25 as decimal(18, 2)))"""


def best_rates(frame: DataFrame, rows: int, *columns: Column) -> list[float]:
    """Rows a second of the fastest round that computes each column of all rows, in turns."""
    seconds: list[list[float]] = [[] for _ in columns]
    for _ in range(ROUNDS):
        for column, found in zip(columns, seconds, strict=True):
            start = time.perf_counter()
            frame.select(column.alias("made")).write.format("noop").mode("overwrite").save()
            found.append(time.perf_counter() - start)
    return [rows / min(found) for found in seconds]


def floor_of(function: Callable[[], Column]) -> Column:
    """The same, but what comes of an Arrow batch is computed once for each number of rows."""
    as_udf = functions._as_udf

    def with_results(convert: Callable[[pa.Array], pa.Array], type_: Any) -> Any:
        results: dict[int, Any] = {}

        def give(values: pa.Array) -> pa.Array:
            if len(values) not in results:
                results[len(values)] = convert(values)
            return results[len(values)]

        return as_udf(give, type_)

    with mock.patch.object(functions, "_as_udf", with_results):
        return function()


def compare(
    frame: DataFrame, rows: int, function: Callable[[], Column], jar_column: Column
) -> dict[str, Any]:
    """The rates, the ratios to the jar's, and the rate of doing nothing with the column."""
    nothing = spark_functions.col("value").isNull()
    columns = function(), jar_column, floor_of(function), nothing
    mine, theirs, floor, idle = best_rates(frame, rows, *columns)
    found: dict[str, Any] = {"ours": round(mine), "jar": round(theirs), "floor": round(floor)}
    found |= {"nothing": round(idle), "ratio": round(mine / theirs, 2)}
    return found | {"ratio of the floor": round(floor / theirs, 2)}


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    rows = parser.parse_args().rows
    avro_jar = spark_avro_jar()
    spark = make_session([avro_jar])
    found: dict[str, Any] = {"revision": revision(), "jar": avro_jar.name, "rows": rows}
    for name, schema, sql in (("flat", FLAT, FLAT_SQL), ("nested", NESTED, NESTED_SQL)):
        text = json.dumps(schema)
        values = spark.range(0, rows, 1, 1).selectExpr(f"{sql} AS value").localCheckpoint()
        # Not cached: the cached plan would answer when the jar is measured.
        written = values.select(jar.to_avro("value", text).alias("value")).localCheckpoint()
        sizes = written.select(spark_functions.avg(spark_functions.length("value")))
        found[name] = {
            "bytes": round(sizes.first()[0]),
            "to_avro": compare(
                values,
                rows,
                partial(ours.to_avro, "value", text),
                jar.to_avro("value", text),
            ),
            "from_avro": compare(
                written,
                rows,
                partial(ours.from_avro, "value", text),
                jar.from_avro("value", text),
            ),
        }
    print(json.dumps(found, indent=1))
    spark.stop()


if __name__ == "__main__":
    main()
