"""Entry point for Spark, which finds packages named `pyspark_*`: `format("txnlog")` needs no
registration.

Spark imports all such packages to find any Python data source. So this import must not fail in a
PySpark that is too old: it would break the other sources. There the error comes when "txnlog" is
used.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

from txnlog_spark.spark_version import is_supported, require_pyspark


class NeedsNewerPySpark(DataSource):
    """Replaces the data source in an old PySpark; raises the error with the reason."""

    def __init__(self, options: dict[str, str]) -> None:
        require_pyspark()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "txnlog"


DefaultSource: type[DataSource] = NeedsNewerPySpark
if is_supported():
    from txnlog_spark.datasource import TxnLogDataSource

    DefaultSource = TxnLogDataSource

__all__ = ["DefaultSource"]
