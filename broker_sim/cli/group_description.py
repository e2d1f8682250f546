"""Coordinator's description of a group, and the partitions of a member.

The partitions are in Kafka's `ConsumerProtocolAssignment`:

    int16 version, array of (string topic, array of int32 partition), bytes of the assignor
"""

from __future__ import annotations

import struct

from broker_sim.cli.cluster import Cluster
from txnlog_kafka.operations.admin import describe_group
from txnlog_kafka.wire.messages import Message
from txnlog_kafka.wire.topic_partition import TopicPartition

DEAD = "Dead"
INACTIVE = ("Empty", DEAD)
"""States without a consumer, in which offsets may be changed."""


def described(cluster: Cluster, group: str) -> Message:
    """Return the coordinator's description of a group; a missing group is `Dead`. Raises
    Refused."""
    operation = describe_group(cluster.client.session, group)
    return cluster.run(operation, f"describing group {group!r}")


def assigned_partitions(member: Message) -> list[TopicPartition]:
    """Return the member's partitions; [] for another protocol, or without an assignment yet."""
    data = bytes(member.member_assignment or b"")
    try:
        return sorted(_decode_assignment(data)) if data else []
    except (struct.error, UnicodeDecodeError):
        return []


def _decode_assignment(data: bytes) -> list[TopicPartition]:
    (topics,) = struct.unpack_from(">i", data, 2)
    at = 6
    found: list[TopicPartition] = []
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", data, at)
        topic = data[at + 2 : at + 2 + length].decode()
        at += 2 + length
        (count,) = struct.unpack_from(">i", data, at)
        numbers = struct.unpack_from(f">{max(0, count)}i", data, at + 4)
        at += 4 + 4 * count
        found += [TopicPartition(topic, number) for number in numbers]
    return found
