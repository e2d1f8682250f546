"""The options of `from_avro` and `to_avro`: Spark's own, and those of Confluent's serializers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txnlog_spark.errors import OptionError
from txnlog_spark.formats.avro.types import TypeOptions
from txnlog_spark.options import option_types as to
from txnlog_spark.options.registry import (
    REGISTRY_OPTIONS,
    REGISTRY_PREFIX,
    STRATEGIES,
    URL,
    registry_options,
    subject_of,
)

RECURSIVE_DEPTH_MAX = 15

_Options = dict[str, tuple[Callable[[str], Any], Any]]

SPARK_OPTIONS: _Options = {
    "mode": (to.one_of("failfast", "permissive"), "failfast"),
    "avroSchema": (to.any_text, ""),
    "recursiveFieldMaxDepth": (to.integer(-1, RECURSIVE_DEPTH_MAX), -1),
    "enableStableIdentifiersForUnionType": (to.boolean, False),
    "stableIdentifierPrefixForUnionType": (to.any_text, "member_"),
    "datetimeRebaseMode": (to.one_of("corrected"), "corrected"),
}
"""Options of Spark's `from_avro`: the reader of each, and its default."""

SUBJECT_OPTIONS: _Options = {
    "topic": (to.any_text, ""),
    "isKey": (to.boolean, False),
    "key.subject.name.strategy": (to.class_name(*STRATEGIES), STRATEGIES[0]),
    "value.subject.name.strategy": (to.class_name(*STRATEGIES), STRATEGIES[0]),
    "auto.register.schemas": (to.boolean, False),
    "use.latest.version": (to.boolean, False),
}
"""Options that name a schema's subject, and let `to_avro` register the schema."""


@dataclass(frozen=True)
class AvroOptions:
    """Options of both functions, checked."""

    permissive: bool
    avro_schema: str
    types: TypeOptions
    registry: Mapping[str, str] = field(repr=False)
    """REGISTRY_OPTIONS that are set; empty without a registry. May have passwords."""
    topic: str
    side: str
    strategy: str
    auto_register: bool
    use_latest: bool

    def subject(self, record_name: str) -> str:
        """Return the subject of a schema; `record_name` is its record's full name, or ""."""
        return subject_of(self.strategy, self.topic, self.side, record_name)


def read_options(given: Mapping[str, str] | None, *, reading: bool) -> AvroOptions:
    """Return the options of `from_avro` (`reading`) or `to_avro`. OptionError names a wrong one."""
    texts = _known(given or {}, reading)
    registry = registry_options(texts)
    for name in SUBJECT_OPTIONS:
        if name in texts and URL not in registry:
            raise OptionError(name, None, f"has a meaning with {URL} only")
    values = {}
    for name, (read, default) in (SPARK_OPTIONS | SUBJECT_OPTIONS).items():
        try:
            values[name] = read(texts[name]) if name in texts else default
        except ValueError as error:
            raise OptionError(name, texts[name], str(error)) from None
    side = "key" if values["isKey"] else "value"
    if values["auto.register.schemas"] and values["use.latest.version"]:
        raise OptionError("use.latest.version", "true", "not with auto.register.schemas=true")
    return AvroOptions(
        permissive=values["mode"] == "permissive",
        avro_schema=values["avroSchema"],
        types=TypeOptions(
            recursive_depth=values["recursiveFieldMaxDepth"],
            stable_union_names=values["enableStableIdentifiersForUnionType"],
            union_name_prefix=values["stableIdentifierPrefixForUnionType"],
        ),
        registry=registry,
        topic=values["topic"],
        side=side,
        strategy=values[f"{side}.subject.name.strategy"],
        auto_register=values["auto.register.schemas"],
        use_latest=values["use.latest.version"],
    )


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
