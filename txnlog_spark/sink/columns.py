"""The columns of a write, as Spark's Kafka sink has them: checked once, then read per Arrow batch.

| column    | type                                    | without it                            |
|-----------|-----------------------------------------|---------------------------------------|
| value     | string or binary                        | an error                              |
| key       | string or binary                        | null keys                             |
| topic     | string                                  | the option topic, which wins anyway   |
| partition | int                                     | Kafka's default partitioner           |
| headers   | array<struct<key:string,value:binary>>  | no headers                            |

Any other column is left out, as Spark does; the option `timestampColumn` names one for timestamps.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import StructType

from txnlog_spark.errors import OptionError
from txnlog_spark.sink.settings import SinkSettings

_TYPES: dict[str, tuple[str, ...]] = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Which columns there are. `value` always is."""

    key: bool
    topic: bool
    partition: bool
    headers: bool
    timestamp: str | None


def check_columns(schema: StructType, settings: SinkSettings) -> SinkColumns:
    """The columns of `schema`. Raises OptionError for a missing one or a wrong type."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, allowed in _TYPES.items():
        if name in types and types[name] not in allowed:
            raise OptionError(
                f"column {name}", types[name], f"{' or '.join(allowed)}: cast it before the write"
            )
    if "value" not in types:
        raise OptionError(
            "column value", None, f"a string or binary column; the rows have {_named(types)}"
        )
    if settings.topic is None and "topic" not in types:
        raise OptionError("topic", None, "set it to the output topic, or add a string column topic")
    timestamp = settings.timestamp_column
    if timestamp is not None and types.get(timestamp) not in ("timestamp", "timestamp_ntz"):
        raise OptionError(
            "timestampColumn", timestamp, f"a timestamp column; the rows have {_named(types)}"
        )
    return SinkColumns(
        key="key" in types,
        topic=settings.topic is None,
        partition="partition" in types,
        headers="headers" in types,
        timestamp=timestamp,
    )


def _named(types: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items()) or "no columns"
