"""The Spark job of the planted secrets: steps that work, and steps that must fail.

Its steps come as one line of JSON on standard input, so that no argument has a secret. What it
saw is in files of its folder, which is its working directory: `explained`, `progress`, `errors`.
It says READY on standard output when all steps are done, and ends when standard input does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from txnlog_spark.avro import from_avro

Step = dict[str, Any]
NOT_STARTED = "Python worker failed to connect back"
ATTEMPTS_MAX = 5


def stream(spark: SparkSession, step: Step) -> None:
    """Copy one topic to another to its end."""
    rows = spark.readStream.format("txnlog").options(**step["read"]).load()
    explain(rows)
    writer = rows.select("key", "value").writeStream.format("txnlog").options(**step["write"])
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        note("progress", *map(str, query.recentProgress))


def read(spark: SparkSession, step: Step) -> None:
    rows = spark.read.format("txnlog").options(**step["read"]).load()
    explain(rows)
    rows.count()


def save(spark: SparkSession, step: Step) -> None:
    """A batch write of one row that is too large for a commit message."""
    rows = spark.sql("SELECT repeat('x', 950000) AS value")
    rows.write.format("txnlog").options(**step["write"]).mode("append").save()


def decode(spark: SparkSession, step: Step) -> None:
    """Decode one value by a schema registry."""
    value = from_avro("value", step["schema"], step["options"]).alias("made")
    rows = spark.createDataFrame([(bytes(step["value"]),)], "value binary").select(value)
    explain(rows)
    rows.collect()


STEPS: dict[str, Callable[[SparkSession, Step], None]] = {
    "stream": stream,
    "read": read,
    "save": save,
    "decode": decode,
}


def note(name: str, *texts: str) -> None:
    with Path(name).open("a") as file:
        print(*texts, sep="\n", file=file)


def explain(rows: DataFrame) -> None:
    with Path("explained").open("a") as file, contextlib.redirect_stdout(file):
        rows.explain(True)


def is_failing(spark: SparkSession, step: Step) -> bool:
    """Carry out a step; what it fails with is noted.

    Again where the machine was so busy that a Python process of Spark's did not start in 10 s.
    """
    for _ in range(ATTEMPTS_MAX):
        try:
            STEPS[step["kind"]](spark, step)
        except Exception as error:
            note("errors", f"STEP {step['name']}", str(error), traceback.format_exc())
            if NOT_STARTED not in str(error):
                return True
        else:
            return False
    raise RuntimeError(f"{step['name']}: {NOT_STARTED}, {ATTEMPTS_MAX} times")


def log_of_kafka(where: str) -> None:
    """Kafka-python says nothing where we use it: that it would be seen is seen by this line."""
    logging.getLogger("kafka.protocol").debug("heard on %s", where)


def main() -> None:
    """Carry out all steps in their order; an error does not end the job."""
    job = json.loads(sys.stdin.readline())
    builder = SparkSession.builder.master("local[1]").appName("planted")
    for name, value in job["config"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    log_of_kafka("the driver")
    spark.sparkContext.parallelize(["an executor"], 1).foreach(log_of_kafka)
    for step in job["steps"]:
        failed = is_failing(spark, step)
        if failed != step["fails"]:
            note("unexpected", f"{step['name']}: failed={failed}")
    print("READY", flush=True)
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main()
