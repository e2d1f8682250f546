"""Spark's own JVM source `kafka` in a process of its own, driven over stdin.

Run with the jars of the source as arguments. Each line of stdin is a JSON object with `options` of
the source; with a `checkpoint` it is read as a stream with Trigger.AvailableNow, else as a batch.
Each answer is one line of JSON behind ANSWER: the rows, and for a stream how its micro-batches
were cut, or the error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.spark.connector import start_session
from support.spark.json_peer import ANSWER

COLUMNS = ("partition", "offset", "CAST(value AS STRING)")


def start(jars: list[str]) -> SparkSession:
    """A small session that has the source."""
    settings = {
        "spark.jars": ",".join(jars),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        # A bad range must show as an error and not be tried again.
        "spark.task.maxFailures": "1",
    }
    return start_session("local[2]", **settings)


def rows_of(frame: DataFrame) -> list[list[Any]]:
    """(partition, offset, value) of all rows, sorted."""
    return sorted(list(row) for row in frame.collect())


def read(spark: SparkSession, wanted: dict[str, Any]) -> dict[str, Any]:
    """Read a batch, or a stream up to what is there now."""
    if "checkpoint" not in wanted:
        rows = spark.read.format("kafka").options(**wanted["options"]).load()
        return {"rows": rows_of(rows.selectExpr(*COLUMNS)), "count": rows.count()}
    stream = spark.readStream.format("kafka").options(**wanted["options"]).load()
    rows: list[list[Any]] = []
    writer = stream.selectExpr(*COLUMNS).writeStream.foreachBatch(
        lambda frame, _batch_id: rows.extend(rows_of(frame))
    )
    running = writer.option("checkpointLocation", wanted["checkpoint"]).trigger(availableNow=True)
    query = running.start()
    query.awaitTermination()
    progress = [(each["sources"][0]["endOffset"], each) for each in query.recentProgress]
    batches = [[json.loads(end), each["numInputRows"]] for end, each in progress]
    return {"rows": rows, "batches": batches}


def serve(answer_to: Callable[[SparkSession, dict[str, Any]], dict[str, Any]]) -> None:
    """Answer one request after another until stdin ends."""
    spark = start(sys.argv[1:])
    print(ANSWER + "{}", flush=True)
    for line in sys.stdin:
        try:
            answer = answer_to(spark, json.loads(line))
        except PySparkException as error:
            answer = {"error": str(error)}
        print(ANSWER + json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    serve(read)
