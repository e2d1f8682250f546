"""Common parts of the handlers of configurations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from broker_sim.core.config import (
    TOPIC_CONFIG,
    BrokerConfig,
    ConfigSource,
    ConfigValue,
    config_sources,
)
from broker_sim.core.controller.configs import Commit, Resource
from broker_sim.core.controller.topic_rules import TopicRefused
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import cluster_allowed, group_allowed, topic_allowed
from broker_sim.core.handlers._lookup import refused_fields
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode


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
    """Return the source of a topic's effective value."""
    found = config_sources(ConfigSource.TOPIC, name, topic_configs, config)
    return int(found[0][0] if found else ConfigSource.DEFAULT)


def check_access(parts: BrokerParts, request: Request, resource_type: int, name: str) -> None:
    """Raise TopicRefused unless the request may do this to the resource."""
    if resource_type == Resource.BROKER and not cluster_allowed(parts, request):
        text = "the configurations of brokers are not open to this principal"
        raise TopicRefused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, text)
    if resource_type == Resource.TOPIC and not topic_allowed(parts, request, name):
        text = "the configurations of the topic are not open to this principal"
        raise TopicRefused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)
    if resource_type == Resource.GROUP and not group_allowed(parts, request, name):
        text = "the configurations of the group are not open to this principal"
        raise TopicRefused(ErrorCode.GROUP_AUTHORIZATION_FAILED, text)


def alter_each(
    parts: BrokerParts,
    request: Request,
    plan: Callable[[Any], Commit],
    result: Any,
    effects: Effects,
) -> list[Any]:
    """Change each resource on its own; one that is named twice is not changed at all.

    `plan` raises TopicRefused; `result` is the class of one result.
    """
    resources = request.message.resources
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    results = []
    for resource in resources:
        refusal = None
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise TopicRefused(ErrorCode.INVALID_REQUEST, "the request names this twice")
            # Of brokers' options Kafka's broker looks at the change before the controller is asked.
            if resource.resource_type != Resource.BROKER:
                check_access(parts, request, resource.resource_type, resource.resource_name)
            commit = plan(resource)
            check_access(parts, request, resource.resource_type, resource.resource_name)
            if not request.message.validate_only:
                commit(effects)
        except TopicRefused as refused:
            refusal = refused
        results.append(
            result(
                **refused_fields(refusal),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return results
