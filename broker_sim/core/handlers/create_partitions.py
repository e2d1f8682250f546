"""CreatePartitions (key 37): grow a topic."""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.metadata.topics import TopicRefused
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.CREATE_PARTITIONS].response


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """Each topic on its own."""
    message = request.message
    results = []
    for entry in message.topics:
        error, text = ErrorCode.NONE, None
        try:
            _grow(state, entry, effects, validate_only=bool(message.validate_only))
        except TopicRefused as refused:
            error, text = refused.error, refused.message
        results.append(
            _Response.CreatePartitionsTopicResult(
                name=entry.name, error_code=int(error), error_message=text
            )
        )
    return _Response(throttle_time_ms=0, results=results)


def _grow(state: BrokerState, entry: Any, effects: Effects, *, validate_only: bool) -> None:
    topic = state.image.topics.get(entry.name)
    if topic is None:
        raise TopicRefused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )
    state.topics.check_more_partitions(topic, entry.count)
    for assignment in entry.assignments or ():
        if list(assignment.broker_ids) != [state.node_id]:
            raise TopicRefused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"the only broker is {state.node_id}, not {list(assignment.broker_ids)}",
            )
    if not validate_only:
        state.topics.add_partitions(topic, entry.count, effects)
