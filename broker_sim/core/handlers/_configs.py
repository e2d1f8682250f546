"""What the handlers of configurations share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from broker_sim.core.config import (
    TOPIC_CONFIG,
    BrokerConfig,
    ConfigSource,
    ConfigValue,
    topic_config_sources,
)
from broker_sim.core.controller.configs import Commit
from broker_sim.core.controller.topic_rules import TopicRefused
from broker_sim.core.effects import Effects
from txnlog_spark.wire.errors import ErrorCode


def topic_config_names(topic_configs: Mapping[str, ConfigValue]) -> list[str]:
    """The options to list for a topic, sorted: all but internal ones that were not set."""
    return [
        name
        for name, entry in sorted(TOPIC_CONFIG.items())
        if not entry.internal or name in topic_configs
    ]


def topic_config_source(
    name: str, topic_configs: Mapping[str, ConfigValue], config: BrokerConfig
) -> int:
    """Where a topic's effective value comes from."""
    found = topic_config_sources(name, topic_configs, config)
    return int(found[0][0] if found else ConfigSource.DEFAULT)


def alter_each(
    resources: list[Any],
    plan: Callable[[Any], Commit],
    result: Any,
    effects: Effects,
    *,
    validate_only: bool,
) -> list[Any]:
    """Change each resource on its own; one that is named twice is not changed at all.

    `plan` raises TopicRefused; `result` is the class of one result.
    """
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    results = []
    for resource in resources:
        error, text = ErrorCode.NONE, None
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise TopicRefused(ErrorCode.INVALID_REQUEST, "the request names this twice")
            commit = plan(resource)
            if not validate_only:
                commit(effects)
        except TopicRefused as refused:
            error, text = refused.error, refused.message
        results.append(
            result(
                error_code=int(error),
                error_message=text,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return results
