"""Metrics of queries, from the driver: Prometheus metrics, and the lag of a query's sources.

    from txnlog_spark.metrics import serve_metrics

    metrics = serve_metrics(spark, port=9405)   # http://127.0.0.1:9405/metrics

Needs `pip install 'txnlog_spark[spark,metrics]'`.
"""

from __future__ import annotations

from txnlog_spark.spark_version import require_pyspark

require_pyspark()

# isort: split

from txnlog_spark.metrics.lag import offsets_behind_latest  # noqa: E402
from txnlog_spark.metrics.listener import MetricsListener, serve_metrics  # noqa: E402

__all__ = ["MetricsListener", "offsets_behind_latest", "serve_metrics"]
