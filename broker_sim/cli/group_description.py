"""What a coordinator says of a group, and which partitions a member has.

The latter is Kafka's `ConsumerProtocolAssignment`:

    int16 version, array of (string topic, array of int32 partition), bytes of the assignor
"""

from __future__ import annotations

import struct

from broker_sim.cli.cluster import Cluster, check_code
from txnlog_kafka.operations.calls import GROUP
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import TopicPartition

DEAD = "Dead"
INACTIVE = ("Empty", DEAD)
"""States in which nobody consumes, so that offsets may be changed."""


def described(cluster: Cluster, group: str) -> Message:
    """What the coordinator says of a group. Raises Refused; one that is not there is `Dead`."""
    cls = APIS[ApiKey.DESCRIBE_GROUPS].request
    doing = f"describing group {group!r}"
    answer = cluster.ask_coordinator(
        cls(groups=[group]),
        doing,
        key_type=GROUP,
        key=group,
        codes=lambda reply: [each.error_code for each in reply.groups],
    )
    (found,) = answer.groups
    if found.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        check_code(doing, found.error_code)
    return found


def assigned_partitions(member: Message) -> list[TopicPartition]:
    """The member's partitions; () for a member of another protocol, or with nothing yet."""
    data = bytes(member.member_assignment or b"")
    try:
        return sorted(_decode(data)) if data else []
    except (struct.error, UnicodeDecodeError):
        return []


def _decode(data: bytes) -> list[TopicPartition]:
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
