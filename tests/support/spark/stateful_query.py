"""Define one query with each kind of state that Spark keeps, and compute its output.

The input is two topics of numbers; a number is its event time in seconds after EPOCH. The first
topic has 0, 1, 2, ..., the second has the even numbers, and far beyond them one number that lets
watermarks pass. A batch that is counted twice, or a row that is lost, shows in the later output of
every kind of state.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructField, StructType

if TYPE_CHECKING:
    import pandas as pd

STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""transformWithState works with this one only."""
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
"""2: each state is named by an id of its own, which Spark's commit log has."""
LATE = "200 seconds"
FAR = 1_000_000
EPOCH = 1_000
"""The time of the number 0: at 0 s, the first watermark, a row is late for a join."""
WINDOW = 10
KEYS = 3


class Numbering(StatefulProcessor):
    """Gives each row of a key the next number."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        schema = StructType([StructField("count", LongType())])
        self._count = handle.getValueState("count", schema)

    def handleInputRows(  # noqa: N802  Spark's signature
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        import pandas

        count = self._count.get()[0] if self._count.exists() else 0
        for part in rows:
            numbers = range(count, count + len(part))
            count += len(part)
            yield pandas.DataFrame({"k": key[0], "number": numbers})
        self._count.update((count,))


def numbers_of(rows: DataFrame) -> DataFrame:
    """The columns `n` and `time`."""
    numbers = rows.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n")
    return numbers.withColumn("time", sf.timestamp_seconds(sf.expr(f"n + {EPOCH}"))).withWatermark(
        "time", LATE
    )


def stateful(first: DataFrame, second: DataFrame) -> DataFrame:
    """Windows, duplicates, a join and a state of the user's own, as records."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    left, right = numbers_of(first), numbers_of(second)
    windows = left.groupBy(sf.window("time", f"{WINDOW} seconds")).count()
    windows = windows.selectExpr(
        f"concat('window ', unix_seconds(window.start) - {EPOCH}, ' ', count) value"
    )
    pairs = left.withColumn("pair", sf.expr("n div 2"))
    pairs = pairs.dropDuplicatesWithinWatermark(["pair"]).selectExpr("concat('pair ', pair) value")
    near = sf.expr("l.n = r.n AND r.time BETWEEN l.time AND l.time + INTERVAL 20 SECONDS")
    joined = left.alias("l").join(right.alias("r"), near, "leftOuter")
    joined = joined.selectExpr(
        "concat('join ', l.n, ' ', coalesce(CAST(r.n AS STRING), 'none')) value"
    )
    numbered = left.where(f"n < {FAR}").selectExpr(f"n % {KEYS} AS k").groupBy("k")
    numbered = numbered.transformWithStateInPandas(
        Numbering(), "k BIGINT, number BIGINT", outputMode="Append", timeMode="None"
    ).selectExpr("concat('state ', k, ' ', number) value")
    return windows.union(pairs).union(joined).union(numbered)


def expected(count: int) -> list[str]:
    """The output for the numbers below `count`, and the far ones, computed without Spark."""
    numbers = range(count)
    windows = Counter(n // WINDOW * WINDOW for n in numbers)
    found = [f"window {start} {size}" for start, size in windows.items()]
    found += [f"pair {pair}" for pair in {n // 2 for n in numbers}]
    found += [f"join {n} {n if n % 2 == 0 else 'none'}" for n in numbers]
    for key, size in Counter(n % KEYS for n in numbers).items():
        found += [f"state {key} {number}" for number in range(size)]
    return sorted(found)


def check(values: list[str], count: int) -> None:
    """Fail unless the output is that, without what the far numbers gave."""
    seen = Counter(value for value in values if int(value.split()[1]) < FAR // 2)
    wanted = Counter(expected(count))
    assert not wanted - seen, f"missing: {wanted - seen}"
    assert not seen - wanted, f"doubled, or wrong: {seen - wanted}"
