"""The stateful query as a Spark job that the crash tests kill; arguments as of `job`.

`second` names the second input topic. There is no group: Spark reads the first topic as several
sources, and a group has one position in a partition.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from support.spark.job import options_of, run_to_end, settings_of
from support.spark.stateful_query import ROCKS_DB, STATE_STORE, stateful


def main(arguments: list[str]) -> int:
    """Run to the input's present end."""
    settings = settings_of(arguments)
    spark = SparkSession.builder.appName("stateful").getOrCreate()
    spark.conf.set(STATE_STORE, ROCKS_DB)
    read, write = (options_of(settings, side) for side in ("read", "write"))
    for options in (read, write):
        options.pop("group.id", None)
    reader = spark.readStream.format("txnlog").options(**read)
    first = reader.load()
    second = reader.option("subscribe", settings["second"]).load()
    writer = stateful(first, second).writeStream.format("txnlog").options(**write)
    return run_to_end(spark, writer.trigger(availableNow=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
