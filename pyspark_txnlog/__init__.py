"""Spark looks up packages named `pyspark_*`: with this one, `format("txnlog")` just works.

Spark imports all of them to find any Python data source, so this import must not fail in a PySpark
that is too old: that would break the others. There the error comes when "txnlog" is used.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

from txnlog_spark.spark_version import is_supported, require_pyspark


class NeedsNewerPySpark(DataSource):
    """Stands in for the data source, and says why."""

    def __init__(self, options: dict[str, str]) -> None:
        require_pyspark()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "txnlog"


DefaultSource: type[DataSource] = NeedsNewerPySpark
if is_supported():
    from txnlog_spark.datasource import TxnLogDataSource

    DefaultSource = TxnLogDataSource

__all__ = ["DefaultSource"]
