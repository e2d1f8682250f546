"""The options of `from_avro` and `to_avro`: Spark's own, and those of Confluent's serializers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txnlog_spark.errors import OptionError
from txnlog_spark.formats.avro.types import TypeOptions
from txnlog_spark.options.registry import (
    REGISTRY_OPTIONS,
    REGISTRY_PREFIX,
    STRATEGIES,
    URL,
    registry_options,
    subject_of,
)

RECURSIVE_DEPTH_MAX = 15

SPARK_OPTIONS = (
    "mode",
    "avroSchema",
    "recursiveFieldMaxDepth",
    "enableStableIdentifiersForUnionType",
    "stableIdentifierPrefixForUnionType",
    "datetimeRebaseMode",
)
"""Options of Spark's `from_avro`."""

SUBJECT_OPTIONS = (
    "topic",
    "isKey",
    "key.subject.name.strategy",
    "value.subject.name.strategy",
    "auto.register.schemas",
    "use.latest.version",
)
"""Options that name a schema's subject, and let `to_avro` register the schema."""


@dataclass(frozen=True)
class AvroOptions:
    """Options of both functions, checked."""

    permissive: bool = False
    avro_schema: str = ""
    types: TypeOptions = field(default_factory=TypeOptions)
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)
    """REGISTRY_OPTIONS that are set; empty without a registry. May have passwords."""
    topic: str = ""
    is_key: bool = False
    strategy: str = "TopicNameStrategy"
    auto_register: bool = False
    use_latest: bool = False

    def subject(self, record_name: str) -> str:
        """Return the subject of a schema; `record_name` is its record's full name, or ""."""
        side = "key" if self.is_key else "value"
        return subject_of(self.strategy, self.topic, side, record_name)

    @property
    def strategy_option(self) -> str:
        """Name of the option that sets `strategy`."""
        return f"{'key' if self.is_key else 'value'}.subject.name.strategy"


def read_options(given: Mapping[str, str] | None, *, reading: bool) -> AvroOptions:
    """Return the options of `from_avro` (`reading`) or `to_avro`. OptionError names a wrong one."""
    values = _known(given or {}, reading)
    registry = registry_options(values)
    if URL not in registry:
        for name in SUBJECT_OPTIONS:
            if name in values:
                raise OptionError(name, None, f"has a meaning with {URL} only")
    is_key = _flag(values, "isKey")
    chosen = values.get(f"{'key' if is_key else 'value'}.subject.name.strategy", STRATEGIES[0])
    options = AvroOptions(
        permissive=_permissive(values.get("mode", "FAILFAST")),
        avro_schema=values.get("avroSchema", ""),
        types=_type_options(values),
        registry=registry,
        topic=values.get("topic", ""),
        is_key=is_key,
        strategy=chosen.rpartition(".")[2],
        auto_register=_flag(values, "auto.register.schemas"),
        use_latest=_flag(values, "use.latest.version"),
    )
    if options.strategy not in STRATEGIES:
        raise OptionError(options.strategy_option, chosen, f"one of {', '.join(STRATEGIES)}")
    if options.auto_register and options.use_latest:
        raise OptionError("use.latest.version", "true", "not with auto.register.schemas=true")
    return options


def _known(given: Mapping[str, str], reading: bool) -> dict[str, str]:
    names = (*(SPARK_OPTIONS if reading else ()), *REGISTRY_OPTIONS, *SUBJECT_OPTIONS)
    by_lower = {name.lower(): name for name in names}
    values = {}
    for name, value in given.items():
        lower = name.lower()
        # Confluent's clients take their own options with the prefix of Kafka Connect as well.
        known = by_lower.get(lower) or by_lower.get(lower.removeprefix(REGISTRY_PREFIX))
        if known is None:
            function = "from_avro" if reading else "to_avro"
            # Without its value: a mistyped name may have a password.
            raise OptionError(name, None, f"not an option of txnlog_spark.avro.{function}")
        values[known] = str(value)
    return values


def _permissive(mode: str) -> bool:
    if mode.upper() not in ("FAILFAST", "PERMISSIVE"):
        raise OptionError("mode", mode, "FAILFAST or PERMISSIVE")
    return mode.upper() == "PERMISSIVE"


def _type_options(values: Mapping[str, str]) -> TypeOptions:
    rebase = values.get("datetimeRebaseMode", "CORRECTED")
    if rebase.upper() != "CORRECTED":
        raise OptionError("datetimeRebaseMode", rebase, "CORRECTED: no calendar is converted")
    given = values.get("recursiveFieldMaxDepth", "-1")
    if not given.removeprefix("-").isdecimal() or int(given) > RECURSIVE_DEPTH_MAX:
        raise OptionError("recursiveFieldMaxDepth", given, f"up to {RECURSIVE_DEPTH_MAX}")
    return TypeOptions(
        recursive_depth=int(given),
        stable_union_names=_flag(values, "enableStableIdentifiersForUnionType"),
        union_name_prefix=values.get("stableIdentifierPrefixForUnionType", "member_"),
    )


def _flag(values: Mapping[str, str], name: str) -> bool:
    given = values.get(name, "false").lower()
    if given not in ("true", "false"):
        raise OptionError(name, given, "true or false")
    return given == "true"
