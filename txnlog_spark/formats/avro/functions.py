"""`from_avro` and `to_avro` with the signatures of pyspark.sql.avro.functions, as Arrow UDFs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import Column
from pyspark.sql import functions as spark_functions
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BinaryType, DataType

from txnlog_spark.errors import OptionError
from txnlog_spark.formats.arrow_types import narrow_array
from txnlog_spark.formats.avro.decode import avro_decoder, null_fields
from txnlog_spark.formats.avro.encode import schema_encoder
from txnlog_spark.formats.avro.options import AvroOptions, read_options
from txnlog_spark.formats.avro.schema import parse_avro
from txnlog_spark.formats.avro.types import TypeOptions, avro_json, spark_type
from txnlog_spark.formats.decoded import Decode, Decoded, decode_present, on_present
from txnlog_spark.formats.errors import AvroSchemaError, MalformedAvro, UnknownSchema
from txnlog_spark.formats.registry.client import registry_for
from txnlog_spark.formats.schema_ids import SchemaId, decode_by_ids, header_of, with_header
from txnlog_spark.formats.types import all_nullable, arrow_type


def from_avro(
    data: Column | str, jsonFormatSchema: str, options: dict[str, str] | None = None
) -> Column:
    """Return a column of Avro values as Spark values.

    `jsonFormatSchema` is the schema that the values were written with, and the option `avroSchema`
    another schema to read them as. With the option `schema.registry.url` they are in Confluent's
    wire format, and each value says what it was written with: `jsonFormatSchema` is then the schema
    to read them as, or "" for the latest version of the subject.
    """
    _check_arguments(data, jsonFormatSchema, options)
    given = read_options(options, reading=True)
    reader = given.avro_schema or jsonFormatSchema
    if given.registry and not reader:
        _, reader = registry_for(given.registry).latest(given.subject(""))
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
    """Return a column of Spark values as Avro values; null stays null.

    Without a schema, the values have the schema that Spark makes of the column's type. `options`,
    which Spark's function does not have, are for a schema registry: with `schema.registry.url` the
    values are in Confluent's wire format, under the schema's id in the subject.
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


def _known_before(schema: str, given: AvroOptions) -> tuple[str, bytes]:
    """Return schema and header of a write, if they do not depend on the column's type."""
    if not given.registry:
        return schema, b""
    if given.use_latest:
        if schema:
            raise OptionError("use.latest.version", "true", "jsonFormatSchema is to be empty")
        schema_id, schema = registry_for(given.registry).latest(given.subject(""))
        return schema, header_of(schema_id)
    return schema, _header(schema, given) if schema else b""


def _header(schema: str, given: AvroOptions) -> bytes:
    if not given.registry:
        return b""
    registry, subject = registry_for(given.registry), given.subject(parse_avro(schema).name)
    return header_of(registry.id_of(subject, schema, register=given.auto_register))


# On the executors -----------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _result_type(reader: str, permissive: bool, types: TypeOptions) -> DataType:
    type_ = spark_type(parse_avro(reader), types)
    return all_nullable(type_) if permissive else type_


@lru_cache(maxsize=256)
def _decoder(writer: str, reader: str, permissive: bool, types: TypeOptions) -> Decode:
    type_ = arrow_type(_result_type(reader, permissive, types))
    return avro_decoder(parse_avro(writer), parse_avro(reader), type_, types.recursive_depth)


def _decode_column(values: pa.Array, writer: str, reader: str, given: AvroOptions) -> pa.Array:
    values = narrow_array(values, "of from_avro")
    if not pa.types.is_binary(values.type):
        raise AvroSchemaError(f"from_avro takes a binary column, not one of {values.type}")
    found = decode_present(values, partial(_decode, writer, reader, given))
    if not given.permissive:
        if found.first_problem is not None:
            raise MalformedAvro(*found.first_problem)
        return found.values
    return null_fields(found.values, values.is_null())


def _decode(writer: str, reader: str, given: AvroOptions, values: pa.Array) -> Decoded:
    if writer:
        return _decoder(writer, reader, given.permissive, given.types)(values)

    def decoder_of(schema_id: SchemaId, _: bytes) -> Decode:
        schema = registry_for(given.registry).schema(schema_id)
        return _decoder(schema, reader, given.permissive, given.types)

    type_ = arrow_type(_result_type(reader, given.permissive, given.types))
    schema_errors = (UnknownSchema,) if given.permissive else ()
    return decode_by_ids(values, None, decoder_of, type_, schema_errors)


def _encode_column(values: pa.Array, schema: str, header: bytes) -> pa.Array:
    values = narrow_array(values, "of to_avro")
    encode = schema_encoder(schema, values.type)
    return on_present(lambda present: with_header(header, encode(present)))(values)
