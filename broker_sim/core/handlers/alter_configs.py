"""AlterConfigs (key 33): replace all of a topic's own configurations."""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers.configs import topic_resource
from broker_sim.core.metadata.topics import TopicRefused, parse_topic_configs
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.ALTER_CONFIGS].response


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """Each resource on its own."""
    message = request.message
    responses = []
    for resource in message.resources:
        error, text = ErrorCode.NONE, None
        try:
            _alter(state, resource, effects, validate_only=bool(message.validate_only))
        except TopicRefused as refused:
            error, text = refused.error, refused.message
        responses.append(
            _Response.AlterConfigsResourceResponse(
                error_code=int(error),
                error_message=text,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return _Response(throttle_time_ms=0, responses=responses)


def _alter(state: BrokerState, resource: Any, effects: Effects, *, validate_only: bool) -> None:
    topic = topic_resource(state, resource.resource_type, resource.resource_name)
    configs = parse_topic_configs({c.name: c.value for c in resource.configs})
    if not validate_only:
        state.topics.set_configs(topic, configs, effects)
