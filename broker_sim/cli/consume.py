"""Command `consume`: print a topic's records, as kafka-console-consumer does, without a group.

It asks for the partitions' ends, prints the records before them, and asks again. With
read_committed the end is the last stable offset, so no undecided record is fetched.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Generator

from broker_sim.cli.arguments import (
    INT32_MAX,
    INT64_MAX,
    TIMEOUT_MS,
    UsageError,
    add_cluster_options,
    number,
)
from broker_sim.cli.cluster import Cluster, Refused
from broker_sim.cli.console import FORMATTER_PROPERTIES, RecordFormatter, read_properties
from broker_sim.cli.printing import EXIT_OK, write_error
from broker_sim.client.kafka import READ_COMMITTED, READ_UNCOMMITTED
from broker_sim.client.reader import Found, offsets_at, read_range
from txnlog_kafka.operations.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from txnlog_kafka.wire.topic_partition import TopicPartition

POLL_S = 0.2


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the options, as kafka-console-consumer has them."""
    text = "print a topic's records, from now on or from the beginning, until it is stopped"
    example = (
        "example: python -m broker_sim consume --bootstrap-server HOST:9092 --topic orders "
        "--from-beginning --isolation-level read_committed --timeout-ms 5000"
    )
    parser = commands.add_parser("consume", help=text, description=text, epilog=example)
    add_cluster_options(parser)
    parser.add_argument("--topic", required=True)
    parser.add_argument(
        "--partition", type=number(0, INT32_MAX), help="only this partition (default: all)"
    )
    parser.add_argument(
        "--offset", help="start in --partition: earliest, latest (the default) or a number"
    )
    parser.add_argument(
        "--from-beginning", action="store_true", help="start at the earliest record"
    )
    parser.add_argument(
        "--max-messages", type=number(1, INT64_MAX), help="stop after this many records"
    )
    parser.add_argument(
        "--timeout-ms",
        dest="idle_ms",
        type=number(1, INT32_MAX),
        help="stop if no record arrives for this time (default: never)",
    )
    parser.add_argument(
        "--isolation-level",
        choices=(READ_UNCOMMITTED, READ_COMMITTED),
        default=READ_UNCOMMITTED,
        help="read_uncommitted, Kafka's default, shows records of open and of aborted "
        "transactions as well",
    )
    parser.add_argument(
        "--property",
        "--formatter-property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="format of a record: " + ", ".join(FORMATTER_PROPERTIES) + "; may be repeated",
    )
    parser.set_defaults(run=consume, timeout_ms=TIMEOUT_MS, json=False)


def consume(cluster: Cluster, arguments: argparse.Namespace) -> int:
    """Print records until there are enough, or no record came for long enough; write their number
    to stderr."""
    properties = read_properties("--property", arguments.property, FORMATTER_PROPERTIES)
    formatter = RecordFormatter(properties)
    check_start(arguments)
    positions = _start_offsets(cluster, arguments)
    is_committed = arguments.isolation_level == READ_COMMITTED
    count = 0
    found = _records(cluster, positions, is_committed, arguments.idle_ms)
    try:
        with contextlib.closing(found):
            for (_, partition), header, record in found:
                sys.stdout.buffer.write(formatter.line(partition, header, record))
                count += 1
                if count == arguments.max_messages:
                    break
        sys.stdout.buffer.flush()
    finally:
        write_error(f"processed a total of {count} messages")
    return EXIT_OK


def check_start(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options of the start that contradict each other."""
    if arguments.offset is None:
        return
    if arguments.partition is None:
        raise UsageError("--offset needs --partition")
    if arguments.from_beginning:
        raise UsageError("--offset excludes --from-beginning")
    if not (arguments.offset in ("earliest", "latest") or arguments.offset.isdecimal()):
        raise UsageError(f"--offset takes earliest, latest or a number, not {arguments.offset!r}")


def _start_offsets(cluster: Cluster, arguments: argparse.Namespace) -> dict[TopicPartition, int]:
    """Return the first offset to read of each partition. Raises Refused for an offset out of
    range."""
    topic, only = arguments.topic, arguments.partition
    numbers = cluster.partitions(topic) if only is None else (only,)
    partitions = [TopicPartition(topic, each) for each in numbers]
    for partition in partitions:
        cluster.check_partition(partition)

    def listed(timestamp: int) -> dict[TopicPartition, int]:
        return offsets_at(cluster.client, partitions, timestamp)

    if arguments.from_beginning or arguments.offset == "earliest":
        return listed(EARLIEST_TIMESTAMP)
    if arguments.offset is None or arguments.offset == "latest":
        return listed(LATEST_TIMESTAMP)
    offset = int(arguments.offset)
    (first,), (end,) = listed(EARLIEST_TIMESTAMP).values(), listed(LATEST_TIMESTAMP).values()
    if not first <= offset <= end:
        raise Refused(f"--offset {offset}: {topic}-{only} holds offsets from {first} to {end}")
    return {partitions[0]: offset}


def _records(
    cluster: Cluster, positions: dict[TopicPartition, int], is_committed: bool, idle_ms: int | None
) -> Generator[Found]:
    """Yield records as they come, partition by partition."""
    heard_s = time.monotonic()
    while True:
        ends = offsets_at(cluster.client, positions, LATEST_TIMESTAMP, is_committed=is_committed)
        for partition, position in sorted(positions.items()):
            end = max(position, ends[partition])
            for found in read_range(cluster.client, partition, position, end, is_committed):
                yield found
                heard_s = time.monotonic()
            positions[partition] = end
        if idle_ms is not None and time.monotonic() - heard_s > idle_ms / 1000:
            return
        sys.stdout.buffer.flush()
        time.sleep(POLL_S)
