"""The Spark job with two sinks that tests kill: each record goes to two topics by foreachBatch.

Run under spark-submit with the arguments of `job`, and `second=TOPIC`: the topic of the
sink that is written first, which has no group. All runs of the query set one job group.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from support.spark.job import options_of, run_to_end, settings_of

from txnlog_spark import foreach_batch


def main(arguments: list[str]) -> int:
    """Copy with AvailableNow."""
    settings = settings_of(arguments)
    read, write = (options_of(settings, side) for side in ("read", "write"))
    spark = SparkSession.builder.appName("two sinks").getOrCreate()
    place = sf.struct("topic", "partition", "offset")
    value = sf.to_json(sf.struct(place.alias("source")))
    rows = spark.readStream.format("txnlog").options(**read).load()
    to_second = {n: v for n, v in write.items() if n != "group.id"} | {"topic": settings["second"]}
    sinks = [foreach_batch(name="second", **to_second), foreach_batch(name="first", **write)]

    def both(batch: DataFrame, batch_id: int) -> None:
        batch.sparkSession.sparkContext.setJobGroup("copies", "a job group of the function's own")
        for sink in sinks:
            sink(batch, batch_id)

    writer = rows.select("key", value.alias("value")).writeStream.foreachBatch(both)
    writer = writer.option("checkpointLocation", write["checkpointLocation"])
    return run_to_end(spark, writer.trigger(availableNow=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
