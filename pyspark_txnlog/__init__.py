"""Spark looks up packages named `pyspark_*`: with this one, `format("txnlog")` just works."""

from txnlog_spark.datasource import TxnLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
