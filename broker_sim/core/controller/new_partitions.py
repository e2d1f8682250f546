"""Registrations of new partitions, of new topics and of topics that grow.

The rules of Kafka's `ReplicationControlManager.createTopic` and `createPartitions`: brokers that
are down get replicas, too, where there are too few others, and brokers in controlled shutdown get
none. The replicas that are active are the ISR, the first of them leads, and one at least must be
active. Refusals are raised as TopicRefused.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_sim.core.controller.image import ClusterImage, Topic
from broker_sim.core.controller.placement import (
    Draw,
    check_assignment,
    place_replicas,
)
from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.controller.topic_rules import TopicRefused
from txnlog_kafka.wire.error_codes import ErrorCode


def placed_partitions(
    image: ClusterImage, partition_count: int, replication_factor: int, draw: Draw
) -> tuple[PartitionRegistration, ...]:
    """New partitions on the brokers that may have them. Raises INVALID_REPLICATION_FACTOR."""
    racks = {
        number: broker.rack
        for number, broker in image.registered.items()
        if number in image.fenced or image.is_active(number)
    }
    placed = place_replicas(racks, image.fenced, partition_count, replication_factor, draw)
    return _registered(image, placed, ErrorCode.INVALID_REPLICATION_FACTOR)


def assigned_partitions(
    image: ClusterImage,
    assignments: Sequence[Sequence[int]],
    replication_factor: int | None = None,
) -> tuple[PartitionRegistration, ...]:
    """New partitions with these replicas. Raises INVALID_REPLICA_ASSIGNMENT.

    All have as many replicas as the first, or as the topic's other partitions have.
    """
    for replicas in assignments:
        check_assignment(replicas, image.registered, replication_factor)
        replication_factor = len(replicas)
    return _registered(image, assignments, ErrorCode.INVALID_REPLICA_ASSIGNMENT)


def more_partitions(
    image: ClusterImage,
    topic: Topic,
    count: int,
    draw: Draw,
    assignments: Sequence[Sequence[int]] | None = None,
) -> tuple[PartitionRegistration, ...]:
    """The new ones of a topic that grows to `count` partitions.

    Without `assignments` they are placed as those of a new topic. Their replication factor is that
    of partition 0.
    """
    present = topic.partitions
    if assignments is not None:
        return assigned_partitions(image, assignments, len(present[0].replicas))
    new = count - len(present)
    return placed_partitions(image, new, len(present[0].replicas), draw)


def _registered(
    image: ClusterImage, placed: Sequence[Sequence[int]], refusal: ErrorCode
) -> tuple[PartitionRegistration, ...]:
    made = []
    for number, replicas in enumerate(placed):
        isr = tuple(filter(image.is_active, replicas))
        if not isr:
            brokers = ", ".join(map(str, replicas))
            reason = f"brokers {brokers} of new partition {number} are all down or shutting down"
            raise TopicRefused(refusal, reason)
        made.append(PartitionRegistration.new(tuple(replicas), isr))
    return tuple(made)
