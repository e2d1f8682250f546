"""Consumers of a group in a broker: heartbeats of KIP-848, bytes of the classic protocol."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from support.core.coordinators import World

from broker_sim.core.coordinator.codec import decode_fields, encode_fields
from broker_sim.core.group.consumer_group import ConsumerGroup
from broker_sim.core.group.requests import ConsumerHeartbeat
from broker_sim.schemas import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from txnlog_kafka.wire.error_codes import ErrorCode

JOINING = {"topic_names": frozenset("a"), "rebalance_timeout_ms": 10_000, "owned": {}}
CLASSIC = {
    "session_timeout_ms": 20_000,
    "rebalance_timeout_ms": 30_000,
    "requires_known_member_id": False,
}
"""Fields of a classic consumer's JoinGroup."""


def send(world: World, member_id: str, epoch: int, **more: Any) -> Any:
    """ConsumerGroupHeartbeat; the answer."""
    fields = {"group_id": "g", "member_id": member_id, "member_epoch": epoch} | more
    return world.tell(world.groups.consumer_heartbeat, ConsumerHeartbeat(**fields))


def join(world: World, member_id: str, **more: Any) -> Any:
    """The answer to a member of KIP-848 that joins."""
    answer = send(world, member_id, 0, **(JOINING | more))
    assert answer.error is ErrorCode.NONE
    return answer


def topic_id(world: World, name: str = "a") -> uuid.UUID:
    return world.parts.image.topics[name].topic_id


def group(world: World) -> Any:
    """The consumer group `g`, or the error if there is none."""
    return world.groups.describe_consumer_group("g")


def subscription(
    *names: str, owned: Mapping[str, Sequence[int]] | None = None, rack: str = "", version: int = 3
) -> bytes:
    """The subscription of a classic consumer."""
    topic_class = ConsumerProtocolSubscription.TopicPartition
    partitions = [
        topic_class(topic=name, partitions=list(found)) for name, found in (owned or {}).items()
    ]
    fields = ConsumerProtocolSubscription(
        topics=list(names), owned_partitions=partitions, rack_id=rack or None
    )
    return encode_fields(fields, version)


def protocols(*names: str, **more: Any) -> tuple[tuple[str, bytes], ...]:
    """The protocols of a JoinGroup of a consumer that reads the topic `a`."""
    return tuple((name, subscription("a", **more)) for name in names or ("range",))


def assignment(user_data: bytes = b"", **partitions: Sequence[int]) -> bytes:
    """An assignment of the classic protocol."""
    topic_class = ConsumerProtocolAssignment.TopicPartition
    assigned = [topic_class(topic=name, partitions=list(p)) for name, p in partitions.items()]
    fields = ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=user_data or None)
    return encode_fields(fields, 3)


def partitions_of(data: bytes) -> dict[str, list[int]]:
    """Partitions by topic of an assignment of the classic protocol."""
    fields = decode_fields(ConsumerProtocolAssignment, data)
    return {each.topic: list(each.partitions) for each in fields.assigned_partitions}


def member(world: World, member_id: str) -> Any:
    """A member of the consumer group `g`."""
    found = group(world)
    assert isinstance(found, ConsumerGroup)
    return found.members[member_id]
