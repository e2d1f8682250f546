"""Command `produce`: lines of standard input to records, as kafka-console-producer does.

The producer is idempotent: each batch is appended once, however often it has to be sent. It is not
transactional: records written before an error stay. Lines are sent as they come in, so it can be
used by hand.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Protocol, cast

from broker_sim.cli.arguments import add_broker_options
from broker_sim.cli.cluster import Cluster, Refused
from broker_sim.cli.console import READER_PROPERTIES, LineReader, LineRefused, read_properties
from broker_sim.cli.printing import Output, Table, write_error
from broker_sim.client.writer import TopicWriter
from txnlog_kafka.wire.records import Record

READ_BYTES = 64 * 1024


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the options, as kafka-console-producer has them."""
    text = "write records, one a line of standard input"
    example = (
        "example: echo 'k1:hello' | python -m broker_sim produce --bootstrap-server HOST:9092 "
        "--topic orders --property parse.key=true --property key.separator=:"
    )
    parser = commands.add_parser("produce", help=text, description=text, epilog=example)
    add_broker_options(parser)
    parser.add_argument(
        "--topic", required=True, help="created if it is missing and the broker allows it"
    )
    parser.add_argument(
        "--property",
        "--reader-property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="format of a line: " + ", ".join(READER_PROPERTIES) + "; may be repeated",
    )
    parser.set_defaults(run=produce)


def produce(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Write all lines; return one row with their number. Raises Refused for a line that cannot be
    read."""
    reader = LineReader(read_properties("--property", arguments.property, READER_PROPERTIES))
    topic = arguments.topic
    (partitions,) = cluster.client.topic_partitions([topic], allow_auto_create=True).values()
    if sys.stdin.isatty():
        write_error("type one record a line; Ctrl-D ends")
    producer = TopicWriter(cluster.client, topic, len(partitions))
    count = 0
    for lines in _read_lines(cast(_Input, sys.stdin.buffer)):
        now_ms = time.time_ns() // 1_000_000
        records: list[Record] = []
        try:
            for line in lines:
                records.append(reader.record(line, count + len(records) + 1, now_ms))
        except LineRefused as error:
            producer.write(records)
            written = count + len(records)
            raise Refused(f"{error}; the {written} records before it are written") from None
        producer.write(records)
        count += len(records)
    return Output([Table("topics", ["TOPIC", "RECORDS-WRITTEN"], [[topic, count]])])


class _Input(Protocol):
    """Bytes of standard input."""

    def read1(self, size: int, /) -> bytes:
        """Return the available bytes, at most `size`; b"" at the end."""
        ...


def _read_lines(file: _Input) -> Iterator[list[bytes]]:
    """Yield whole lines as they come in, without their ends; the last line may lack its end."""
    rest = b""
    while chunk := file.read1(READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]
