"""A Spark job that writes one batch of a given size: `bootstrap topic rows bytes_each`."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

DIGEST_BYTES = 32


def main(bootstrap: str, topic: str, rows: int, bytes_each: int) -> int:
    """Write rows whose values are the digest of their number, repeated: each row has another
    one."""
    spark = SparkSession.builder.appName("large-write").getOrCreate()
    digest = sf.md5(sf.col("id").cast("string"))
    made = spark.range(rows, numPartitions=16).select(
        sf.col("id").cast("string").cast("binary").alias("key"),
        sf.repeat(digest, bytes_each // DIGEST_BYTES).cast("binary").alias("value"),
    )
    writer = made.write.format("txnlog").mode("append").option("topic", topic)
    writer = writer.option("kafka.bootstrap.servers", bootstrap)
    writer.option("kafka.transaction.timeout.ms", "900000").save()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
