"""Flights in, enriched flights out, exactly once: the job that the connector is for.

    spark-submit jobs/consume_transform_produce.py --bootstrap-servers localhost:9092 \
        --input-topic flights --output-topic flights-enriched \
        --checkpoint checkpoints/flights --group-id flights-enricher

Each input record (a flight as JSON) becomes one output record: carrier and airport names are
joined, a delay class is computed, the key stays, and `source` keeps the coordinates of the input
record, by which `jobs/audit.py` proves that nothing is lost or doubled. A value that is not a
flight is passed on with the class `unreadable`, never dropped.

It runs until SIGTERM, or until the input's end with --available-now.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

# spark-submit puts this file's folder on the path, not the one that holds the package `jobs`.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jobs.cluster_options import add_cluster_arguments, connector_options
from jobs.flights_data import read_airports, read_carriers

FLIGHT_SCHEMA = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,
    sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING,
    dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour STRING
"""

LATE_MINUTES_MIN = 15
"""The aviation authority counts a flight as late from the 15th minute."""
VERY_LATE_MINUTES_MIN = 60


def delay_class(flight: Column) -> Column:
    """Return the class of a flight: unreadable, cancelled, diverted, early, on_time, late,
    very_late.

    `flight` is the parsed struct; a flight that left but has no arrival delay was diverted.
    """
    delay = flight["arr_delay"]
    return (
        sf.when(flight["carrier"].isNull(), "unreadable")
        .when(flight["dep_time"].isNull(), "cancelled")
        .when(delay.isNull(), "diverted")
        .when(delay < 0, "early")
        .when(delay < LATE_MINUTES_MIN, "on_time")
        .when(delay < VERY_LATE_MINUTES_MIN, "late")
        .otherwise("very_late")
    )


def enrich(records: DataFrame, carriers: DataFrame, airports: DataFrame) -> DataFrame:
    """Return columns key and value (JSON) of the output, one row per row of `records`, in its
    order.

    `records` has the columns of the source. The small tables are broadcast, so that no shuffle
    changes the order of one key's records.
    """
    flight = sf.from_json(sf.col("value").cast("string"), FLIGHT_SCHEMA)
    source = sf.struct("topic", "partition", "offset", "timestamp").alias("source")
    parsed = records.select("key", source, flight.alias("flight"))
    origins = airports.select(sf.col("faa").alias("origin"), sf.col("airport_name").alias("from"))
    dests = airports.select(sf.col("faa").alias("dest"), sf.col("airport_name").alias("to"))
    named = (
        parsed.join(sf.broadcast(carriers), sf.col("flight.carrier") == carriers["carrier"], "left")
        .join(sf.broadcast(origins), sf.col("flight.origin") == origins["origin"], "left")
        .join(sf.broadcast(dests), sf.col("flight.dest") == dests["dest"], "left")
    )
    value = sf.struct(
        sf.struct("source.topic", "source.partition", "source.offset").alias("source"),
        sf.date_format("source.timestamp", "yyyy-MM-dd'T'HH:mm:ssXXX").alias("event_time"),
        sf.col("flight.carrier"),
        sf.col("carrier_name"),
        sf.col("flight.flight"),
        sf.col("flight.tailnum"),
        sf.col("flight.origin"),
        sf.col("from").alias("origin_name"),
        sf.col("flight.dest"),
        sf.col("to").alias("dest_name"),
        sf.col("flight.distance"),
        sf.col("flight.dep_delay"),
        sf.col("flight.arr_delay"),
        delay_class(sf.col("flight")).alias("delay_class"),
    )
    return named.select("key", sf.to_json(value).alias("value"))


def start_query(spark: SparkSession, args: argparse.Namespace) -> StreamingQuery:
    """Start the streaming query that `args` describes."""
    extra = dict(option.split("=", 1) for option in args.option)
    cluster = connector_options(args)
    reader = (
        spark.readStream.format("txnlog")
        .options(**cluster)
        .option("subscribe", args.input_topic)
        .option("startingOffsets", args.starting_offsets)
        .option("group.id", args.group_id)
    )
    if args.max_offsets_per_trigger:
        reader = reader.option("maxOffsetsPerTrigger", args.max_offsets_per_trigger)
    carriers = spark.createDataFrame(read_carriers())
    airports = spark.createDataFrame(read_airports())
    writer = (
        enrich(reader.load(), carriers, airports)
        .writeStream.format("txnlog")
        .options(**cluster)
        .option("topic", args.output_topic)
        .option("checkpointLocation", args.checkpoint)
        .option("group.id", args.group_id)
        .options(**extra)
    )
    if args.transactional_id:
        writer = writer.option("transactional.id", args.transactional_id)
    if args.available_now:
        writer = writer.trigger(availableNow=True)
    elif args.trigger_interval:
        writer = writer.trigger(processingTime=args.trigger_interval)
    return writer.start()


def follow(query: StreamingQuery) -> None:
    """Print one line a micro-batch until the query ends. Raises the error that the query failed
    with."""
    shown = -1
    while not query.awaitTermination(1):
        shown = _show_progress(query, shown)
    _show_progress(query, shown)


def _show_progress(query: StreamingQuery, shown: int) -> int:
    for progress in query.recentProgress:
        batch_id = int(progress["batchId"])
        if batch_id > shown and progress["numInputRows"]:
            duration_ms = progress["durationMs"].get("triggerExecution", 0)
            rows = progress["numInputRows"]
            print(f"batch {batch_id}: {rows} records in {duration_ms} ms", flush=True)
            shown = batch_id
    return shown


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; exit with a usage line if it is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_cluster_arguments(parser)
    parser.add_argument("--input-topic", required=True)
    parser.add_argument("--output-topic", required=True)
    parser.add_argument("--checkpoint", required=True, help="directory of Spark's checkpoint")
    parser.add_argument("--group-id", required=True, help="group that offsets are committed to")
    parser.add_argument("--transactional-id", help="default: derived from the group id")
    parser.add_argument(
        "--starting-offsets",
        default="committedOrEarliest",
        help="start of a new checkpoint: committedOrEarliest (default: the group's offsets, so "
        "that a lost checkpoint doubles no record), committed, earliest, latest, or JSON",
    )
    parser.add_argument("--available-now", action="store_true", help="stop at the input's end")
    parser.add_argument("--max-offsets-per-trigger", type=int, help="records per micro-batch")
    parser.add_argument("--trigger-interval", help='interval of batches, such as "5 seconds"')
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of the sink, such as kafka.compression.type=zstd",
    )
    args = parser.parse_args(argv)
    if any("=" not in option for option in args.option):
        parser.error("--option takes NAME=VALUE")
    return args


def main(argv: list[str] | None = None) -> int:
    """Run the job; return 0 at the end of the input or after SIGTERM, 1 if the query failed."""
    args = parse_args(argv)
    spark = SparkSession.builder.appName("consume-transform-produce").getOrCreate()
    query = start_query(spark, args)
    signal.signal(signal.SIGTERM, lambda *_: query.stop())
    try:
        follow(query)
    except Exception as error:  # noqa: BLE001  the process ends here, with the reason in one line
        print(f"the query failed: {_reason(error)}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


def _reason(error: BaseException) -> str:
    """Return the connector's own message, to the end of its line: Spark's text stands around it."""
    text = str(error).strip()
    named = re.findall(r"\btxnlog_(?:kafka|spark)\.errors\..*", text)
    return named[-1] if named else (text.splitlines() or [type(error).__name__])[0]


if __name__ == "__main__":
    sys.exit(main())
