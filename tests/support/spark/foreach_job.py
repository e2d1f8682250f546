"""Writes to a topic by a plain foreachBatch, by two exactly-once ones, and by no query at all.

Arguments as of `job`. Prints the id of the first query.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from support.spark.job import options_of, settings_of

from txnlog_spark import foreach_batch


def main(arguments: list[str]) -> int:
    """Run one after the other, each to the input's present end."""
    settings = settings_of(arguments)
    read, write = (options_of(settings, side) for side in ("read", "write"))
    checkpoint, group = write.pop("checkpointLocation"), write.pop("group.id")
    spark = SparkSession.builder.appName("foreach").getOrCreate()

    def save(batch: DataFrame, **more: str) -> None:
        writer = batch.select("value").write.format("txnlog").mode("append")
        writer.options(**write, **more).save()

    def run(function: Callable[[DataFrame, int], None], location: str) -> str:
        rows = spark.readStream.format("txnlog").options(**read).load().select("value")
        writer = rows.writeStream.foreachBatch(function).option("checkpointLocation", location)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return str(query.id)

    print("plain query", run(lambda batch, _: save(batch), f"{checkpoint}-plain"), file=sys.stderr)
    exact = f"{checkpoint}-exact"
    run(foreach_batch(checkpointLocation=exact, **write, **{"group.id": group}), exact)
    run(lambda batch, n: save(batch, txnAppId=group, txnVersion=str(n)), f"{checkpoint}-idempotent")
    save(spark.createDataFrame([("x",)], "value string"))
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
