"""Run one query on one checkpoint, with Spark's own `kafka` or `txnlog` at either end, run after
run.

Run it with the jars of `kafka` as arguments. Each line of stdin is a JSON object: `source` and
`sink` are formats, `read` and `write` their options. The query runs to the input's present end
(Trigger.AvailableNow). The answer is one line of JSON behind ANSWER, with the error, if any.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from support.spark.spark_source_reader import serve


def copy(spark: SparkSession, wanted: dict[str, Any]) -> dict[str, Any]:
    """Run the query, and answer nothing."""
    rows = spark.readStream.format(wanted["source"]).options(**wanted["read"]).load()
    writer = rows.select("key", "value").writeStream.format(wanted["sink"])
    query = writer.options(**wanted["write"]).trigger(availableNow=True).start()
    query.awaitTermination()
    return {}


if __name__ == "__main__":
    serve(copy)
