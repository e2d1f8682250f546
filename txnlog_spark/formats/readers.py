"""The reader of keys and values, of every format.

The driver makes a reader where it knows the schema, and sends it to the tasks as it is: plain data.
The task makes the decoder and keeps it (`lru_cache`): readers with the same schema are equal.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType

from txnlog_kafka.wire.invariants import present
from txnlog_spark.formats.decoded import Decode, Decoded, Misfit, decode_each, decode_halves
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


@dataclass(frozen=True, slots=True)
class Reader:
    """Decodes binary arrays without null to `type` by `make(schema_id, rest, type, *arguments)`.

    `make` is a function of a module. It takes the schema id of the values and the bytes behind it,
    None and no bytes if values have no schema id, and returns their decoder. If it raises
    `NoSchema`, values of that id are malformed.
    """

    type: DataType
    make: Callable[..., Decode]
    arguments: tuple[Any, ...] = field(default=(), repr=False)  # may have passwords
    has_schema_ids: bool = False
    """True if a value, or a header of its record, says which schema it was written with."""
    split: Callable[[Any], Split] = split_ids
    """Finds the schema id before a value."""

    def decode(self, values: Any, permissive: bool, ids: HeaderIds | None = None) -> Decoded:
        """Return an array of the Arrow type of `type`; `ids` if some records have the header.

        If `permissive`, values of a schema that cannot be read as the reader's are malformed.
        """
        if not self.has_schema_ids:
            return self.decoder(None, b"")(values)
        errors = (UnknownSchema, AvroSchemaError) if permissive else ()
        type_ = arrow_type(self.type)
        return decode_by_ids(values, ids, self.decoder, type_, errors, self.split)

    def decoder(self, schema_id: SchemaId | None, rest: bytes) -> Decode:
        """Return the decoder of the values of a schema; `rest` are the bytes behind its id."""
        return self.make(schema_id, rest, self.type, *self.arguments)


# Text -----------------------------------------------------------------------------------------


def read_text(schema_id: SchemaId | None, rest: bytes, type_: DataType) -> Decode:  # noqa: ARG001
    """Return the decoder of text in UTF-8. Other bytes are malformed."""
    return partial(
        decode_halves,
        together=_as_text,
        one_by_one=partial(decode_each, read=str, type_=pa.string()),
        rows_min=_TEXT_ROWS_MIN,
    )


def _as_text(values: Any) -> Any:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        raise Misfit from None


# JSON -----------------------------------------------------------------------------------------


def read_json(
    schema_id: SchemaId | None,  # noqa: ARG001  # it says only that there is a schema
    rest: bytes,  # noqa: ARG001
    type_: DataType,
    time_zone: TimeZone,
) -> Decode:
    """Return the decoder of JSON as `from_json` reads it."""
    return _json_decode(type_, time_zone.in_task())


@lru_cache(maxsize=64)
def _json_decode(type_: DataType, time_zone: str) -> Decode:
    from txnlog_spark.formats.json.decode import json_decoder

    return json_decoder(type_, time_zone)


# Avro -----------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def read_avro(
    schema_id: SchemaId | None,
    rest: bytes,  # noqa: ARG001
    type_: DataType,
    schemas: tuple[str, str | None],
    registry: Options,
    depth: int,
) -> Decode:
    """Return the decoder of Avro that is read as the first schema, and written with the second.

    With a schema id the second one is None: the registry with these options has it.
    """
    from txnlog_spark.formats.avro.decode import avro_decoder
    from txnlog_spark.formats.avro.schema import parse_avro

    reader, writer = schemas
    if schema_id is not None:
        writer = registry_for(dict(registry)).schema(schema_id)
    try:
        written = parse_avro(present(writer, "values without a schema id have a schema"))
        return avro_decoder(written, parse_avro(reader), arrow_type(type_), depth)
    except AvroSchemaError as error:
        if schema_id is None:
            raise
        raise AvroSchemaError(f"schema id {schema_id}: {error.problem}") from None


# Protobuf -------------------------------------------------------------------------------------


def read_protobuf(
    schema_id: SchemaId | None,
    rest: bytes,
    type_: DataType,
    descriptors: bytes,
    message: str,
    registry: Options,
) -> Decode:
    """Return the decoder of the message of this name in a descriptor set.

    With a schema id values are of a message of the registry's schema. Fields are those of the
    reader's message by their numbers, as Protobuf resolves them.
    """
    if schema_id is not None:
        schema = registry_for(dict(registry)).schema(schema_id, PROTOBUF)
        name = _message_name(schema, rest)
        if name != message:
            raise NoSchema(
                f"it is a message {name} of the schema id {schema_id}, and not {message}"
            )
    return _protobuf_decode(descriptors, message, type_)


@lru_cache(maxsize=64)
def _protobuf_decode(descriptors: bytes, message: str, type_: DataType) -> Decode:
    from txnlog_spark.formats.protobuf.decode import protobuf_decoder
    from txnlog_spark.formats.protobuf.types import message_descriptor

    return protobuf_decoder(message_descriptor(descriptors, message), type_)


@lru_cache(maxsize=1024)
def _message_name(schema: str, indexes: bytes) -> str:
    """Return the full name of the message at these indexes of a schema, which is in base64."""
    from txnlog_spark.formats.protobuf.frames import indexes_in, message_at
    from txnlog_spark.formats.protobuf.types import (
        descriptor_set_of,
        first_message,
        message_descriptor,
    )

    descriptors = descriptor_set_of(base64.b64decode(schema))
    first = message_descriptor(descriptors, first_message(descriptors))
    name: str = message_at(first.file, indexes_in(indexes)).full_name
    return name
