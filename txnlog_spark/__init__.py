"""txnlog_spark: end-to-end exactly-once from Kafka through Spark and back.

This module imports nothing heavy: the log store (`broker_sim`) uses `txnlog_kafka.wire` and must
start without Spark, Arrow or pandas. The data source is in `txnlog_spark.datasource`.
"""

from txnlog_kafka.version import __version__
from txnlog_spark.deadletters import dead_letters
from txnlog_spark.foreachbatch import foreach_batch

__all__ = ["__version__", "dead_letters", "foreach_batch"]
