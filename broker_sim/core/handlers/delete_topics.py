"""DeleteTopics (key 20): by name, or by id from version 6."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers.common import ZERO_ID, find_topic
from broker_sim.core.metadata.topics import TopicRefused
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DELETE_TOPICS].response


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """Each topic on its own; committed offsets of its partitions go with it."""
    message = request.message
    if request.api_version >= 6:
        wanted = [(entry.name, entry.topic_id) for entry in message.topics]
    else:
        wanted = [(name, None) for name in message.topic_names]
    results = []
    for name, topic_id in wanted:
        topic, error = find_topic(state, name, topic_id)
        text = None if topic is not None else "This server does not host this topic-partition."
        if topic is not None:
            try:
                state.topics.delete(topic, effects)
                state.groups.on_partitions_deleted(
                    [(topic.name, p) for p in range(topic.partition_count)], effects
                )
            except TopicRefused as refused:
                error, text = refused.error, refused.message
        results.append(
            _Response.DeletableTopicResult(
                name=topic.name if topic is not None else name,
                topic_id=topic.topic_id if topic is not None else (topic_id or ZERO_ID),
                error_code=int(error),
                error_message=text,
            )
        )
    return _Response(throttle_time_ms=0, responses=results)
