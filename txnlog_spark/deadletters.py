"""Dead letters: turns records that a PERMISSIVE read found malformed into rows for the sink.

    from txnlog_spark import dead_letters

    orders = (spark.readStream.format("txnlog").option("subscribe", "orders")
              .option("value.format", "json").option("value.schema", "id BIGINT, amount DOUBLE")
              .option("value.mode", "PERMISSIVE").option("includeHeaders", "true"). ...load())
    rows = dead_letters(orders, topic="orders.dlq")
    rows = rows.where("topic IS NOT NULL OR value.amount > 10")
    rows = rows.withColumn("topic", coalesce("topic", lit("loud")))
    rows.writeStream.format("txnlog").option("value.format", "json"). ...start()

Valid rows and dead letters come from one source and go to one sink. You can add dead letters to an
existing query with its checkpoint. The sink commits both in one transaction for each batch,
together with the offsets. A dead letter has the record's own key, value and headers, followed by
the headers of Kafka Connect's dead letter queue (KIP-298).
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from txnlog_spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HEADER_PREFIX = "__connect.errors."
"""Prefix of the headers that Kafka Connect's DeadLetterQueueReporter adds."""
EXCEPTION = "txnlog_spark.errors.MalformedValue"
MARK = "txnlog_spark.dead_letters"
"""Key in the metadata of the columns that `dead_letters` makes: the sink refuses such columns
without those that a dead letter is written from (`NEEDED`)."""
NEEDED = ("key_bytes", "value_bytes", "headers")
_STAGES = {"key": "KEY_CONVERTER", "value": "VALUE_CONVERTER"}
_COLUMNS = ("key", "value", "topic", "partition", "offset", "headers")


def dead_letters(rows: DataFrame, topic: str) -> DataFrame:
    """Return all `rows`; malformed rows become dead letters for the topic `topic`.

    `rows` come from a read with value.mode=PERMISSIVE, or key.mode, and includeHeaders=true, with
    all its columns. These columns change for the sink, and the other columns stay:

    - topic: `topic` for a dead letter, null for a valid row;
    - key, value: null in a dead letter, if they have a format;
    - key_bytes, value_bytes: the record's own bytes for a dead letter, null for a valid row. The
      sink writes these bytes unchanged and ignores key and value;
    - headers: the record's headers; a dead letter also has headers that describe the error;
    - partition, key_error, value_error: removed.

    Raises OptionError. The sink raises OptionError if a later `select` left out headers or a column
    of bytes: without the bytes, a dead letter would be written as a tombstone.
    """
    from pyspark.sql import functions as f

    sides = [side for side in _STAGES if f"{side}_error" in rows.columns]
    if not sides:
        raise OptionError(
            "value.mode", None, "set it to PERMISSIVE where the rows of dead_letters are read"
        )
    needed = (*_COLUMNS, *(f"{side}_bytes" for side in sides))
    missing = [name for name in needed if name not in rows.columns]
    if missing:
        option = "includeHeaders=true" if missing == ["headers"] else "all columns of the read"
        raise OptionError(f"column {missing[0]}", None, f"dead_letters needs {option}")
    is_letter = reduce(lambda a, b: a | b, (f.col(f"{s}_error").isNotNull() for s in sides))
    headers = f.concat(f.coalesce("headers", f.array()), *(_errors(side) for side in sides))
    made = {
        "topic": f.when(is_letter, f.lit(topic)),
        "headers": f.when(is_letter, headers).otherwise(f.col("headers")),
    }
    for side in _STAGES:
        bytes_column = f"{side}_bytes"
        has_format = bytes_column in rows.columns
        made[bytes_column] = f.when(is_letter, f.col(bytes_column if has_format else side))
        if has_format:
            made[side] = f.when(~is_letter, f.col(side))
    marked = {name: column.alias(name, metadata={MARK: True}) for name, column in made.items()}
    return rows.withColumns(marked).drop("partition", *(f"{side}_error" for side in sides))


def _errors(side: str) -> Column:
    """Return Kafka Connect's headers for a malformed key or value, an empty array for a valid
    one."""
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
