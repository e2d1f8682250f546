"""The columns of a write, as Spark's Kafka sink has them: checked once, then read per Arrow batch.

| column    | type                                    | without it                            |
|-----------|-----------------------------------------|---------------------------------------|
| value     | string or binary                        | an error                              |
| key       | string or binary                        | null keys                             |
| topic     | string                                  | the option topic, which wins anyway   |
| partition | int                                     | Kafka's default partitioner           |
| headers   | array<struct<key:string,value:binary>>  | no headers                            |

With value.format the column value has the type of the format, or value.columns names the columns
that are its fields; the same for key. Any other column is left out, as Spark does; the option
`timestampColumn` names one for timestamps.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import StructType

from txnlog_spark.errors import OptionError
from txnlog_spark.formats.write_formats import WriteFormat, Writer
from txnlog_spark.sink.settings import SinkSettings

_TYPES: dict[str, tuple[str, ...]] = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


_MEANINGS = ("topic", "partition", "headers")
"""Columns that are never a field of a value or of a key that has a format."""


@dataclass(frozen=True, slots=True)
class Side:
    """Where the keys or the values (`name`) come from.

    Without a writer it is the column `name`, as it is. With one it is that column, or a struct of
    `fields`; a row that has bytes in the column `bytes_column` has them as they are instead.
    """

    name: str
    writer: Writer | None = None
    fields: tuple[str, ...] = ()
    bytes_column: str | None = None

    @property
    def columns(self) -> list[str]:
        """What is read of the rows."""
        return [*(self.fields or (self.name,)), *([self.bytes_column] if self.bytes_column else ())]


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Which columns there are. `value` always is. No row may have one of `errors`."""

    key: Side | None
    value: Side
    topic: bool
    partition: bool
    headers: bool
    timestamp: str | None
    errors: tuple[str, ...] = ()


def check_columns(schema: StructType, settings: SinkSettings) -> SinkColumns:
    """The columns of `schema`, with the writers of their formats.

    Raises OptionError for a missing one or a wrong type, RegistryError where a schema registry is
    asked for a schema.
    """
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, allowed in _TYPES.items():
        if name in types and types[name] not in allowed and name not in settings.formats:
            encode = f", or set {name}.format" if name in ("key", "value") else ""
            raise OptionError(
                f"column {name}",
                types[name],
                f"{' or '.join(allowed)}: cast it before the write{encode}",
            )
    if settings.topic is None and "topic" not in types:
        raise OptionError("topic", None, "set it to the output topic, or add a string column topic")
    timestamp = settings.timestamp_column
    if timestamp is not None and types.get(timestamp) == "timestamp_ntz":
        raise OptionError(
            "timestampColumn",
            timestamp,
            "a column of type timestamp: cast it, so that it is a time of the session's zone",
        )
    if timestamp is not None and types.get(timestamp) != "timestamp":
        raise OptionError(
            "timestampColumn", timestamp, f"a timestamp column; the rows have {_named(types)}"
        )
    value, key = (_side(name, schema, settings) for name in ("value", "key"))
    if value is None:
        raise OptionError(
            "column value", None, f"a string or binary column; the rows have {_named(types)}"
        )
    marks = [(f"{side}_bytes", f"{side}_error") for side in ("key", "value")]
    return SinkColumns(
        key=key,
        value=value,
        topic=settings.topic is None,
        partition="partition" in types,
        headers="headers" in types,
        timestamp=timestamp,
        errors=tuple(error for bytes_, error in marks if bytes_ in types and error in types),
    )


def _side(name: str, schema: StructType, settings: SinkSettings) -> Side | None:
    """The side of this name; None where the rows have nothing for it."""
    given = settings.formats.get(name)
    if given is None or not given.columns:
        if name not in schema.names:
            return None
        if given is None:
            return Side(name)
        fields: tuple[str, ...] = ()
        type_ = schema[name].dataType
    else:
        fields = _fields(given, schema, settings)
        type_ = StructType([schema[each] for each in fields])
    bytes_column = f"{name}_bytes"
    return Side(
        name,
        given.writer(type_, settings.topic),
        fields,
        bytes_column if bytes_column in schema.names else None,
    )


def _fields(given: WriteFormat, schema: StructType, settings: SinkSettings) -> tuple[str, ...]:
    if given.columns != ("*",):
        for column in given.columns:
            if column not in schema.names:
                raise OptionError(
                    given.option("columns"), column, f"columns: {', '.join(schema.names)}"
                )
        return given.columns
    other = "key" if given.side == "value" else "value"
    other_format = settings.formats.get(other)
    taken = {*_MEANINGS, settings.timestamp_column}
    taken |= {f"{side}_{what}" for side in ("key", "value") for what in ("bytes", "error")}
    if other_format is None or not other_format.columns:
        taken.add(other)
    return tuple(name for name in schema.names if name not in taken)


def _named(types: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items()) or "no columns"
