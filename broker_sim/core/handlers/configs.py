"""What the handlers of configurations share: resources and effective values."""

from __future__ import annotations

from broker_sim.core.metadata import Topic
from broker_sim.core.metadata.topics import TopicRefused
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode

RESOURCE_TOPIC = 2
RESOURCE_BROKER = 4


def topic_resource(state: BrokerState, resource_type: int, name: str) -> Topic:
    """The topic whose configurations are to change. Raises TopicRefused."""
    if resource_type == RESOURCE_BROKER:
        raise TopicRefused(
            ErrorCode.INVALID_REQUEST,
            "broker configurations cannot change while it runs; use --set or --config",
        )
    if resource_type != RESOURCE_TOPIC:
        raise TopicRefused(ErrorCode.INVALID_REQUEST, f"resource type {resource_type} is not there")
    topic = state.image.topics.get(name)
    if topic is None:
        raise TopicRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
    return topic
