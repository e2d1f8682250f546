"""Define `copy_job` as a declarative pipeline; `COPY_PIPELINE` has the options of both sides.

Spark imports this file from the folder of a pipeline's definitions.
"""

from __future__ import annotations

import json
import os

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

OPTIONS = json.loads(os.environ["COPY_PIPELINE"])

pipelines.create_sink("copied", "txnlog", OPTIONS["write"] | {"value.format": "json"})


@pipelines.append_flow(target="copied")
def copy() -> DataFrame:
    """Return each record with its origin."""
    spark = SparkSession.active()
    reader = spark.readStream.format("txnlog").options(**OPTIONS["read"])
    rows = reader.option("value.format", "string").load()
    place = sf.struct("topic", "partition", "offset").alias("source")
    return rows.select("key", sf.struct(place, "value").alias("value"))
