"""The values a broker runs with: what it was started with, and what was changed since.

A value comes from the first of these that has it, as in Kafka's `DynamicBrokerConfig`: what was set
for this broker while the cluster runs, what was set for all brokers, what the broker was started
with, the default. The table of options is in `table`; what one option is, in `key`.
Nothing here reads a file: hosts pass text in.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping

from broker_sim.core.config.group_options import GROUP_CONFIG, check_group_limits
from broker_sim.core.config.key import ConfigError, ConfigKey, ConfigKind, ConfigValue
from broker_sim.core.config.security import listener_key, listener_option
from broker_sim.core.config.table import (
    ALIASES,
    BROKER_CONFIG,
    DEFAULT_OF_COARSER_UNIT,
    DYNAMIC_CONFIGS,
    TOPIC_CONFIG,
)


class ConfigSource(enum.IntEnum):
    """Source of a value, numbered as in `DescribeConfigs` answers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


_KAFKA_NAMES = "; use the names of Apache Kafka's broker configurations"


def _unknown(name: str, known: Iterable[str], advice: str = "") -> ConfigError:
    """Return the error of a name, with the name that it resembles, or else with the advice."""
    near = difflib.get_close_matches(name[:100], list(known), n=1)
    hint = f"; did you mean {near[0]}?" if near else advice
    return ConfigError(f"unknown configuration {name[:300]!r}{hint}")


class BrokerConfig:
    """The values one broker runs with. They change only by `set_dynamic`; read them when needed."""

    def __init__(self, overrides: Mapping[str, str | ConfigValue] | None = None) -> None:
        """Raises ConfigError for an unknown name or a value out of its range."""
        given = dict(overrides or {})
        self._keys = dict(BROKER_CONFIG)
        for name in given:
            key = listener_key(name)
            if key is not None:
                self._keys[name] = key
            elif name not in BROKER_CONFIG and name not in ALIASES:
                raise _unknown(name, BROKER_CONFIG, _KAFKA_NAMES)
        self._static = {name: self._keys[name].parse(v) for name, v in _resolved(given).items()}
        self._cluster: dict[str, ConfigValue] = {}
        self._broker: dict[str, ConfigValue] = {}
        self._values: dict[str, ConfigValue] = {}
        self._combine()
        check_group_limits(self.integer, {})

    def set_dynamic(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> list[str]:
        """Take over what was set for all brokers and for this one, in place of what was before.

        Returns the names that cannot be used (written by another version): they have no effect.
        """
        unusable: list[str] = []
        self._cluster = _usable(cluster, unusable)
        self._broker = _usable(broker, unusable)
        self._combine()
        return unusable

    def _combine(self) -> None:
        defaults = {name: key.default for name, key in BROKER_CONFIG.items()}
        self._values = {**defaults, **self._static, **self._cluster, **self._broker}

    def key(self, name: str) -> ConfigKey:
        """Return the key of an option; KeyError for an unknown option."""
        return self._keys[name]

    @property
    def names(self) -> list[str]:
        """Names of all options: of the table, and of settings for single listeners."""
        return list(self._keys)

    def of_listener(self, listener: str, option: str, mechanism: str = "") -> ConfigValue:
        """The value for a listener: its mechanism's, its own, else that of all listeners."""
        for name in (
            listener_option(listener, option, mechanism),
            listener_option(listener, option),
        ):
            if name in self._static:
                return self._static[name]
        return self._values.get(option, "")

    def is_set(self, name: str) -> bool:
        """True if the broker was started with a value for the option."""
        return name in self._static

    def sources(self, name: str) -> list[tuple[ConfigSource, ConfigValue]]:
        """Every place that has a value for the option, the one that counts first.

        The defaults of some times are those of their coarser units, as in Kafka, and not listed.
        """
        layers = (
            (ConfigSource.DYNAMIC_BROKER, self._broker),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, self._cluster),
            (ConfigSource.STATIC_BROKER, self._static),
        )
        found = [(source, values[name]) for source, values in layers if name in values]
        if name in DEFAULT_OF_COARSER_UNIT:
            return found
        if name not in BROKER_CONFIG:
            return found
        return [*found, (ConfigSource.DEFAULT, BROKER_CONFIG[name].default)]

    def value(self, name: str) -> ConfigValue:
        """The value of an option; KeyError for a name that is not in the table."""
        return self._values[name]

    def integer(self, name: str) -> int:
        """The value of an INT or LONG option."""
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is not an integer option")
        return value

    def number(self, name: str) -> float:
        """The value of a DOUBLE option."""
        value = self._values[name]
        if not isinstance(value, float):
            raise TypeError(f"{name} is not a double option")
        return value

    def boolean(self, name: str) -> bool:
        """The value of a BOOLEAN option."""
        value = self._values[name]
        if not isinstance(value, bool):
            raise TypeError(f"{name} is not a boolean option")
        return value

    def text(self, name: str) -> str:
        """The value of a STRING or LIST option."""
        value = self._values[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} is not a string option")
        return value


def _resolved(given: Mapping[str, str | ConfigValue]) -> dict[str, str | ConfigValue]:
    """Aliases turned into the option they stand for, which wins where both are given."""
    values = {name: value for name, value in given.items() if name not in ALIASES}
    for alias, (key, unit_ms) in ALIASES.items():
        stands_for = key.name
        if alias in given and stands_for not in values:
            count = int(ConfigKey(alias, ConfigKind.INT, 0, key.doc).parse(given[alias]))
            values[stands_for] = count * unit_ms if count >= 0 else -1
    return values


def _usable(texts: Mapping[str, str], unusable: list[str]) -> dict[str, ConfigValue]:
    values: dict[str, ConfigValue] = {}
    for name, text in texts.items():
        try:
            if name not in DYNAMIC_CONFIGS:
                raise _unknown(name, DYNAMIC_CONFIGS)
            values[name] = BROKER_CONFIG[name].parse(text)
        except ConfigError:
            unusable.append(name)
    return values


def parse_topic_config(name: str, text: str | ConfigValue) -> ConfigValue:
    """The typed value of a topic option. Raises ConfigError."""
    entry = TOPIC_CONFIG.get(name)
    if entry is None:
        raise _unknown(name, TOPIC_CONFIG)
    return entry.key.parse(text)


def topic_config_value(
    name: str, topic_configs: Mapping[str, ConfigValue], config: BrokerConfig
) -> ConfigValue:
    """A topic's effective value: its own, else the broker's default for it."""
    if name in topic_configs:
        return topic_configs[name]
    entry = TOPIC_CONFIG[name]
    return entry.key.default if entry.synonym is None else config.value(entry.synonym)


def config_sources(
    scope: ConfigSource, name: str, own: Mapping[str, ConfigValue], config: BrokerConfig
) -> list[tuple[ConfigSource, str, ConfigValue]]:
    """(source, option, value) of every place that has a value, the one that counts first.

    `scope` is TOPIC or GROUP, and `own` has the options that are set for the topic or group.
    """
    found = [(scope, name, own[name])] if name in own else []
    synonym = (TOPIC_CONFIG if scope is ConfigSource.TOPIC else GROUP_CONFIG)[name].synonym
    if synonym is not None:
        found += [(source, synonym, value) for source, value in config.sources(synonym)]
    return found


def parse_group_configs(texts: Mapping[str, str], config: BrokerConfig) -> dict[str, ConfigValue]:
    """The typed values of a group's options, within the broker's limits. Raises ConfigError."""
    for name in texts:
        if name not in GROUP_CONFIG:
            raise _unknown(name, GROUP_CONFIG)
    values = {name: GROUP_CONFIG[name].key.parse(text) for name, text in texts.items()}
    check_group_limits(config.integer, values)
    return values


def group_config_value(option: str, own: Mapping[str, ConfigValue], config: BrokerConfig) -> int:
    """A group's effective value: its own as far as the broker allows, else the broker's."""
    row = GROUP_CONFIG[option]
    value = int(own.get(option, config.value(row.synonym)))
    return max(config.integer(row.minimum), min(value, config.integer(row.maximum)))


def check_topic_configs(topic_configs: Mapping[str, ConfigValue], config: BrokerConfig) -> None:
    """Raise ConfigError where single values are fine and do not go together (`LogConfig`)."""
    if topic_configs.get("remote.storage.enable"):
        raise ConfigError("remote.storage.enable cannot be true: there is no tiered storage here")
    low = topic_config_value("min.compaction.lag.ms", topic_configs, config)
    high = topic_config_value("max.compaction.lag.ms", topic_configs, config)
    if int(low) > int(high):
        raise ConfigError(f"min.compaction.lag.ms ({low}) is over max.compaction.lag.ms ({high})")


def parse_properties(text: str) -> dict[str, str]:
    """Parse a properties file as Java does, without blanks around the values.

    Raises ConfigError for a broken \\u escape.
    """
    import javaproperties  # it loads HTTP and XML, for a format that nobody asks for here

    try:
        return {name: value.strip() for name, value in javaproperties.loads(text).items()}
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(f"not a properties file: {error}") from error
