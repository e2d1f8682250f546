"""The stateful query as a Spark job that the crash tests kill; arguments as of `copy_job`.

`second` names the second input topic. There is no group: Spark reads the first topic as several
sources, and a group has one position in a partition.
"""

from __future__ import annotations

import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.spark.stateful_query import ROCKS_DB, STATE_STORE, stateful


def main(arguments: list[str]) -> int:
    """Run to the input's present end."""
    settings = dict(argument.split("=", 1) for argument in arguments)
    spark = SparkSession.builder.appName("stateful").getOrCreate()
    spark.conf.set(STATE_STORE, ROCKS_DB)
    options = {
        side: {
            name.removeprefix(side): value
            for name, value in settings.items()
            if name.startswith(side) and name != side + "group.id"
        }
        for side in ("read.", "write.")
    }
    reader = spark.readStream.format("txnlog").options(**options["read."])
    first = reader.load()
    second = reader.option("subscribe", settings["second"]).load()
    writer = stateful(first, second).writeStream.format("txnlog").options(**options["write."])
    try:
        writer.trigger(availableNow=True).start().awaitTermination()
    except PySparkException as error:
        print(f"the query failed: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
