"""The options of consumer groups (KIP-848): those of brokers, and those that a group may have.

A group's own value must lie within the limits that the broker has for it. Limits may be moved
afterwards: the value in force is the nearest that they allow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from broker_sim.core.config.key import (
    INT32_MAX,
    ConfigError,
    ConfigKey,
    ConfigKind,
    ConfigValue,
    flag,
    texts,
)


def _int(name: str, default: int, doc: str, low: int = 1) -> ConfigKey:
    return ConfigKey(f"group.consumer.{name}", ConfigKind.INT, default, doc, low)


CONSUMER_GROUPS = (
    _int("session.timeout.ms", 45_000, "A member that is silent for so long is removed."),
    _int("min.session.timeout.ms", 45_000, "Minimum of a group's consumer.session.timeout.ms."),
    _int("max.session.timeout.ms", 60_000, "Maximum of a group's consumer.session.timeout.ms."),
    _int("heartbeat.interval.ms", 5_000, "Interval in which members heartbeat."),
    _int("min.heartbeat.interval.ms", 5_000, "Minimum of consumer.heartbeat.interval.ms."),
    _int("max.heartbeat.interval.ms", 15_000, "Maximum of consumer.heartbeat.interval.ms."),
    _int("max.size", INT32_MAX, "Maximum number of a group's members."),
    texts(
        "group.consumer.assignors",
        "uniform,range",
        "Assignors that members may ask for; the first is the default.",
        allowed=("uniform", "range"),
    ),
    ConfigKey(
        "group.consumer.migration.policy",
        ConfigKind.STRING,
        "bidirectional",
        "Changes of a group's protocol while members live: upgrade to KIP-848, downgrade, "
        "bidirectional (both) or disabled.",
        pattern="(?i:bidirectional|upgrade|downgrade|disabled)",
    ),
    _int(
        "assignment.interval.ms",
        1_000,
        "Least time between two target assignments of a group (KIP-1263).",
        0,
    ),
    _int("min.assignment.interval.ms", 0, "Minimum of consumer.assignment.interval.ms.", 0),
    _int("max.assignment.interval.ms", 15_000, "Maximum of consumer.assignment.interval.ms.", 0),
    flag("group.consumer.assignor.offload.enable", True, "No effect here: there is one thread."),
    _int(
        "regex.refresh.interval.ms",
        600_000,
        "How often the topics of regular expressions are looked for again.",
        10_000,
    ),
)
_BROKER = {key.name: key for key in CONSUMER_GROUPS}


@dataclass(frozen=True, slots=True)
class GroupConfigKey:
    """An option of a group, and the options of brokers: its default, its minimum, its maximum."""

    key: ConfigKey
    synonym: str
    minimum: str
    maximum: str


def _group(name: str) -> GroupConfigKey:
    synonym = f"group.consumer.{name}"
    key = replace(_BROKER[synonym], name=f"consumer.{name}")
    return GroupConfigKey(key, synonym, f"group.consumer.min.{name}", f"group.consumer.max.{name}")


GROUP_CONFIG: dict[str, GroupConfigKey] = {
    row.key.name: row
    for row in map(
        _group, ("assignment.interval.ms", "heartbeat.interval.ms", "session.timeout.ms")
    )
}
_HEARTBEAT, _SESSION = "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"

BrokerValue = Callable[[str], int]
"""The value of a broker's option, by name."""


def check_group_limits(broker: BrokerValue, own: Mapping[str, ConfigValue]) -> None:
    """Raise ConfigError where a value is beyond its limits, or a session too short for heartbeats.

    `own` has the options that a group has itself; without them it is about the broker's options.
    """
    found: dict[str, int] = {}
    for name, row in GROUP_CONFIG.items():
        shown = name if name in own else row.synonym
        value, low, high = int(own.get(name, broker(row.synonym))), row.minimum, row.maximum
        found[name] = value
        if not broker(low) <= value <= broker(high):
            raise ConfigError(
                f"{shown} must be between {low} ({broker(low)}) and {high} ({broker(high)}), "
                f"not {value}"
            )
    if found[_SESSION] <= found[_HEARTBEAT]:
        raise ConfigError(
            f"the session timeout ({found[_SESSION]} ms) must be over the heartbeat interval "
            f"({found[_HEARTBEAT]} ms) of consumer groups"
        )
