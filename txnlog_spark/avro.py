"""Avro columns without a jar: `from txnlog_spark.avro import from_avro, to_avro`."""

from txnlog_spark.spark_version import require_pyspark

require_pyspark()
try:
    import fastavro as _fastavro  # noqa: F401
except ImportError as error:
    raise ImportError("txnlog_spark.avro needs fastavro: install txnlog_spark[avro]") from error

from txnlog_spark.formats.avro_functions import from_avro, to_avro  # noqa: E402

__all__ = ["from_avro", "to_avro"]
