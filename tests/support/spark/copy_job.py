"""The Spark job that the crash tests kill: each record goes to the output with where it came from.

Run under spark-submit; everything comes as NAME=VALUE arguments. Exit code 0 at the input's end, 1
when the query failed, its error on stderr.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf


def main(arguments: list[str]) -> int:
    """Copy with AvailableNow, or again and again when `trigger` says how often. `read.X` and
    `write.X` are options.

    A value of `env:NAME` is that of the environment: passwords are no arguments of commands.
    """
    settings = dict(argument.split("=", 1) for argument in arguments)
    for name, value in settings.items():
        if value.startswith("env:"):
            settings[name] = os.environ[value.removeprefix("env:")]
    spark = SparkSession.builder.appName("copy").getOrCreate()
    reader = spark.readStream.format("txnlog")
    for name, value in settings.items():
        if name.startswith("read."):
            reader = reader.option(name.removeprefix("read."), value)
    rows = reader.load()
    place = sf.struct("topic", "partition", "offset")
    value = sf.to_json(sf.struct(place.alias("source"), rows.value.cast("string").alias("value")))
    writer = rows.select("key", value.alias("value")).writeStream.format("txnlog")
    for name, text in settings.items():
        if name.startswith("write."):
            writer = writer.option(name.removeprefix("write."), text)
    often = settings.get("trigger")
    trigger = {"processingTime": often} if often else {"availableNow": True}
    query = writer.queryName("copy").trigger(**trigger).start()
    try:
        query.awaitTermination()
    except Exception as error:
        print(f"the query failed: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
