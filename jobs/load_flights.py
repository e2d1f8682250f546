"""Loads the flights of 2013 into a topic: one event a flight, keyed by tail number.

    spark-submit jobs/load_flights.py --bootstrap-servers localhost:9092 --topic flights

The 336,776 flights are one batch write, hence one Kafka transaction: all or nothing. So you simply
repeat a load that was interrupted. The record timestamp is the scheduled departure. A topic that
has records already is left as it is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

# spark-submit puts this file's folder on the path, not the one that holds the package `jobs`.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jobs.cluster_options import add_cluster_arguments, cluster_client, connector_options
from jobs.flights_data import FLIGHT_COUNT, read_flights
from jobs.topic_columns import read_committed
from txnlog_spark.errors import TxnLogError


def flight_records(spark: SparkSession, limit: int) -> DataFrame:
    """Return columns key (tail number), value (JSON) and timestamp (scheduled departure, UTC)."""
    flights = spark.createDataFrame(read_flights().slice(0, limit))
    departure = sf.to_timestamp("time_hour", "yyyy-MM-dd'T'HH:mm:ssX")
    return flights.select(
        sf.col("tailnum").alias("key"),
        sf.to_json(sf.struct("*")).alias("value"),
        (departure + sf.make_interval(mins=sf.col("minute"))).alias("timestamp"),
    )


def load(spark: SparkSession, args: argparse.Namespace) -> int:
    """Create the topic and write the flights; return their number, 0 if the topic has records."""
    if has_records(args):
        return 0
    writer = (
        flight_records(spark, args.limit)
        .write.format("txnlog")
        .mode("append")
        .options(**connector_options(args))
        .option("topic", args.topic)
        .option("timestampColumn", "timestamp")
    )
    writer.save()
    return min(int(args.limit), FLIGHT_COUNT)


def has_records(args: argparse.Namespace) -> bool:
    """Create the topic if it is missing; return True if an earlier load filled it."""
    with cluster_client(args, "load-flights") as client:
        # The records' timestamps are of 2013: any retention by time would delete them at once.
        forever = {"retention.ms": "-1"}
        partitions = args.partitions
        client.create_topic(args.topic, partitions=partitions, config=forever, exists_ok=True)
        present = len(read_committed(client, args.topic).offsets)
        if present:
            print(f"{args.topic} has {present} records already: nothing is loaded", flush=True)
        return bool(present)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; exit with a usage line if it is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_cluster_arguments(parser)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--limit", type=int, default=FLIGHT_COUNT, help="load only the first LIMIT")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the load; return 0 if the topic holds the flights, 1 if they could not be loaded."""
    args = parse_args(argv)
    spark = SparkSession.builder.appName("load-flights").getOrCreate()
    try:
        count = load(spark, args)
    except TxnLogError as error:
        print(f"load failed: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    print(f"loaded {count} flights into {args.topic}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
