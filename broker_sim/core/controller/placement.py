"""Where the replicas of new partitions go: Kafka's `AdminUtils.assignReplicasToBrokers`.

The first replicas go round the brokers, from a start that is drawn once. The other replicas of a
partition follow its first one at a distance, which grows by one with each round, so that the
followers of one broker's partitions are spread over all others. When all brokers have a rack, the
brokers are ordered by alternating racks, and a rack gets a second replica only when each has one.

Randomness is a parameter (`PlacementStart`). Whether a broker may lead is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from broker_sim.core.controller.topic_rules import TopicRefused
from txnlog_spark.wire.errors import ErrorCode


class PlacementStart(NamedTuple):
    """Where a placement starts. The first two are drawn below the number of brokers."""

    first: int
    """The place, in the order of brokers, of the first replica of partition 0."""
    replica_shift: int
    """The distance of the second replica from the first, less one."""
    partition: int = 0
    """The number of the first new partition."""


def place_replicas(
    racks: Mapping[int, str | None],
    partition_count: int,
    replication_factor: int,
    start: PlacementStart,
) -> list[tuple[int, ...]]:
    """The replicas of `partition_count` new partitions, the preferred leader first.

    `racks` holds all brokers. As under Kafka's `RackAwareMode.Safe`, racks count only when every
    broker has one. Raises TopicRefused(INVALID_REPLICATION_FACTOR).
    """
    _check_replication_factor(replication_factor, len(racks))
    known = {broker: rack for broker, rack in racks.items() if rack is not None}
    aware = len(known) == len(racks)
    brokers = alternate_racks(known) if aware else sorted(racks)
    rack_count = len(set(known.values())) if aware else 1
    shift = start.replica_shift
    placed = []
    for partition in range(start.partition, start.partition + partition_count):
        if partition > 0 and partition % len(brokers) == 0:
            shift += 1
        first = (partition + start.first) % len(brokers)
        order = _followers(brokers, first, shift * rack_count)
        if aware:
            placed.append(_over_racks(brokers[first], order, known, replication_factor))
        else:
            placed.append((brokers[first], *order[: replication_factor - 1]))
    return placed


def check_assignment(
    replicas: Sequence[int], brokers: Collection[int], replication_factor: int | None = None
) -> None:
    """Raise TopicRefused(INVALID_REPLICA_ASSIGNMENT) unless a partition may have these replicas.

    `brokers` are those that exist, `replication_factor` is that of the topic's other partitions,
    None for the first one (Kafka's `validateManualPartitionAssignment`).
    """
    reason = None
    unknown = [broker for broker in sorted(replicas) if broker not in brokers]
    twice = [broker for broker in sorted(replicas) if replicas.count(broker) > 1]
    if not replicas:
        reason = "an assignment names no broker"
    elif unknown:
        reason = f"an assignment names broker {unknown[0]}, which is not registered"
    elif twice:
        reason = f"an assignment names broker {twice[0]} more than once"
    elif replication_factor is not None and len(replicas) != replication_factor:
        reason = (
            f"an assignment has {len(replicas)} replicas, other partitions have "
            f"{replication_factor}"
        )
    if reason is not None:
        raise TopicRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """All brokers: the lowest of each rack, by the racks' names, then the second lowest, ..."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    places = [
        (index, rack, broker) for rack, own in by_rack.items() for index, broker in enumerate(own)
    ]
    return [broker for _, _, broker in sorted(places)]


def _check_replication_factor(replication_factor: int, broker_count: int) -> None:
    reason = None
    if replication_factor < 1:
        reason = "Replication factor must be larger than 0."
    elif replication_factor > broker_count:
        reason = f"{replication_factor} replicas are not possible: {broker_count} brokers are up"
    if reason is not None:
        raise TopicRefused(ErrorCode.INVALID_REPLICATION_FACTOR, reason)


def _followers(brokers: Sequence[int], first: int, shift: int) -> list[int]:
    """All brokers but the first one, in the order in which they may get the other replicas."""
    others = len(brokers) - 1
    return [brokers[(first + 1 + (shift + n) % others) % len(brokers)] for n in range(others)]


def _over_racks(
    leader: int, order: Sequence[int], racks: Mapping[int, str], replication_factor: int
) -> tuple[int, ...]:
    """The replicas of one partition; the search for each goes on where the one before ended."""
    chosen = [leader]
    rack_count = len(set(racks.values()))
    position = count()
    while len(chosen) < replication_factor:
        broker = order[next(position) % len(order)]
        used = {racks[each] for each in chosen}
        if broker not in chosen and (racks[broker] not in used or len(used) == rack_count):
            chosen.append(broker)
    return tuple(chosen)
