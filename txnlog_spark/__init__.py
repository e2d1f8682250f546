"""txnlog_spark: end-to-end exactly-once from Kafka through Spark and back.

Nothing heavy is imported here: the log store (`broker_sim`) uses `txnlog_spark.wire` and must
start without Spark, Arrow or pandas. The data source itself is `txnlog_spark.datasource`.
"""

from txnlog_spark.foreachbatch import foreach_batch
from txnlog_spark.version import __version__

__all__ = ["__version__", "foreach_batch"]
