"""Avro columns without a jar: `from txnlog_spark.avro import from_avro, to_avro`."""

from txnlog_spark.avro.functions import from_avro, to_avro

__all__ = ["from_avro", "to_avro"]
