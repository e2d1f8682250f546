"""A remote session's batch write and read, foreachBatch and dead letters; run with SPARK_REMOTE.

Arguments: bootstrap servers, input topic, output topic, checkpoint. Prints what the batch read got
as one line of JSON.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

from txnlog_spark import dead_letters, foreach_batch


def as_records(counts: DataFrame) -> DataFrame:
    """The words' counts as records."""
    return counts.selectExpr("word AS key", "concat(word, '=', count) AS value")


def main(bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    """Write words to the input, count them with two sinks in update mode, twice; and read all.

    The words, which are not JSON, are copied as dead letters.
    """
    spark = SparkSession.builder.getOrCreate()
    cluster = {"kafka.bootstrap.servers": bootstrap}
    rows = spark.readStream.format("txnlog").options(**cluster, subscribe=source)
    rows = rows.option("startingOffsets", "earliest").load()
    counts = rows.selectExpr("CAST(value AS STRING) AS word").groupBy("word").count()
    sinks = [
        foreach_batch(as_records, name=name, topic=target, checkpointLocation=checkpoint, **cluster)
        for name in ("", "second")
    ]

    def write(batch: DataFrame, batch_id: int) -> None:
        for sink in sinks:
            sink(batch, batch_id)

    for words in ("aba", "c"):
        given = spark.createDataFrame([(each,) for each in words], "value string")
        given.write.format("txnlog").options(**cluster, topic=source).mode("append").save()
        query = counts.writeStream.outputMode("update").foreachBatch(write)
        query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
    typed = spark.readStream.format("txnlog").options(**cluster, subscribe=source)
    typed = typed.option("value.format", "json").option("value.schema", "id INT")
    typed = typed.option("value.mode", "PERMISSIVE").option("includeHeaders", "true")
    letters = dead_letters(typed.option("startingOffsets", "earliest").load(), target)
    writer = letters.writeStream.format("txnlog").options(**cluster).option("value.format", "json")
    writer = writer.option("checkpointLocation", f"{checkpoint}-letters")
    writer.trigger(availableNow=True).start().awaitTermination()
    both = spark.read.format("txnlog").options(**cluster, subscribe=f"{source},{target}").load()
    values = both.selectExpr("topic", "CAST(value AS STRING) AS value").collect()
    print(json.dumps(sorted([each.topic, each.value] for each in values)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
