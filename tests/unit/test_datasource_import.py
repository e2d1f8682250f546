"""What Spark pays for the data source where it is only looked up."""

from __future__ import annotations

import subprocess
import sys

SAY_WHAT_IS_LOADED = """
import sys
import pyspark_txnlog
from txnlog_spark.datasource import TxnLogDataSource
TxnLogDataSource({"subscribe": "t", "path": "p"}).schema()
print(*sys.modules)
"""


def test_a_lookup_and_a_schema_load_neither_arrow_nor_the_client():
    asked = [sys.executable, "-c", SAY_WHAT_IS_LOADED]
    loaded = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    assert "txnlog_spark.options" in loaded
    heavy = {"pyarrow", "numpy", "kafka", "txnlog_spark.client", "txnlog_spark.protocol"}
    assert not heavy.intersection(loaded)
