"""DescribeConfigs (key 32): effective values of topics, groups, the broker, and their sources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from broker_sim.core.config import (
    DYNAMIC_CONFIGS,
    GROUP_CONFIG,
    TOPIC_CONFIG,
    ConfigKey,
    ConfigKind,
    ConfigSource,
    ConfigValue,
    config_sources,
    format_value,
    topic_config_value,
)
from broker_sim.core.controller.configs import ALL_BROKERS, Resource
from broker_sim.core.controller.topic_rules import TopicRefused, check_topic_name
from broker_sim.core.effects import Request
from broker_sim.core.handlers._configs import check_access, topic_config_names
from broker_sim.core.handlers._lookup import refused_fields
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DESCRIBE_CONFIGS].response
_Result = _Response.DescribeConfigsResult
_Config = _Result.DescribeConfigsResourceResult


@dataclass(frozen=True, slots=True)
class _Entry:
    """Option with its value, and (source, option, value) of all its sources."""

    key: ConfigKey
    value: ConfigValue | None
    sources: list[tuple[ConfigSource, str, ConfigValue]]
    read_only: bool


def handle(parts: BrokerParts, request: Request) -> Message:
    """Each resource on its own, once; no list of names, or an empty one, means all."""
    message = request.message
    results = []
    for (resource_type, name), wanted in _options(message.resources).items():
        refusal = None
        configs: list[Any] = []
        try:
            check_access(parts, request, resource_type, name)
            configs = [
                _config(
                    entry,
                    synonyms=bool(message.include_synonyms),
                    documentation=bool(message.include_documentation),
                )
                for entry in _entries(parts, resource_type, name)
                if wanted is None or entry.key.name in wanted
            ]
        except TopicRefused as refused:
            refusal = refused
        results.append(
            _Result(
                **refused_fields(refusal),
                resource_type=resource_type,
                resource_name=name,
                configs=configs,
            )
        )
    return _Response(results=results)


def _options(resources: list[Any]) -> dict[tuple[int, str], set[str] | None]:
    """The options that are asked for of each resource, None for all. One that is named twice is
    answered once, or a small request could ask for gigabytes."""
    wanted: dict[tuple[int, str], set[str] | None] = {}
    for resource in resources:
        key = (resource.resource_type, resource.resource_name)
        before = wanted.setdefault(key, set())
        named = resource.configuration_keys
        wanted[key] = before.union(named) if named and before is not None else None
    return wanted


def _entries(parts: BrokerParts, resource_type: int, name: str) -> Iterator[_Entry]:
    if resource_type == Resource.BROKER:
        return _broker_entries(parts, name)
    if resource_type == Resource.GROUP:
        if not name:
            raise TopicRefused(ErrorCode.INVALID_REQUEST, "there are no defaults of groups")
        return _group_entries(parts, name)
    if resource_type != Resource.TOPIC:
        raise TopicRefused(
            ErrorCode.INVALID_REQUEST, f"there are no configurations of type {resource_type} here"
        )
    check_topic_name(name)
    return _topic_entries(parts, name)


def _topic_entries(parts: BrokerParts, name: str) -> Iterator[_Entry]:
    topic = parts.image.topics.get(name)
    if topic is None:
        raise TopicRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
    for option in topic_config_names(topic.configs):
        yield _Entry(
            TOPIC_CONFIG[option].key,
            topic_config_value(option, topic.configs, parts.config),
            config_sources(ConfigSource.TOPIC, option, topic.configs, parts.config),
            read_only=False,
        )


def _group_entries(parts: BrokerParts, name: str) -> Iterator[_Entry]:
    """Yield all options of a group, which need not exist."""
    own = parts.image.group_configs.get(name, {})
    for option, row in sorted(GROUP_CONFIG.items()):
        sources = config_sources(ConfigSource.GROUP, option, own, parts.config)
        yield _Entry(row.key, sources[0][2], sources, read_only=False)


def _broker_entries(parts: BrokerParts, name: str) -> Iterator[_Entry]:
    """Yield all options of this broker; for all brokers, only the options set for them."""
    if name not in (ALL_BROKERS, str(parts.node_id)):
        raise TopicRefused(
            ErrorCode.INVALID_REQUEST, f"this is broker {parts.node_id}, not {name[:100]!r}"
        )
    for option in parts.config.names:
        sources = [(source, option, value) for source, value in parts.config.sources(option)]
        if name == ALL_BROKERS:
            sources = [s for s in sources if s[0] is ConfigSource.DYNAMIC_DEFAULT_BROKER]
            if not sources:
                continue
        value = sources[0][2] if sources else None
        key = parts.config.key(option)
        yield _Entry(key, value, sources, read_only=option not in DYNAMIC_CONFIGS)


def _config(entry: _Entry, *, synonyms: bool, documentation: bool) -> Any:
    key = entry.key
    secret = key.kind is ConfigKind.PASSWORD
    return _Config(
        name=key.name,
        value=None if entry.value is None or secret else format_value(entry.value),
        read_only=entry.read_only,
        config_source=int(entry.sources[0][0] if entry.sources else ConfigSource.DEFAULT),
        is_sensitive=secret,
        synonyms=[
            _Config.DescribeConfigsSynonym(
                name=option, value=None if secret else format_value(value), source=int(source)
            )
            for source, option, value in (entry.sources if synonyms else ())
        ],
        config_type=int(key.kind),
        documentation=key.doc if documentation else None,
    )
