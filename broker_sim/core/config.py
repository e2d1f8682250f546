"""The broker's configuration: one table with Kafka's names, defaults and validators.

Rules for this file: an option is declared once, as data; parsing, validation, documentation
(`DescribeConfigs`) and the topic-level defaults come from the tables. Options that Kafka does not
have are marked in their text. Nothing here reads a file: hosts pass text in.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ConfigValue = int | bool | str

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class ConfigError(ValueError):
    """A configuration that cannot be used; the text names the option and what is allowed."""


class DataDirectoryError(ConfigError):
    """A data directory that cannot be used as it is; the text says what is wrong with it."""


class ConfigKind(enum.IntEnum):
    """Value types, numbered as in `DescribeConfigs` answers (Kafka's `ConfigType`)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One option: how it is called, what it may be, what it means."""

    name: str
    kind: ConfigKind
    default: ConfigValue
    doc: str
    minimum: int | None = None
    maximum: int | None = None
    allowed: tuple[str, ...] = ()

    def parse(self, text: str | ConfigValue) -> ConfigValue:
        """The typed value of `text`. Raises ConfigError, naming the option and the range."""
        if self.kind is ConfigKind.BOOLEAN:
            return self._parse_boolean(text)
        if self.kind is ConfigKind.STRING:
            return self._check_allowed(str(text).strip())
        return self._parse_integer(text)

    def _parse_boolean(self, text: str | ConfigValue) -> bool:
        lowered = str(text).strip().lower()
        if lowered not in ("true", "false"):
            raise ConfigError(f"{self.name} must be true or false, not {text!r}")
        return lowered == "true"

    def _check_allowed(self, value: str) -> str:
        if self.allowed and value not in self.allowed:
            raise ConfigError(
                f"{self.name} must be one of {', '.join(self.allowed)}, not {value!r}"
            )
        return value

    def _parse_integer(self, text: str | ConfigValue) -> int:
        try:
            value = int(str(text).strip())
        except ValueError:
            raise ConfigError(f"{self.name} must be a whole number, not {text!r}") from None
        low = -INT64_MAX if self.minimum is None else self.minimum
        limit = INT32_MAX if self.kind is ConfigKind.INT else INT64_MAX
        high = limit if self.maximum is None else self.maximum
        if not low <= value <= high:
            raise ConfigError(f"{self.name} must be between {low} and {high}, not {value}")
        return value


def format_value(value: ConfigValue) -> str:
    """A value as Kafka prints it: `true` and `false` in lower case."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _int(name: str, default: int, doc: str, low: int | None = None) -> ConfigKey:
    return ConfigKey(name, ConfigKind.INT, default, doc, low)


def _long(name: str, default: int, doc: str, low: int | None = None) -> ConfigKey:
    return ConfigKey(name, ConfigKind.LONG, default, doc, low)


def _bool(name: str, default: bool, doc: str) -> ConfigKey:
    return ConfigKey(name, ConfigKind.BOOLEAN, default, doc)


def _text(name: str, default: str, doc: str, allowed: tuple[str, ...] = ()) -> ConfigKey:
    return ConfigKey(name, ConfigKind.STRING, default, doc, allowed=allowed)


_NETWORK = (
    _int("node.id", 0, "This broker's id in the cluster.", 0),
    _text(
        "listeners",
        "PLAINTEXT://127.0.0.1:9092",
        "Where to accept connections, PLAINTEXT://host:port. Port 0 takes a free one.",
    ),
    _text(
        "advertised.listeners",
        "",
        "What clients are told to connect to, PLAINTEXT://host:port; empty means the listener.",
    ),
    _int("socket.request.max.bytes", 104_857_600, "The largest request frame.", 1),
    _int("max.connections", INT32_MAX, "Connections at one time; more are closed at once.", 1),
    _long("connections.max.idle.ms", 600_000, "Idle connections are closed after this; -1 never."),
    _int("fetch.max.bytes", 57_671_680, "The most bytes of records in one Fetch answer.", 1024),
)

_TOPICS = (
    _bool("auto.create.topics.enable", True, "Create a topic when a client asks about it."),
    _bool("delete.topic.enable", True, "Whether DeleteTopics is allowed."),
    _int("num.partitions", 1, "Partitions of a topic that does not say.", 1),
    _int("default.replication.factor", 1, "Replicas of a topic that does not say.", 1),
    _int("min.insync.replicas", 1, "Topic default of min.insync.replicas.", 1),
    _int("message.max.bytes", 1_048_588, "Topic default of max.message.bytes.", 0),
    _text(
        "log.message.timestamp.type",
        "CreateTime",
        "Topic default of message.timestamp.type.",
        ("CreateTime", "LogAppendTime"),
    ),
    _text(
        "log.cleanup.policy",
        "delete",
        "Topic default of cleanup.policy. Compaction is recorded but not carried out yet.",
        ("delete", "compact", "compact,delete", "delete,compact"),
    ),
    _int("log.segment.bytes", 1_073_741_824, "Topic default of segment.bytes.", 1024),
    _long("log.roll.ms", 604_800_000, "Topic default of segment.ms.", 1),
    _int("log.index.interval.bytes", 4096, "Topic default of index.interval.bytes.", 0),
    _int("log.index.size.max.bytes", 10_485_760, "Topic default of segment.index.bytes.", 4),
    _long("log.retention.ms", 604_800_000, "Topic default of retention.ms; -1 keeps all.", -1),
    _long("log.retention.bytes", -1, "Topic default of retention.bytes; -1 keeps all.", -1),
    _long("log.retention.check.interval.ms", 300_000, "How often retention is applied.", 1),
    _long(
        "log.message.timestamp.before.max.ms",
        INT64_MAX,
        "Topic default of message.timestamp.before.max.ms.",
        0,
    ),
    _long(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        "Topic default of message.timestamp.after.max.ms.",
        0,
    ),
    _text(
        "compression.type",
        "producer",
        "Topic default of compression.type. Batches stay as the producer made them.",
        ("producer",),
    ),
)

_PRODUCERS = (
    _int("producer.id.expiration.ms", 86_400_000, "Idle producer ids are forgotten after this.", 1),
    _int("producer.id.expiration.check.interval.ms", 600_000, "How often they are looked for.", 1),
    _bool(
        "flush.on.commit",
        True,
        "fsync at each step of a transaction's commit, and each offset commit (not in Kafka, whose "
        "durability is replication): a committed transaction survives loss of power.",
    ),
)

_TRANSACTIONS = (
    ConfigKey(
        "transaction.version",
        ConfigKind.INT,
        2,
        "Finalized level of the feature transaction.version (KIP-890). In Kafka a feature, not a "
        "configuration.",
        minimum=0,
        maximum=2,
    ),
    _int("transaction.max.timeout.ms", 900_000, "The longest transaction.timeout.ms allowed.", 1),
    _int("transactional.id.expiration.ms", 604_800_000, "Idle transactional ids expire.", 1),
    _int("transaction.state.log.num.partitions", 50, "Partitions of __transaction_state.", 1),
    _int("transaction.state.log.segment.bytes", 104_857_600, "Its segment.bytes.", 1024),
    _int(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "How often transactions over their timeout are looked for.",
        1,
    ),
    _int(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often expired transactional ids are looked for.",
        1,
    ),
    _bool(
        "transaction.partition.verification.enable",
        True,
        "Check with the coordinator that a partition is in the transaction (KIP-890 part 1).",
    ),
)

_GROUPS = (
    _int("offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets.", 1),
    _int("offsets.topic.segment.bytes", 104_857_600, "Its segment.bytes.", 1024),
    _int("offsets.retention.minutes", 10_080, "Offsets of empty groups expire after this.", 1),
    _long("offsets.retention.check.interval.ms", 600_000, "How often they are looked for.", 1),
    _int("offset.metadata.max.bytes", 4096, "The longest metadata of an offset commit.", 0),
    _int("group.initial.rebalance.delay.ms", 3000, "Wait for more members of an empty group.", 0),
    _int("group.min.session.timeout.ms", 6000, "The shortest session timeout allowed.", 1),
    _int("group.max.session.timeout.ms", 1_800_000, "The longest session timeout allowed.", 1),
    _int("group.max.size", INT32_MAX, "Members a group may have.", 1),
)

BROKER_CONFIG: dict[str, ConfigKey] = {
    key.name: key for key in (*_NETWORK, *_TOPICS, *_PRODUCERS, *_TRANSACTIONS, *_GROUPS)
}


@dataclass(frozen=True, slots=True)
class TopicConfigKey:
    """A topic option and the broker option that is its default."""

    key: ConfigKey
    synonym: str


def _topic(name: str, synonym: str, doc: str) -> TopicConfigKey:
    base = BROKER_CONFIG[synonym]
    key = ConfigKey(name, base.kind, base.default, doc, base.minimum, base.maximum, base.allowed)
    return TopicConfigKey(key, synonym)


TOPIC_CONFIG: dict[str, TopicConfigKey] = {
    topic.key.name: topic
    for topic in (
        _topic("cleanup.policy", "log.cleanup.policy", "delete or compact old segments."),
        _topic("compression.type", "compression.type", "Batches stay as the producer made them."),
        _topic("index.interval.bytes", "log.index.interval.bytes", "Bytes between index entries."),
        _topic("max.message.bytes", "message.max.bytes", "The largest record batch."),
        _topic(
            "message.timestamp.type",
            "log.message.timestamp.type",
            "CreateTime keeps the producer's timestamps, LogAppendTime sets the broker's.",
        ),
        _topic(
            "message.timestamp.before.max.ms",
            "log.message.timestamp.before.max.ms",
            "How far a producer's timestamp may lie before the broker's clock.",
        ),
        _topic(
            "message.timestamp.after.max.ms",
            "log.message.timestamp.after.max.ms",
            "How far a producer's timestamp may lie after the broker's clock.",
        ),
        _topic("min.insync.replicas", "min.insync.replicas", "Replicas an acks=all write needs."),
        _topic("retention.bytes", "log.retention.bytes", "Old segments over this are removed."),
        _topic("retention.ms", "log.retention.ms", "Segments older than this are removed."),
        _topic("segment.bytes", "log.segment.bytes", "A segment is closed at this size."),
        _topic("segment.index.bytes", "log.index.size.max.bytes", "An index holds at most this."),
        _topic("segment.ms", "log.roll.ms", "A segment is closed at this age."),
    )
}


def _unknown(name: str, known: Iterable[str]) -> ConfigError:
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ConfigError(f"unknown configuration {name!r}{hint}")


class BrokerConfig:
    """The values one broker runs with. Immutable; unset options have their defaults."""

    def __init__(self, overrides: Mapping[str, str | ConfigValue] | None = None) -> None:
        """Raises ConfigError for an unknown name or a value out of its range."""
        given = dict(overrides or {})
        for name in given:
            if name not in BROKER_CONFIG:
                raise _unknown(name, BROKER_CONFIG)
        self._values = {name: key.default for name, key in BROKER_CONFIG.items()}
        self._values.update({name: BROKER_CONFIG[name].parse(text) for name, text in given.items()})
        self._given = frozenset(given)

    def value(self, name: str) -> ConfigValue:
        """The value of an option; KeyError for a name that is not in the table."""
        return self._values[name]

    def is_given(self, name: str) -> bool:
        """Whether the option was set, rather than left at its default."""
        return name in self._given

    def integer(self, name: str) -> int:
        """The value of an INT or LONG option."""
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is no integer option")
        return value

    def boolean(self, name: str) -> bool:
        """The value of a BOOLEAN option."""
        value = self._values[name]
        if not isinstance(value, bool):
            raise TypeError(f"{name} is no boolean option")
        return value

    def text(self, name: str) -> str:
        """The value of a STRING option."""
        value = self._values[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} is no string option")
        return value


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
    return config.value(TOPIC_CONFIG[name].synonym)


def parse_properties(text: str) -> dict[str, str]:
    """`key=value` lines; `#` or `!` starts a comment, a trailing backslash continues a line.

    Raises ConfigError, with the line number, for a line without a separator.
    """
    values: dict[str, str] = {}
    pending = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = pending + raw.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"line {number} is not key=value: {raw!r}")
        values[name.strip()] = value.strip()
    return values
