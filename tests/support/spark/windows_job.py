"""A Spark job with windows and timers that tests kill; arguments as of `job`.

The input is numbers in their order, each its event time in seconds. Each ten of them are a window,
and a group whose timer closes it: both write one row for it, in the order of the watermark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from support.spark.job import options_of, run_to_end, settings_of

if TYPE_CHECKING:
    import pandas as pd

WINDOW = 10
EPOCH = 1_000
"""The time of the number 0."""


def closed(
    key: tuple[Any, ...], parts: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Count the rows of a group, and write the count when its timer fires."""
    import pandas

    if state.hasTimedOut:
        (count,) = state.get
        state.remove()
        yield pandas.DataFrame({"value": [f"closed {key[0]} {count}"]})
        return
    count = sum(map(len, parts)) + (int(state.get[0]) if state.exists else 0)
    state.update((count,))
    state.setTimeoutTimestamp((EPOCH + (int(key[0]) + 1) * WINDOW) * 1000)


def windows_and_timers(rows: DataFrame) -> DataFrame:
    """Return both kinds of state of one source, as records."""
    numbers = rows.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n")
    numbers = numbers.withColumn("time", sf.timestamp_seconds(sf.expr(f"n + {EPOCH}")))
    numbers = numbers.withWatermark("time", "0 seconds")
    windows = numbers.groupBy(sf.window("time", f"{WINDOW} seconds")).count()
    start = f"(unix_seconds(window.start) - {EPOCH}) div {WINDOW}"
    windows = windows.selectExpr(f"concat('window ', {start}, ' ', count) value")
    tens = numbers.withColumn("ten", sf.expr(f"n div {WINDOW}")).groupBy("ten")
    timers = tens.applyInPandasWithState(
        closed, "value string", "count long", "append", GroupStateTimeout.EventTimeTimeout
    )
    return windows.unionByName(timers)


def expected(count: int) -> list[str]:
    """Return the expected rows of so many numbers, the last ten of which the watermark does not
    pass."""
    tens = range(count // WINDOW - 1)
    return sorted(f"{kind} {ten} {WINDOW}" for ten in tens for kind in ("window", "closed"))


def main(arguments: list[str]) -> int:
    """Run to the input's present end."""
    settings = settings_of(arguments)
    spark = SparkSession.builder.appName("windows and timers").getOrCreate()
    rows = spark.readStream.format("txnlog").options(**options_of(settings, "read")).load()
    writer = windows_and_timers(rows).writeStream.format("txnlog")
    writer = writer.options(**options_of(settings, "write"))
    return run_to_end(spark, writer.trigger(availableNow=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
