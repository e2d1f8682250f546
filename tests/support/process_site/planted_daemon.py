"""Spark's daemon that forks Python workers, with what a planted job's workers import in it already.

Each step that fails ends its worker, and the next one would take seconds to import the same again.
"""

from __future__ import annotations

import importlib

from pyspark.daemon import manager

for name in (
    "pyspark.sql.pandas.serializers",
    "pyarrow.fs",
    "azure.identity",
    "txnlog_spark.avro",
    "txnlog_spark.datasource",
    "txnlog_spark.storage.azure",
):
    importlib.import_module(name)

if __name__ == "__main__":
    manager()
