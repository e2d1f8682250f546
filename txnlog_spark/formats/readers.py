"""What a format makes of the keys or the values of a read, by format.

A reader is made on the driver, where the schema is known, and goes to the tasks as it is: plain
data. What it needs for decoding is made in the task and kept there (`lru_cache`): a reader is equal
to another with the same schema.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, StringType

from txnlog_spark.codec.decoded import Decode, Decoded, Misfit, decode_halves
from txnlog_spark.codec.schema_ids import (
    HeaderIds,
    NoSchema,
    SchemaId,
    decode_by_header,
    decode_by_schema,
)
from txnlog_spark.codec.types import arrow_type
from txnlog_spark.formats.time_zone import TimeZone
from txnlog_spark.schema_registry.client import PROTOBUF, registry_for
from txnlog_spark.schema_registry.errors import UnknownSchema

_TEXT_ROWS_MIN = 64


@dataclass(frozen=True, slots=True)
class TextReader:
    """Text in UTF-8. Bytes that are not are malformed."""

    type: DataType = field(default_factory=StringType)
    has_schema_ids: bool = False

    def decode(
        self,
        values: Any,
        permissive: bool,  # noqa: ARG002  as the others
        ids: HeaderIds | None = None,  # noqa: ARG002
    ) -> Decoded:
        """The values as strings."""
        return decode_halves(values, _as_text, _as_text_one_by_one, _TEXT_ROWS_MIN)


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
class JsonReader:
    """JSON, as `from_json` reads it. With `has_schema_ids` in Confluent's wire format."""

    type: DataType
    time_zone: TimeZone
    has_schema_ids: bool

    def decode(
        self,
        values: Any,
        permissive: bool,  # noqa: ARG002  as the others
        ids: HeaderIds | None = None,
    ) -> Decoded:
        """The values by the one schema: a schema id only says that there is one."""
        decode = _json_decode(self.type, self.time_zone.in_task())
        if not self.has_schema_ids:
            return decode(values)
        arrow = arrow_type(self.type)
        by_prefix = partial(decode_by_schema, decoder_of=lambda _: decode, type_=arrow)
        if ids is None:
            return by_prefix(values)
        return decode_by_header(values, ids, lambda _, rest: decode, by_prefix, arrow)  # noqa: ARG005


@lru_cache(maxsize=64)
def _json_decode(type_: DataType, time_zone: str) -> Decode:
    from txnlog_spark.json.decode import json_decoder

    return json_decoder(type_, time_zone)


@dataclass(frozen=True, slots=True)
class AvroReader:
    """Avro: `reader` is the schema to read as, `writer` the one of all values.

    With `registry`, its options, each value says by its schema id what it was written with.
    """

    type: DataType
    reader: str
    writer: str
    registry: tuple[tuple[str, str], ...] = field(repr=False)  # may have passwords
    recursive_depth: int

    @property
    def has_schema_ids(self) -> bool:
        """True if each value says which schema it was written with."""
        return not self.writer

    def decode(self, values: Any, permissive: bool, ids: HeaderIds | None = None) -> Decoded:
        """The values of each schema together."""
        if self.writer:
            return self._decode_of(self.writer)(values)
        from txnlog_spark.avro.errors import AvroSchemaError

        arrow = arrow_type(self.type)
        errors = (UnknownSchema, AvroSchemaError) if permissive else ()

        def by_prefix(values: Any) -> Decoded:
            return decode_by_schema(values, self._decode_of_id, arrow, errors)

        if ids is None:
            return by_prefix(values)
        return decode_by_header(values, ids, self._decode_of_id, by_prefix, arrow, errors)

    def _decode_of_id(self, schema_id: SchemaId, rest: bytes = b"") -> Decode:  # noqa: ARG002
        from txnlog_spark.avro.errors import AvroSchemaError

        writer = registry_for(dict(self.registry)).schema(schema_id)
        try:
            return self._decode_of(writer)
        except AvroSchemaError as error:
            problem = error.text.removeprefix(f"[{error.condition}] ")
            raise AvroSchemaError(f"schema id {schema_id}: {problem}") from None

    def _decode_of(self, writer: str) -> Decode:
        return _avro_decode(writer, self.reader, self.type, self.recursive_depth)


@dataclass(frozen=True, slots=True)
class ProtobufReader:
    """Protobuf: the message of this name in a descriptor set.

    With `registry`, its options, each value says which message of which schema it is; fields are
    those of the reader's message by their numbers, as Protobuf resolves them.
    """

    type: DataType
    descriptors: bytes
    message: str
    registry: tuple[tuple[str, str], ...] = field(repr=False)  # may have passwords

    @property
    def has_schema_ids(self) -> bool:
        """True if each value says which schema and message it was written with."""
        return bool(self.registry)

    def decode(self, values: Any, permissive: bool, ids: HeaderIds | None = None) -> Decoded:
        """The values of this message; those of another are malformed."""
        decode = _protobuf_decode(self.descriptors, self.message, self.type)
        if not self.registry:
            return decode(values)
        from txnlog_spark.protobuf.frames import decode_framed, indexes_in

        def problem_of(schema_id: SchemaId, indexes: tuple[int, ...]) -> str | None:
            try:
                name = _message_name(schema_id, indexes, self.registry)
            except UnknownSchema as error:
                if permissive:
                    return error.text
                raise
            if name == self.message:
                return None
            return f"it is a message {name} of the schema id {schema_id}, and not {self.message}"

        def of_header(schema_id: SchemaId, rest: bytes) -> Decode:
            problem = problem_of(schema_id, indexes_in(rest))
            if problem is not None:
                raise NoSchema(problem)
            return decode

        arrow = arrow_type(self.type)
        by_prefix = partial(decode_framed, decode=decode, problem_of=problem_of, type_=arrow)
        if ids is None:
            return by_prefix(values)
        return decode_by_header(values, ids, of_header, by_prefix, arrow)


@lru_cache(maxsize=64)
def _protobuf_decode(descriptors: bytes, message: str, type_: DataType) -> Decode:
    from txnlog_spark.protobuf.decode import protobuf_decoder
    from txnlog_spark.protobuf.types import message_descriptor

    return protobuf_decoder(message_descriptor(descriptors, message), type_)


@lru_cache(maxsize=1024)
def _message_name(
    schema_id: SchemaId, indexes: tuple[int, ...], registry: tuple[tuple[str, str], ...]
) -> str:
    """The full name of a message of a registered schema."""
    from txnlog_spark.protobuf.frames import message_at
    from txnlog_spark.protobuf.types import descriptor_set_of, first_message, message_descriptor

    file = base64.b64decode(registry_for(dict(registry)).schema(schema_id, PROTOBUF))
    descriptors = descriptor_set_of(file)
    first = message_descriptor(descriptors, first_message(descriptors))
    name: str = message_at(first.file, indexes).full_name
    return name


@lru_cache(maxsize=256)
def _avro_decode(writer: str, reader: str, type_: DataType, depth: int) -> Decode:
    from txnlog_spark.avro.decode import Decoder
    from txnlog_spark.avro.schema import parse_avro

    return Decoder(parse_avro(writer), parse_avro(reader), arrow_type(type_), depth).decode
