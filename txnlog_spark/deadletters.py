"""Dead letters: the records that a PERMISSIVE read found malformed, as rows for the sink.

    from txnlog_spark import dead_letters

    orders = (spark.readStream.format("txnlog").option("subscribe", "orders")
              .option("value.format", "json").option("value.schema", "id BIGINT, amount DOUBLE")
              .option("value.mode", "PERMISSIVE").option("includeHeaders", "true"). ...load())
    good = orders.where("value_error IS NULL").selectExpr("'loud' AS topic", "key", "value")
    bad = dead_letters(orders, topic="orders.dlq")
    (good.unionByName(bad, allowMissingColumns=True)
     .writeStream.format("txnlog").option("value.format", "json"). ...start())

Good rows and dead letters are rows of one sink, so that they are in the output together, in the one
transaction of their batch, with the offsets. A dead letter has the record's own key, value and
headers, and after these the headers of Kafka Connect's dead letter queue (KIP-298).
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from txnlog_spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HEADER_PREFIX = "__connect.errors."
"""Of the headers that Kafka Connect's DeadLetterQueueReporter adds."""
EXCEPTION = "txnlog_spark.errors.MalformedValue"
_STAGES = {"key": "KEY_CONVERTER", "value": "VALUE_CONVERTER"}
_COLUMNS = ("key", "value", "topic", "partition", "offset", "headers")


def dead_letters(rows: DataFrame, topic: str) -> DataFrame:
    """The malformed ones of `rows`, for the topic `topic`; the columns are those of the sink.

    `rows` are of a read with value.mode=PERMISSIVE, or key.mode, and includeHeaders=true, with all
    its columns. A column that has a format is null in what is given, and its bytes are in
    key_bytes or value_bytes, which the sink writes as they are. Raises OptionError.
    """
    from pyspark.sql import functions as f

    sides = [side for side in _STAGES if f"{side}_error" in rows.columns]
    if not sides:
        raise OptionError(
            "value.mode", None, "set it to PERMISSIVE where the rows of dead_letters are read"
        )
    missing = [name for name in _COLUMNS if name not in rows.columns]
    if missing:
        option = "includeHeaders=true" if missing == ["headers"] else "all columns of the read"
        raise OptionError(f"column {missing[0]}", None, f"dead_letters needs {option}")
    malformed = reduce(lambda a, b: a | b, (f.col(f"{s}_error").isNotNull() for s in sides))
    headers = f.concat(f.coalesce("headers", f.array()), *(_errors(side) for side in sides))
    kept = [side for side in _STAGES if f"{side}_bytes" in rows.columns]
    return rows.where(malformed).select(
        *(_without_value(side, rows) if side in kept else f.col(side) for side in _STAGES),
        f.lit(topic).alias("topic"),
        headers.alias("headers"),
        *(f.col(f"{side}_bytes") for side in kept),
    )


def _without_value(side: str, rows: DataFrame) -> Column:
    from pyspark.sql import functions as f

    return f.lit(None).cast(rows.schema[side].dataType).alias(side)


def _errors(side: str) -> Column:
    """The headers of Kafka Connect's for a malformed key or value; none where it is right."""
    from pyspark.sql import functions as f

    problem = f.col(f"{side}_error")
    said = {
        "topic": f.col("topic"),
        "partition": f.col("partition").cast("string"),
        "offset": f.col("offset").cast("string"),
        "stage": f.lit(_STAGES[side]),
        "exception.class.name": f.lit(EXCEPTION),
        "exception.message": problem,
    }
    made = f.array(
        *(
            f.struct(f.lit(HEADER_PREFIX + name).alias("key"), text.cast("binary").alias("value"))
            for name, text in said.items()
        )
    )
    return f.when(problem.isNotNull(), made).otherwise(f.array())
