"""Readers of keys and values, a class for each format.

The driver makes a reader where it knows the schema, and sends it to the tasks as it is: plain data.
The task makes the decoder and keeps it (`lru_cache`): readers with the same schema are equal.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, StringType

from txnlog_spark.errors import TxnLogError
from txnlog_spark.formats.decoded import Decode, Decoded, Misfit, decode_halves
from txnlog_spark.formats.errors import AvroSchemaError, UnknownSchema
from txnlog_spark.formats.registry.client import PROTOBUF, registry_for
from txnlog_spark.formats.schema_ids import (
    HeaderIds,
    NoSchema,
    SchemaId,
    Split,
    decode_by_ids,
    split_ids,
)
from txnlog_spark.formats.time_zone import TimeZone
from txnlog_spark.formats.types import arrow_type

_TEXT_ROWS_MIN = 64

Options = tuple[tuple[str, str], ...]
Errors = tuple[type[TxnLogError], ...]


@dataclass(frozen=True, slots=True)
class Reader(ABC):
    """Decodes binary arrays without null to the Spark type `type`."""

    type: DataType

    @property
    def has_schema_ids(self) -> bool:
        """True if a value, or a header of its record, says which schema it was written with."""
        return False

    def decode(self, values: Any, permissive: bool, ids: HeaderIds | None = None) -> Decoded:
        """Return an array of the Arrow type of `type`; `ids` if some records have the header."""
        if not self.has_schema_ids:
            return self.decoder(None, b"")(values)
        errors = self.schema_errors() if permissive else ()
        type_ = arrow_type(self.type)
        return decode_by_ids(values, ids, self.decoder, type_, errors, self.splitter())

    @abstractmethod
    def decoder(self, schema_id: SchemaId | None, rest: bytes) -> Decode:
        """Return the decoder of the values of a schema; `rest` are the bytes behind its id."""

    def schema_errors(self) -> Errors:
        """Return the errors of `decoder` that make values malformed where this is allowed."""
        return (UnknownSchema,)

    def splitter(self) -> Callable[[Any], Split]:
        """Return the function that finds the schema id before a value."""
        return split_ids


@dataclass(frozen=True, slots=True)
class TextReader(Reader):
    """Text in UTF-8. Other bytes are malformed."""

    type: DataType = field(default_factory=StringType)

    def decoder(self, schema_id: SchemaId | None, rest: bytes) -> Decode:
        """Return the decoder of all values."""
        del schema_id, rest
        return partial(
            decode_halves,
            together=_as_text,
            one_by_one=_as_text_one_by_one,
            rows_min=_TEXT_ROWS_MIN,
        )


def _as_text(values: Any) -> Any:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        raise Misfit from None


def _as_text_one_by_one(values: Any) -> Decoded:
    texts: list[str | None] = []
    problems: list[str | None] = []
    for value in values.to_pylist():
        try:
            texts.append(value.decode())
            problems.append(None)
        except UnicodeDecodeError as error:
            texts.append(None)
            problems.append(f"it is not UTF-8: {error.reason} at byte {error.start}")
    return Decoded(pa.array(texts, pa.string()), pa.array(problems, pa.string()))


@dataclass(frozen=True, slots=True)
class JsonReader(Reader):
    """JSON, as `from_json` reads it. With `framed` it is in Confluent's wire format."""

    time_zone: TimeZone
    framed: bool

    @property
    def has_schema_ids(self) -> bool:
        """True if each value has a schema id, which only says that there is a schema."""
        return self.framed

    def decoder(self, schema_id: SchemaId | None, rest: bytes) -> Decode:
        """Return the decoder of all values: they are read by the one schema."""
        del schema_id, rest
        return _json_decode(self.type, self.time_zone.in_task())


@lru_cache(maxsize=64)
def _json_decode(type_: DataType, time_zone: str) -> Decode:
    from txnlog_spark.formats.json.decode import json_decoder

    return json_decoder(type_, time_zone)


@dataclass(frozen=True, slots=True)
class AvroReader(Reader):
    """Avro: `reader` is the schema to read as, `writer` the schema of all values.

    With `registry`, its options, each value says by its schema id what it was written with.
    """

    reader: str
    writer: str
    registry: Options = field(repr=False)  # may have passwords
    recursive_depth: int

    @property
    def has_schema_ids(self) -> bool:
        """True if each value says which schema it was written with."""
        return not self.writer

    def schema_errors(self) -> Errors:
        """Return also the error of a schema that cannot be read as the reader's."""
        return (UnknownSchema, AvroSchemaError)

    def decoder(self, schema_id: SchemaId | None, rest: bytes) -> Decode:
        """Return the decoder of values of the registry's schema, or of `writer`."""
        del rest
        depth = self.recursive_depth
        if schema_id is None:
            return _avro_decode(self.writer, self.reader, self.type, depth)
        writer = registry_for(dict(self.registry)).schema(schema_id)
        try:
            return _avro_decode(writer, self.reader, self.type, depth)
        except AvroSchemaError as error:
            raise AvroSchemaError(f"schema id {schema_id}: {error.problem}") from None


@lru_cache(maxsize=256)
def _avro_decode(writer: str, reader: str, type_: DataType, depth: int) -> Decode:
    from txnlog_spark.formats.avro.decode import avro_decoder
    from txnlog_spark.formats.avro.schema import parse_avro

    return avro_decoder(parse_avro(writer), parse_avro(reader), arrow_type(type_), depth)


@dataclass(frozen=True, slots=True)
class ProtobufReader(Reader):
    """Protobuf: the message of this name in a descriptor set.

    With `registry`, its options, each value says which message of which schema it is; fields are
    those of the reader's message by their numbers, as Protobuf resolves them.
    """

    descriptors: bytes
    message: str
    registry: Options = field(repr=False)  # may have passwords

    @property
    def has_schema_ids(self) -> bool:
        """True if each value says which schema and message it was written with."""
        return bool(self.registry)

    def splitter(self) -> Callable[[Any], Split]:
        """Return the function that finds the schema id and the indexes of the message."""
        from txnlog_spark.formats.protobuf.frames import split_frames

        return split_frames

    def decoder(self, schema_id: SchemaId | None, rest: bytes) -> Decode:
        """Return the decoder of this message; values of another message are malformed."""
        if schema_id is not None:
            name = _message_name(schema_id, rest, self.registry)
            if name != self.message:
                raise NoSchema(
                    f"it is a message {name} of the schema id {schema_id}, and not {self.message}"
                )
        return _protobuf_decode(self.descriptors, self.message, self.type)


@lru_cache(maxsize=64)
def _protobuf_decode(descriptors: bytes, message: str, type_: DataType) -> Decode:
    from txnlog_spark.formats.protobuf.decode import protobuf_decoder
    from txnlog_spark.formats.protobuf.types import message_descriptor

    return protobuf_decoder(message_descriptor(descriptors, message), type_)


@lru_cache(maxsize=1024)
def _message_name(schema_id: SchemaId, indexes: bytes, registry: Options) -> str:
    """Return the full name of a message of a registered schema."""
    from txnlog_spark.formats.protobuf.frames import indexes_in, message_at
    from txnlog_spark.formats.protobuf.types import (
        descriptor_set_of,
        first_message,
        message_descriptor,
    )

    file = base64.b64decode(registry_for(dict(registry)).schema(schema_id, PROTOBUF))
    descriptors = descriptor_set_of(file)
    first = message_descriptor(descriptors, first_message(descriptors))
    name: str = message_at(first.file, indexes_in(indexes)).full_name
    return name
