"""Offsets of a consumer group: committed offsets, the log ends that they lag behind, and setting
them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from datetime import UTC, datetime

from broker_sim.cli.arguments import UsageError, resolve_partitions
from broker_sim.cli.cluster import Cluster, Refused
from broker_sim.cli.group_description import INACTIVE, described
from broker_sim.cli.printing import Output, Table
from broker_sim.client.reader import offsets_at
from txnlog_kafka.operations.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from txnlog_kafka.wire.topic_partition import TopicPartition


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of reset-offsets."""
    parser.add_argument("--group", required=True)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--topic", action="append", help="TOPIC or TOPIC:0,1; may be repeated")
    which.add_argument(
        "--all-topics", action="store_true", help="every partition with an offset of the group"
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to-earliest", action="store_true")
    where.add_argument("--to-latest", action="store_true")
    where.add_argument("--to-current", action="store_true")
    where.add_argument("--to-offset", type=int, metavar="N")
    where.add_argument(
        "--shift-by", type=int, metavar="N", help="offsets to add; negative: go back"
    )
    where.add_argument("--to-datetime", metavar="YYYY-MM-DDThh:mm:ss[Z]")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="show the new offsets (the default)")
    how.add_argument("--execute", action="store_true", help="set the new offsets")


def committed(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition] = ()
) -> dict[TopicPartition, int]:
    """Return the group's committed offsets, without undecided offsets."""
    return cluster.client.committed_offsets(
        group, partitions=list(partitions), require_stable=False
    )


def ends(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return log end offsets; partitions of deleted topics are left out."""
    return _listed(cluster, partitions, LATEST_TIMESTAMP)


def _listed(
    cluster: Cluster, partitions: Iterable[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    wanted = list(partitions)
    cluster.load_topics({topic for topic, _ in wanted})
    known = cluster.client.session.cluster
    there = [p for p in wanted if p.partition in known.partitions(p.topic)]
    return offsets_at(cluster.client, there, timestamp)


def reset(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Show, and with --execute set, the group's next offsets. Raises Refused for an active
    group."""
    group = arguments.group
    offsets = committed(cluster, group)
    if arguments.all_topics:
        partitions = sorted(offsets)
    else:
        partitions = resolve_partitions(cluster, "--topic", arguments.topic)
    state = described(cluster, group).group_state
    if state not in INACTIVE:
        raise Refused(
            f"resetting offsets of group {group!r}: it is {state} - stop its members first"
        )
    targets = _targets(cluster, arguments, partitions, offsets)
    if arguments.execute and targets:
        cluster.client.commit_offsets(group, targets)
    rows = [[group, *partition, targets[partition]] for partition in sorted(targets)]
    return Output([Table("offsets", ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], rows)])


def _targets(
    cluster: Cluster,
    arguments: argparse.Namespace,
    partitions: list[TopicPartition],
    offsets: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the new offsets, each within its log, as in Kafka's tool."""
    first, last = _listed(cluster, partitions, EARLIEST_TIMESTAMP), ends(cluster, partitions)
    known = [p for p in partitions if p in first and p in last]
    if arguments.to_earliest:
        wanted = {p: first[p] for p in known}
    elif arguments.to_latest:
        wanted = {p: last[p] for p in known}
    elif arguments.to_current:
        wanted = {p: offsets.get(p, last[p]) for p in known}
    elif arguments.to_offset is not None:
        wanted = dict.fromkeys(known, arguments.to_offset)
    elif arguments.shift_by is not None:
        missing = [f"{topic}-{number}" for topic, number in known if (topic, number) not in offsets]
        if missing:
            raise UsageError(
                f"--shift-by: group {arguments.group!r} has no offset of {', '.join(missing)}"
            )
        wanted = {p: offsets[p] + arguments.shift_by for p in known}
    else:
        timestamp = parse_datetime(arguments.to_datetime)
        found = _listed(cluster, known, timestamp)
        wanted = {p: last[p] if found[p] < 0 else found[p] for p in known}
    return {p: min(max(offset, first[p]), last[p]) for p, offset in wanted.items()}


def parse_datetime(text: str) -> int:
    """Return milliseconds since the epoch; without a zone it is UTC. Raises UsageError."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(f"--to-datetime takes YYYY-MM-DDThh:mm:ss, not {text!r}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    timestamp = int(moment.timestamp() * 1000)
    if timestamp < 0:  # the protocol has other meanings for these, such as -1 for the latest
        raise UsageError(f"--to-datetime takes a time from 1970 on, not {text!r}")
    return timestamp
