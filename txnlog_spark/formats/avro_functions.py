"""`from_avro` and `to_avro` with the signatures of pyspark.sql.avro.functions, as Arrow UDFs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
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
from txnlog_spark.formats.avro.decode import null_fields
from txnlog_spark.formats.avro.encode import schema_encoder
from txnlog_spark.formats.avro.schema import parse_avro
from txnlog_spark.formats.avro.types import TypeOptions, avro_json, spark_type
from txnlog_spark.formats.decoded import decode_present, on_present
from txnlog_spark.formats.errors import AvroSchemaError, MalformedAvro
from txnlog_spark.formats.readers import Reader, read_avro
from txnlog_spark.formats.registry.client import registry_for
from txnlog_spark.formats.schema_ids import header_of
from txnlog_spark.formats.types import all_nullable
from txnlog_spark.formats.writers import Writer
from txnlog_spark.options import option_types as to
from txnlog_spark.options.registry import (
    REGISTRY_OPTIONS,
    REGISTRY_PREFIX,
    STRATEGIES,
    URL,
    registry_options,
    subject_of,
)


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
    type_ = spark_type(parse_avro(reader), given.types)
    type_ = all_nullable(type_) if given.permissive else type_
    schemas = (reader, None if given.registry else jsonFormatSchema)
    arguments = (schemas, tuple(given.registry.items()), given.types.recursive_depth)
    decoder = Reader(type_, read_avro, arguments, bool(given.registry))
    if not given.registry:
        decoder.decoder(None, b"")  # what does not fit is said here

    def from_avro(values: pa.Array) -> pa.Array:
        return _decode_column(values, decoder, given.permissive)

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


# Options: Spark's own, and those of Confluent's serializers -------------------------------------


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


def _decode_column(values: pa.Array, reader: Reader, permissive: bool) -> pa.Array:
    values = narrow_array(values, "of from_avro")
    if not pa.types.is_binary(values.type):
        raise AvroSchemaError(f"from_avro takes a binary column, not one of {values.type}")
    found = decode_present(values, partial(reader.decode, permissive=permissive))
    if permissive:
        return null_fields(found.values, values.is_null())
    if found.first_problem is not None:
        raise MalformedAvro(*found.first_problem)
    return found.values


def _encode_column(values: pa.Array, schema: str, header: bytes) -> pa.Array:
    values = narrow_array(values, "of to_avro")
    return on_present(Writer(schema_encoder, (schema, values.type), header).encode)(values)
