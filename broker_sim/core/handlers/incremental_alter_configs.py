"""IncrementalAlterConfigs (key 44): set or delete single configurations of topics."""

from __future__ import annotations

from typing import Any

from broker_sim.core.config import TOPIC_CONFIG, ConfigValue
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers.configs import topic_resource
from broker_sim.core.metadata import Topic
from broker_sim.core.metadata.topics import TopicRefused, parse_topic_configs
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.INCREMENTAL_ALTER_CONFIGS].response

SET = 0
DELETE = 1
APPEND = 2
SUBTRACT = 3
LISTS = frozenset({"cleanup.policy"})


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """Each resource on its own."""
    message = request.message
    responses = []
    for resource in message.resources:
        error, text = ErrorCode.NONE, None
        try:
            topic = topic_resource(state, resource.resource_type, resource.resource_name)
            configs = _changed(topic, resource.configs)
            if not message.validate_only:
                state.topics.set_configs(topic, configs, effects)
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


def _changed(topic: Topic, changes: list[Any]) -> dict[str, ConfigValue]:
    configs = dict(topic.configs)
    for change in changes:
        operation = change.config_operation
        if operation == SET:
            configs.update(parse_topic_configs({change.name: change.value}))
        elif operation == DELETE and change.name in TOPIC_CONFIG:
            configs.pop(change.name, None)
        elif operation in (APPEND, SUBTRACT) and change.name in LISTS:
            configs.update(_changed_list(configs, change))
        else:
            raise TopicRefused(
                ErrorCode.INVALID_CONFIG, f"operation {operation} on {change.name!r} is not allowed"
            )
    return configs


def _changed_list(configs: dict[str, ConfigValue], change: Any) -> dict[str, ConfigValue]:
    present = [part for part in str(configs.get(change.name, "delete")).split(",") if part]
    named = [part.strip() for part in (change.value or "").split(",")]
    if change.config_operation == APPEND:
        wanted = present + [part for part in named if part not in present]
    else:
        wanted = [part for part in present if part not in named]
    return parse_topic_configs({change.name: ",".join(wanted)})
