"""`from_avro` and `to_avro` with the signatures of pyspark.sql.avro.functions, as Arrow UDFs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkTypeError
from pyspark.sql import Column
from pyspark.sql import functions as spark_functions
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import BinaryType, DataType

from txnlog_spark.avro.decode import Decoder, null_fields
from txnlog_spark.avro.encode import Encode, join, nullable_encoder
from txnlog_spark.avro.errors import AvroSchemaError, MalformedAvro, UnknownSchema
from txnlog_spark.avro.options import AvroOptions, read_options
from txnlog_spark.avro.resolve import spread
from txnlog_spark.avro.schema import parse_avro
from txnlog_spark.avro.schema_registry import Registry
from txnlog_spark.avro.types import TypeOptions, all_nullable, avro_json, spark_type
from txnlog_spark.errors import OptionError

HEADER_BYTES = 5
"""Of Confluent's wire format: a zero byte, and the schema's id in four bytes, big-endian."""


def from_avro(
    data: Column | str, jsonFormatSchema: str, options: dict[str, str] | None = None
) -> Column:
    """A column of Avro values as Spark values.

    `jsonFormatSchema` is the schema they were written with, and the option `avroSchema` another
    one to read them as. With the option `schema.registry.url` they are in Confluent's wire format
    and each says what it was written with: `jsonFormatSchema` is then the one to read them as, or
    "" for the latest version of the subject.
    """
    _check_arguments(data, jsonFormatSchema, options)
    given = read_options(options, reading=True)
    reader = given.avro_schema or jsonFormatSchema
    if given.registry and not reader:
        _, reader = _registry(given).latest(given.subject(""))
    type_ = _result_type(reader, given.permissive, given.types)
    writer = "" if given.registry else jsonFormatSchema
    if writer:
        _decoder(writer, reader, given.permissive, given.types)  # what does not fit is said here

    def from_avro(values: pa.Array) -> pa.Array:
        return _decode_column(values, writer, reader, given)

    return _as_udf(from_avro, type_)(data)


def to_avro(
    data: Column | str, jsonFormatSchema: str = "", options: dict[str, str] | None = None
) -> Column:
    """A column of Spark values as Avro values; null stays null.

    Without a schema, that which Spark makes of the column's type. `options`, which Spark's function
    does not have, are for a schema registry: with `schema.registry.url` the values are in
    Confluent's wire format, under the schema's id in the subject.
    """
    _check_arguments(data, jsonFormatSchema, options)
    given = read_options(options, reading=False)
    schema, header = _known_before(jsonFormatSchema, given)
    column = spark_functions.col(data) if isinstance(data, str) else data
    if schema:
        parse_avro(schema)

        def to_avro(values: pa.Array) -> pa.Array:
            return _encode_column(values, schema, header)
    else:
        # A struct's type says of its field whether it may be null, which the schema depends on.
        column = spark_functions.struct(column.alias("value"))

        def to_avro(values: pa.Array) -> pa.Array:
            field = values.type.field(0)
            made = avro_json(from_arrow_type(field.type), field.nullable)
            return _encode_column(values.field(0), made, _header(made, given))

    return _as_udf(to_avro, BinaryType())(column)


def _check_arguments(data: object, schema: object, options: object) -> None:
    for name, value, types, said in (
        ("data", data, (Column, str), "pyspark.sql.Column or str"),
        ("jsonFormatSchema", schema, (str,), "str"),
        ("options", options, (dict, type(None)), "dict, optional"),
    ):
        if not isinstance(value, types):
            raise PySparkTypeError(
                errorClass="INVALID_TYPE", messageParameters={"arg_name": name, "arg_type": said}
            )


def _as_udf(function: Callable[[pa.Array], pa.Array], type_: DataType) -> Callable[..., Column]:
    # By the type hints of the function, which the stubs do not know of.
    made: Callable[..., Column] = cast(Any, arrow_udf)(function, type_)
    return made


# Registries -----------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _registry_of(options: tuple[tuple[str, str], ...]) -> Registry:
    return Registry(dict(options))


def _registry(given: AvroOptions) -> Registry:
    """The process's client of a registry, with what it has learned."""
    return _registry_of(tuple(given.registry.items()))


def _known_before(schema: str, given: AvroOptions) -> tuple[str, bytes]:
    """The schema to write with and the header, where they do not depend on the column's type."""
    if not given.registry:
        return schema, b""
    if given.use_latest:
        if schema:
            raise OptionError("use.latest.version", "true", "jsonFormatSchema is to be empty")
        schema_id, schema = _registry(given).latest(given.subject(""))
        return schema, _header_of(schema_id)
    return schema, _header(schema, given) if schema else b""


def _header(schema: str, given: AvroOptions) -> bytes:
    if not given.registry:
        return b""
    registry, subject = _registry(given), given.subject(parse_avro(schema).name)
    ask = registry.register if given.auto_register else registry.lookup
    return _header_of(ask(subject, schema))


def _header_of(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


# On the executors -----------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _result_type(reader: str, permissive: bool, types: TypeOptions) -> DataType:
    type_ = spark_type(parse_avro(reader), types)
    return all_nullable(type_) if permissive else type_


@lru_cache(maxsize=256)
def _decoder(writer: str, reader: str, permissive: bool, types: TypeOptions) -> Decoder:
    type_ = to_arrow_type(_result_type(reader, permissive, types), timezone="UTC")
    return Decoder(parse_avro(writer), parse_avro(reader), type_, types.recursive_depth)


def _decode_column(values: pa.Array, writer: str, reader: str, given: AvroOptions) -> pa.Array:
    if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        raise AvroSchemaError(f"from_avro takes a binary column, not one of {values.type}")
    present = values.drop_null().cast(pa.binary())
    if writer:
        made = _decode(present, _decoder(writer, reader, given.permissive, given.types), given)
    else:
        made = _decode_confluent(present, reader, given)
    if values.null_count:
        made = spread(made, values.is_valid())
    return null_fields(made, values.is_null()) if given.permissive else made


def _decode(values: pa.Array, decoder: Decoder, given: AvroOptions) -> pa.Array:
    return decoder.decode_valid(values) if given.permissive else decoder.decode(values)


def _decode_confluent(values: pa.Array, reader: str, given: AvroOptions) -> pa.Array:
    """Decode the values of each schema id together, and put them back into their places."""
    headers = pc.binary_slice(values, 0, HEADER_BYTES).dictionary_encode()
    codes = headers.indices.to_numpy()
    # Without an end the kernel fails on values that are shorter than the start.
    payloads = pc.binary_slice(values, HEADER_BYTES, np.iinfo(np.int32).max)
    type_ = to_arrow_type(_result_type(reader, given.permissive, given.types), timezone="UTC")
    places, arrays = [], []
    for code, header in enumerate(headers.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == code)
        places.append(rows)
        try:
            decoder = _decoder_of(header, reader, given)
            arrays.append(_decode(payloads.take(pa.array(rows)), decoder, given))
        except MalformedAvro as error:
            if not given.permissive:
                raise MalformedAvro(int(rows[error.row]), error.problem) from None
            arrays.append(pa.nulls(len(rows), type_))
        except UnknownSchema:
            if not given.permissive:
                raise
            arrays.append(pa.nulls(len(rows), type_))
    if not arrays:
        return pa.array([], type_)
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays).take(pa.array(np.argsort(np.concatenate(places))))


def _decoder_of(header: bytes, reader: str, given: AvroOptions) -> Decoder:
    if len(header) < HEADER_BYTES or header[0] != 0:
        raise MalformedAvro(0, f"it begins with {header!r}, which is not Confluent's wire format")
    writer = _registry(given).schema(int.from_bytes(header[1:], "big"))
    return _decoder(writer, reader, given.permissive, given.types)


@lru_cache(maxsize=256)
def _encoder(schema: str, type_: pa.DataType) -> Encode:
    return nullable_encoder(parse_avro(schema), type_)


def _encode_column(values: pa.Array, schema: str, header: bytes) -> pa.Array:
    if "large_" in str(values.type):  # spark.sql.execution.arrow.useLargeVarTypes
        values = values.cast(to_arrow_type(from_arrow_type(values.type), timezone="UTC"))
    encode = _encoder(schema, values.type)
    made = encode(values.drop_null())
    if header:
        made = join(pa.scalar(header, pa.binary()), made)
    return spread(made, values.is_valid()) if values.null_count else made
