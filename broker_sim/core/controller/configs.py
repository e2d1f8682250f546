"""Changes of configurations while the broker runs: of topics, groups, this broker, all brokers.

A change is planned, which refuses what Kafka refuses in Kafka's order, then it is in the metadata
log, durable, and then in force: the next append, the next retention run obeys. For topics the
rules are those of `ConfigurationControlManager` and `LogConfig`, for brokers those of
`ConfigAdminManager` and `DynamicBrokerConfig`, whose error for a wrong value is INVALID_REQUEST
(KAFKA-13609).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from broker_sim.core.config import (
    BROKER_CONFIG,
    DYNAMIC_CONFIGS,
    GROUP_CONFIG,
    TOPIC_CONFIG,
    BrokerConfig,
    ConfigError,
    ConfigKey,
    ConfigKind,
    ConfigValue,
    check_group_limits,
    format_value,
    parse_group_configs,
)
from broker_sim.core.controller import Metadata
from broker_sim.core.controller.metadata_records import (
    broker_configs_record,
    configs_record,
    group_configs_record,
)
from broker_sim.core.controller.topic_rules import (
    TopicRefused,
    check_topic_name,
    parse_topic_configs,
)
from broker_sim.core.effects import Effects
from txnlog_kafka.wire.error_codes import ErrorCode

ALL_BROKERS = ""
VALUE_LENGTH_MAX = 32_767


class Resource(enum.IntEnum):
    """Resource type with configurations, by its number (Kafka's `ConfigResource.Type`)."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class AlterConfigOp(enum.IntEnum):
    """Operation of an incremental change (Kafka's `AlterConfigOp.OpType`)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Option, operation and value of an incremental change."""

    option: str
    operation: int
    value: str | None


_GROUP_KEYS = {option: row.key for option, row in GROUP_CONFIG.items()}
_TOPIC_KEYS = {option: row.key for option, row in TOPIC_CONFIG.items()}

Commit = Callable[[Effects], None]
"""Carries out what was planned."""


class ConfigAdmin:
    """Plans and carries out changes of configurations."""

    def __init__(self, config: BrokerConfig, metadata: Metadata) -> None:
        self._config = config
        self._metadata = metadata

    def plan_changes(
        self, resource_type: int, name: str, changes: Sequence[ConfigChange]
    ) -> Commit:
        """IncrementalAlterConfigs of one resource. Raises TopicRefused; changes nothing."""
        _check_distinct([change.option for change in changes])
        _check_values({c.option: c.value for c in changes if c.operation != AlterConfigOp.DELETE})
        if resource_type == Resource.BROKER:
            self._check_broker(name)
            own_texts = self._metadata.image.broker_configs.get(name, {})
            return self._plan_broker(name, _changed(own_texts, changes, BROKER_CONFIG))
        if resource_type == Resource.GROUP:
            own = self._metadata.image.group_configs.get(name, {})
            return self._plan_group(name, _changed(own, changes, _GROUP_KEYS))
        _check_topic_resource(resource_type, name)
        topic = self._metadata.image.topics.get(name)
        configs = {} if topic is None else topic.configs
        return self._plan_topic(name, _changed(configs, changes, _TOPIC_KEYS))

    def plan_replacement(
        self, resource_type: int, name: str, pairs: Sequence[tuple[str, str | None]]
    ) -> Commit:
        """AlterConfigs of one resource: what is not named goes back to its default."""
        _check_distinct([option for option, _ in pairs])
        texts = _check_values(dict(pairs))
        if resource_type == Resource.BROKER:
            self._check_broker(name)
            return self._plan_broker(name, texts)
        if resource_type == Resource.GROUP:
            return self._plan_group(name, texts)
        _check_topic_resource(resource_type, name)
        return self._plan_topic(name, texts)

    # ------------------------------------------------------------------ details

    def _plan_topic(self, name: str, texts: Mapping[str, str]) -> Commit:
        _check_lengths(texts)
        configs = parse_topic_configs(texts, self._config)
        topic = self._metadata.image.topics.get(name)
        if topic is None:
            raise TopicRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
        return partial(self._metadata.commit, [configs_record(topic, configs)])

    def _plan_group(self, name: str, texts: Mapping[str, str]) -> Commit:
        """Options of a group, which need not exist."""
        if not name:
            raise TopicRefused(ErrorCode.INVALID_REQUEST, "there are no defaults of groups")
        _check_lengths(texts)
        try:
            values = parse_group_configs(texts, self._config)
        except ConfigError as error:
            raise TopicRefused(ErrorCode.INVALID_CONFIG, str(error)) from error
        return partial(self._metadata.commit, [group_configs_record(name, values)])

    def _check_broker(self, name: str) -> None:
        known = self._metadata.image.registered
        if name != ALL_BROKERS and name not in map(str, known):
            named = ", ".join(map(str, sorted(known)))
            raise TopicRefused(
                ErrorCode.INVALID_REQUEST, f"this is broker {named}, not {name[:100]!r}"
            )

    def _plan_broker(self, name: str, texts: Mapping[str, str]) -> Commit:
        fixed = sorted(set(texts) & set(BROKER_CONFIG) - DYNAMIC_CONFIGS)
        unknown = sorted(set(texts) - set(BROKER_CONFIG))
        reason = None
        if fixed:
            reason = f"{', '.join(fixed)} cannot change while the broker runs"
        elif unknown:
            reason = f"this broker has no option {', '.join(unknown)[:300]}"
        if reason is not None:
            raise TopicRefused(ErrorCode.INVALID_REQUEST, reason)
        try:
            values = {option: BROKER_CONFIG[option].parse(text) for option, text in texts.items()}
            check_group_limits(
                lambda option: int(values.get(option, self._config.value(option))), {}
            )
        except ConfigError as error:
            raise TopicRefused(ErrorCode.INVALID_REQUEST, str(error)) from error
        _check_lengths(texts)
        return partial(self._metadata.commit, [broker_configs_record(name, texts)])


def _check_topic_resource(resource_type: int, name: str) -> None:
    if resource_type != Resource.TOPIC:
        raise TopicRefused(
            ErrorCode.INVALID_REQUEST, f"there are no configurations of type {resource_type} here"
        )
    if not name:
        raise TopicRefused(ErrorCode.INVALID_REQUEST, "there are no defaults of topics")
    check_topic_name(name)


def _check_distinct(options: Sequence[str]) -> None:
    if len(set(options)) != len(options):
        raise TopicRefused(ErrorCode.INVALID_REQUEST, "an option is named more than once")


def _check_values(values: Mapping[str, str | None]) -> dict[str, str]:
    missing = [option for option, value in values.items() if value is None]
    if missing:
        raise TopicRefused(ErrorCode.INVALID_REQUEST, f"{', '.join(missing)[:300]} has no value")
    return {option: value for option, value in values.items() if value is not None}


def _check_lengths(texts: Mapping[str, str]) -> None:
    for option, text in texts.items():
        if len(text) > VALUE_LENGTH_MAX:
            raise TopicRefused(
                ErrorCode.INVALID_CONFIG, f"the value of {option} is over {VALUE_LENGTH_MAX} long"
            )


def _changed(
    own: Mapping[str, ConfigValue], changes: Sequence[ConfigChange], keys: Mapping[str, ConfigKey]
) -> dict[str, str]:
    """The texts of a resource's own options after these changes. Raises TopicRefused."""
    texts = {option: format_value(value) for option, value in own.items()}
    for change in changes:
        _apply_change(change, texts, keys.get(change.option))
    return texts


def _apply_change(change: ConfigChange, texts: dict[str, str], key: ConfigKey | None) -> None:
    """Change `texts` by these operations. Raises TopicRefused."""
    option, value = change.option, change.value or ""
    match change.operation:
        case AlterConfigOp.SET:
            texts[option] = value
        case AlterConfigOp.DELETE:
            texts.pop(option, None)
        case AlterConfigOp.APPEND | AlterConfigOp.SUBTRACT:
            if key is None or key.kind is not ConfigKind.LIST:
                raise TopicRefused(ErrorCode.INVALID_CONFIG, f"{option[:300]!r} is not a list")
            present = [p for p in texts.get(option, format_value(key.default)).split(",") if p]
            named = value.split(",")
            if change.operation == AlterConfigOp.APPEND:
                present += [part for part in named if part not in present]
            else:
                present = [part for part in present if part not in named]
            texts[option] = ",".join(present)
        case _:
            reason = f"there is no operation {change.operation} on {option[:300]!r}"
            raise TopicRefused(ErrorCode.INVALID_REQUEST, reason)
