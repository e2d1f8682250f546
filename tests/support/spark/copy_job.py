"""The Spark job that the crash tests kill: each record goes to the output with where it came from.

Run under spark-submit with the arguments of `job`; `read.X` and `write.X` are options.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import DataStreamWriter
from support.spark.job import options_of, run_to_end, settings_of


def copy_writer(
    spark: SparkSession,
    read: dict[str, str],
    write: dict[str, str],
    beside: DataFrame | None = None,
) -> DataStreamWriter:
    """Return the writer of the copy with the options of both sides, and without a trigger; each
    batch joins all rows with those of `beside`."""
    rows = spark.readStream.format("txnlog").options(**read).load()
    rows = rows if beside is None else rows.crossJoin(beside)
    place = sf.struct("topic", "partition", "offset")
    value = sf.to_json(sf.struct(place.alias("source"), rows.value.cast("string").alias("value")))
    writer = rows.select("key", value.alias("value")).writeStream.format("txnlog")
    return writer.options(**write)


def main(arguments: list[str]) -> int:
    """Copy with AvailableNow, or again and again when `trigger` says how often."""
    settings = settings_of(arguments)
    spark = SparkSession.builder.appName("copy").getOrCreate()
    writer = copy_writer(spark, options_of(settings, "read"), options_of(settings, "write"))
    often = settings.get("trigger")
    trigger = {"processingTime": often} if often else {"availableNow": True}
    return run_to_end(spark, writer.queryName("copy").trigger(**trigger))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
