"""The columns of a write, as Spark's Kafka sink has them: checked once, then read per Arrow batch.

    | column    | type                                    | without it                            |
    |-----------|-----------------------------------------|---------------------------------------|
    | value     | string or binary                        | an error                              |
    | key       | string or binary                        | null keys                             |
    | topic     | string                                  | the option topic, which wins anyway   |
    | partition | int                                     | Kafka's default partitioner           |
    | headers   | array<struct<key:string,value:binary>>  | no headers                            |

With value.format the column value has the type of the format, or value.columns names the columns
that are its fields; the same for key. With both columns key_bytes and value_bytes, as
`dead_letters` adds them, a row with bytes in one of them is a dead letter: its key and its value
are these bytes, unchanged. Any other column is left out, as Spark does. The option
`timestampColumn` names a column for timestamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, StructType

from txnlog_spark.deadletters import MARK, NEEDED
from txnlog_spark.errors import OptionError
from txnlog_spark.formats.read_formats import SIDES
from txnlog_spark.formats.write_formats import WriteFormat
from txnlog_spark.sink.settings import SinkSettings

if TYPE_CHECKING:
    from txnlog_spark.formats.writers import Writer

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
"""Columns of a PERMISSIVE read. With `*` it would be unknown whether a column of this name is
one."""


@dataclass(frozen=True, slots=True)
class Side:
    """Source of the keys or the values (`name`).

    Without a writer it is the column `name`, unchanged. With a writer it is that column, or a
    struct of `fields`. A dead letter has the bytes of the column `bytes_column` instead.
    """

    name: str
    writer: Writer | None = None
    fields: tuple[str, ...] = ()
    bytes_column: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that are read of the rows."""
        return [*(self.fields or (self.name,)), *([self.bytes_column] if self.bytes_column else ())]


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of a write; `value` always exists. No row may have anything in one of `errors`.

    `topic` is True if the column is read. If `has_topics_unread`, the option topic takes precedence
    over the column.
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
        """The columns with the bytes of dead letters."""
        sides = (self.key, self.value)
        return [each.bytes_column for each in sides if each and each.bytes_column]


def check_columns(schema: StructType, settings: SinkSettings) -> SinkColumns:
    """Check the columns of `schema`, and return them with the writers of their formats.

    Raises OptionError for a missing column or a wrong type, RegistryError if a schema registry is
    asked for a schema and refuses.
    """
    # Types that are wrong whatever the options say.
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
    # The columns that options name.
    timestamp = settings.timestamp_column
    if timestamp is not None and types.get(timestamp) == "timestamp_ntz":
        raise OptionError(
            "timestampColumn",
            timestamp,
            "set it to a column of type timestamp: cast the column, so that its times are of the "
            "session's time zone",
        )
    if timestamp is not None and types.get(timestamp) != "timestamp":
        raise OptionError(
            "timestampColumn",
            timestamp,
            f"set it to a timestamp column; the rows have {_named(types)}",
        )
    _refuse_letters_in_part(schema)
    # A format is checked here, before the first task encodes a row with it.
    value, key = (_side(name, schema, settings) for name in ("value", "key"))
    if value is None:
        raise OptionError(
            "column value",
            None,
            f"add a string or binary column value; the rows have {_named(types)}",
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


def _refuse_letters_in_part(schema: StructType) -> None:
    """Refuse rows of `dead_letters` that lack a column which a dead letter is written from.

    Without the two columns of bytes, the key and the value of a dead letter are null: a tombstone.
    """
    missing = [name for name in NEEDED if name not in schema.names]
    if missing and any(MARK in field.metadata for field in schema.fields):
        raise OptionError(
            f"column {missing[0]}",
            None,
            f"select {', '.join(missing)}, too: the rows come from dead_letters, and a dead letter "
            "is written from these columns",
        )


def _refuse_other_cases(schema: StructType, taken: set[str | None]) -> None:
    """Refuse a column such as `Key`, which Spark's sink and this one would leave out."""
    for name in schema.names:
        exact = name.lower()
        if exact in (*SIDES, *_MEANINGS) and exact not in schema.names and name not in taken:
            problem = f"rename it to {exact}, or drop it: the names of columns are exact"
            raise OptionError(f"column {name}", None, problem)


def _side(name: str, schema: StructType, settings: SinkSettings) -> Side | None:
    """Return the side of this name, None if the rows have no column for it."""
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
    """Return the columns of bytes of dead letters by side, {} unless the rows have both."""
    columns = {side: f"{side}_bytes" for side in SIDES}
    named = _named_fields(settings)
    are_there = all(
        each in schema.names and isinstance(schema[each].dataType, BinaryType) and each not in named
        for each in columns.values()
    )
    return columns if are_there else {}


def _named_fields(settings: SinkSettings) -> set[str]:
    """Return the columns that value.columns and key.columns name: all are fields."""
    return {name for each in settings.formats.values() for name in each.columns}


def _errors(side: str, schema: StructType, settings: SinkSettings) -> list[str]:
    """Return the columns of a PERMISSIVE read in which no row may have anything.

    Raises OptionError for a column of this name that must have another meaning.
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
            f"rename or drop it, or name it in {side}.columns: a column of this name is for the "
            f"bytes of malformed values, and must then be binary and beside a column {side}",
        )
    return [*found, bytes_]


def _fields(given: WriteFormat, schema: StructType, settings: SinkSettings) -> tuple[str, ...]:
    if given.columns != ("*",):
        for column in given.columns:
            if column not in schema.names:
                raise OptionError(
                    given.option("columns"),
                    column,
                    f"name columns of the rows: {', '.join(schema.names)}",
                )
        return given.columns
    letters = _bytes_of_letters(schema, settings).values()
    for column in _OF_MALFORMED:
        if column in schema.names and column not in letters:
            raise OptionError(
                given.option("columns"),
                "*",
                f"name the fields instead of *: the rows have a column {column}, which may belong "
                "to a malformed value, and a named column is a field. Or rename or drop the column",
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
            f"add a column for a field: each of the columns {', '.join(schema.names)} has another "
            "meaning",
        )
    return fields


def _named(types: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items()) or "no columns"
