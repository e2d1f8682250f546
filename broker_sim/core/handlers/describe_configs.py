"""DescribeConfigs (key 32): effective values of topics and of the broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker_sim.core.config import (
    BROKER_CONFIG,
    TOPIC_CONFIG,
    ConfigKey,
    ConfigValue,
    format_value,
    topic_config_value,
)
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers.configs import RESOURCE_BROKER, topic_resource
from broker_sim.core.handlers.create_topics import config_source
from broker_sim.core.metadata.topics import TopicRefused
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DESCRIBE_CONFIGS].response
_Result = _Response.DescribeConfigsResult
_Config = _Result.DescribeConfigsResourceResult

_Entry = tuple[ConfigKey, ConfigValue, int, bool]
"""(option, value, source, read only)."""


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """Each resource on its own; a null list of names means all."""
    del effects
    message = request.message
    results = []
    for resource in message.resources:
        error, text, entries = ErrorCode.NONE, None, []
        try:
            entries = list(_entries(state, resource))
        except TopicRefused as refused:
            error, text = refused.error, refused.message
        results.append(
            _Result(
                error_code=int(error),
                error_message=text,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[
                    _config(entry, documentation=bool(message.include_documentation))
                    for entry in entries
                    if resource.configuration_keys is None
                    or entry[0].name in resource.configuration_keys
                ],
            )
        )
    return _Response(throttle_time_ms=0, results=results)


def _entries(state: BrokerState, resource: Any) -> Iterable[_Entry]:
    config = state.config
    if resource.resource_type == RESOURCE_BROKER:
        if resource.resource_name not in ("", str(state.node_id)):
            raise TopicRefused(
                ErrorCode.INVALID_REQUEST,
                f"this is broker {state.node_id}, not {resource.resource_name}",
            )
        for name, key in BROKER_CONFIG.items():
            yield key, config.value(name), int(config.sources(name)[0][0]), True
        return
    topic = topic_resource(state, resource.resource_type, resource.resource_name)
    for name, entry in TOPIC_CONFIG.items():
        if entry.internal and name not in topic.configs:
            continue
        value = topic_config_value(name, topic.configs, config)
        yield entry.key, value, config_source(state, topic, name), False


def _config(entry: _Entry, *, documentation: bool) -> Any:
    key, value, source, read_only = entry
    return _Config(
        name=key.name,
        value=format_value(value),
        read_only=read_only,
        config_source=source,
        is_sensitive=False,
        synonyms=[],
        config_type=int(key.kind),
        documentation=key.doc if documentation else None,
    )
