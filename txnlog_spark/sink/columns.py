"""The columns of a write, as Spark's Kafka sink has them: checked once, then read per Arrow batch.

| column    | type                                    | without it                            |
|-----------|-----------------------------------------|---------------------------------------|
| value     | string or binary                        | an error                              |
| key       | string or binary                        | null keys                             |
| topic     | string                                  | the option topic, which wins anyway   |
| partition | int                                     | Kafka's default partitioner           |
| headers   | array<struct<key:string,value:binary>>  | no headers                            |

With value.format the column value has the type of the format, or value.columns names the columns
that are its fields; the same for key. With both columns key_bytes and value_bytes, as of
`dead_letters`, a row that has bytes in one of them is a dead letter: these are its key and its
value, as they are. Any other column is left out, as Spark does; the option `timestampColumn` names
one for timestamps.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import BinaryType, StructType

from txnlog_spark.errors import OptionError
from txnlog_spark.formats.read_formats import SIDES
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

_OF_MALFORMED = tuple(f"{side}_{what}" for side in SIDES for what in ("bytes", "error"))
"""Columns of a PERMISSIVE read. With `*` nothing would say whether one of this name is that."""


@dataclass(frozen=True, slots=True)
class Side:
    """Where the keys or the values (`name`) come from.

    Without a writer it is the column `name`, as it is. With one it is that column, or a struct of
    `fields`. A dead letter has what is in the column `bytes_column` instead.
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
    """Which columns there are. `value` always is. No row may have one of `errors`.

    `topic` says whether the column is read; with `has_topics_unread` the option topic wins over it.
    """

    key: Side | None
    value: Side
    topic: bool
    has_topics_unread: bool
    partition: bool
    headers: bool
    timestamp: str | None
    errors: tuple[str, ...] = ()

    @property
    def bytes_columns(self) -> list[str]:
        """Those of dead letters."""
        sides = (self.key, self.value)
        return [each.bytes_column for each in sides if each and each.bytes_column]


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
    _refuse_other_cases(schema, {*value.columns, *(() if key is None else key.columns), timestamp})
    return SinkColumns(
        key=key,
        value=value,
        topic=settings.topic is None,
        has_topics_unread=settings.topic is not None and "topic" in types,
        partition="partition" in types,
        headers="headers" in types,
        timestamp=timestamp,
        errors=tuple(each for side in SIDES for each in _errors(side, schema, settings)),
    )


def _refuse_other_cases(schema: StructType, taken: set[str | None]) -> None:
    """Refuse a column such as `Key` that would be left out, as Spark's sink leaves it out."""
    for name in schema.names:
        exact = name.lower()
        if exact in (*SIDES, *_MEANINGS) and exact not in schema.names and name not in taken:
            problem = f"rename it to {exact}, or drop it: the names of columns are exact"
            raise OptionError(f"column {name}", None, problem)


def _side(name: str, schema: StructType, settings: SinkSettings) -> Side | None:
    """The side of this name; None where the rows have nothing for it."""
    given = settings.formats.get(name)
    bytes_column = _bytes_of_letters(schema, settings).get(name)
    if given is None or not given.columns:
        if name not in schema.names:
            if bytes_column is None or name == "value":
                return None
            return Side(bytes_column, bytes_column=bytes_column)
        if given is None:
            return Side(name, bytes_column=bytes_column)
        fields: tuple[str, ...] = ()
        type_ = schema[name].dataType
    else:
        fields = _fields(given, schema, settings)
        type_ = StructType([schema[each] for each in fields])
    return Side(name, given.writer(type_, settings.topic), fields, bytes_column)


def _bytes_of_letters(schema: StructType, settings: SinkSettings) -> dict[str, str]:
    """By side the columns of bytes of dead letters, both of which `dead_letters` gives; else {}."""
    columns = {side: f"{side}_bytes" for side in SIDES}
    named = _named_fields(settings)
    are_there = all(
        each in schema.names and isinstance(schema[each].dataType, BinaryType) and each not in named
        for each in columns.values()
    )
    return columns if are_there else {}


def _named_fields(settings: SinkSettings) -> set[str]:
    """What value.columns and key.columns name is a field, whatever its name."""
    return {name for each in settings.formats.values() for name in each.columns}


def _errors(side: str, schema: StructType, settings: SinkSettings) -> list[str]:
    """Columns of a PERMISSIVE read in which no row may have anything.

    OptionError for one that must have another meaning.
    """
    bytes_, error = f"{side}_bytes", f"{side}_error"
    named = _named_fields(settings)
    if bytes_ not in schema.names or bytes_ in named:
        return []
    found = [error] if error in schema.names and error not in named else []
    if side not in settings.formats or _bytes_of_letters(schema, settings):
        return found
    type_ = schema[bytes_].dataType
    if side not in schema.names or not isinstance(type_, BinaryType):
        raise OptionError(
            f"column {bytes_}",
            type_.simpleString(),
            f"rename or drop it, or name it in {side}.columns: a column of this name has the bytes "
            f"of malformed values, and is binary and beside a column {side} then",
        )
    return [*found, bytes_]


def _fields(given: WriteFormat, schema: StructType, settings: SinkSettings) -> tuple[str, ...]:
    if given.columns != ("*",):
        for column in given.columns:
            if column not in schema.names:
                raise OptionError(
                    given.option("columns"), column, f"columns: {', '.join(schema.names)}"
                )
        return given.columns
    letters = _bytes_of_letters(schema, settings).values()
    for column in _OF_MALFORMED:
        if column in schema.names and column not in letters:
            raise OptionError(
                given.option("columns"),
                "*",
                f"with a column {column}, which may be of a malformed value, name the fields "
                "instead: one that is named is a field. Or rename or drop the column",
            )
    other = "key" if given.side == "value" else "value"
    other_format = settings.formats.get(other)
    taken = {*_MEANINGS, *letters, settings.timestamp_column}
    if other_format is None or not other_format.columns:
        taken.add(other)
    fields = tuple(name for name in schema.names if name not in taken)
    if not fields:
        raise OptionError(
            given.option("columns"),
            "*",
            f"none of the columns {', '.join(schema.names)} is a field: each has another meaning",
        )
    return fields


def _named(types: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items()) or "no columns"
