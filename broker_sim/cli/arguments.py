"""Options that the commands share; their names are those in Kafka's own tools."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from broker_sim.cli.cluster import Cluster
from broker_sim.cli.printing import Output
from txnlog_kafka.wire.topic_partition import TopicPartition

TIMEOUT_MS = 30_000
INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1
"""Largest values that requests can hold."""

Run = Callable[[Cluster, argparse.Namespace], Output | int]
"""Function that carries out a command, and returns its output, or its exit code if it has
printed."""

_TOPIC_PARTITIONS = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)(:(?P<partitions>\d+(,\d+)*))?")


class UsageError(Exception):
    """Options that contradict each other, or an invalid value of an option; the text names the
    option."""


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the brokers: a cluster, or the embedded broker of a directory."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="addresses of some brokers, host:port,host:port",
    )
    where.add_argument(
        "--path",
        metavar="DIR",
        help="folder of the embedded broker that format('txnlog') uses with this path; the command "
        "starts the broker if it does not run; produce and topics create also create it",
    )
    parser.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="properties file with security.protocol, ssl.* and sasl.*, as for Kafka's own tools",
    )


def add_broker_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that asks a broker, and prints a table."""
    add_cluster_options(parser)
    parser.add_argument(
        "--timeout-ms",
        type=number(1, INT32_MAX),
        default=TIMEOUT_MS,
        help="timeout of an operation",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Run,
    help_text: str,
) -> argparse.ArgumentParser:
    """Add a sub-command that asks a broker; `run` carries it out."""
    parser = commands.add_parser(name, help=help_text, description=help_text)
    add_broker_options(parser)
    parser.set_defaults(run=run)
    return parser


def number(low: int, high: int) -> Callable[[str], int]:
    """Return a function for argparse that reads a whole number from `low` to `high`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return value

    return read


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Return a function for argparse that reads one of these names, in upper or lower case."""

    def read(text: str) -> str:
        for name in names:
            if name.lower() == text.lower():
                return name
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(names)}")

    return read


def parse_pairs(option: str, pairs: Sequence[str]) -> dict[str, str]:
    """Read `name=value` texts. Raises UsageError."""
    values = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise UsageError(f"{option} takes NAME=VALUE, not {pair!r}")
        values[name.strip()] = value.strip()
    return values


def parse_topic_partitions(option: str, texts: Sequence[str]) -> list[tuple[str, list[int] | None]]:
    """Read `topic` or `topic:0,1` texts; None stands for all partitions. Raises UsageError."""
    found: list[tuple[str, list[int] | None]] = []
    for text in texts:
        match = _TOPIC_PARTITIONS.fullmatch(text)
        if match is None:
            raise UsageError(f"{option} takes TOPIC or TOPIC:PARTITION,PARTITION, not {text!r}")
        named = match["partitions"]
        numbers = None if named is None else [int(each) for each in named.split(",")]
        found.append((match["topic"], numbers))
    return found


def resolve_partitions(cluster: Cluster, option: str, texts: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions that such texts name, each of which exists. Raises UsageError,
    Refused."""
    partitions: dict[TopicPartition, None] = {}
    for topic, numbers in parse_topic_partitions(option, texts):
        known = cluster.partitions(topic)
        for number in known if numbers is None else numbers:
            partition = TopicPartition(topic, number)
            cluster.check_partition(partition)
            partitions[partition] = None
    return list(partitions)
