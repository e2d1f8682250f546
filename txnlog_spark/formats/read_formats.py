"""The formats of a read, from its options. The driver asks a registry for schemas here.

Decoders are imported when there is something to decode: most reads have no format.
"""

from __future__ import annotations

import base64
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from txnlog_spark.errors import OptionError, do_this
from txnlog_spark.options.registry import URL, registry_options, subject_of

if TYPE_CHECKING:
    from txnlog_spark.formats.decoded import Decoded
    from txnlog_spark.formats.readers import Reader

SIDES = ("key", "value")
WITH_SCHEMA = ("json", "avro", "protobuf")
"""Formats whose schema may be in a registry."""


NO_HEADERS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ReadFormat:
    """The format of the keys or the values (`side`) of a read."""

    side: str
    reader: Reader
    permissive: bool

    def decode(self, values: Any, named_headers: Mapping[str, Any] = NO_HEADERS) -> Decoded:
        """Decode a binary array that may have null: null is null, and not malformed.

        `named_headers` are headers of the same records, as in `DecodedColumns`.
        """
        from txnlog_spark.formats.decoded import decode_present
        from txnlog_spark.formats.schema_ids import HeaderIds, id_header

        name = id_header(self.side)
        contents, ids = named_headers.get(name), None
        if contents is not None:
            ids = HeaderIds(name, contents.filter(values.is_valid()))
        decode = partial(self.reader.decode, permissive=self.permissive, ids=ids)
        return decode_present(values, decode)


@dataclass(frozen=True, slots=True)
class ReadFormats:
    """The formats of keys and of values; None if they stay as they are."""

    key: ReadFormat | None = None
    value: ReadFormat | None = None

    @property
    def given(self) -> list[ReadFormat]:
        """The formats that are not None, the key's first."""
        return [each for each in (self.key, self.value) if each is not None]

    @property
    def id_headers(self) -> list[str]:
        """Names of the headers that decoding needs."""
        from txnlog_spark.formats.schema_ids import id_header

        return [id_header(each.side) for each in self.given if each.reader.has_schema_ids]

    def type_of(self, side: str) -> DataType:
        """Return the Spark type of the column key or value."""
        given: ReadFormat | None = getattr(self, side)
        return BinaryType() if given is None else given.reader.type

    @property
    def with_bytes(self) -> list[str]:
        """The sides that have a column of bytes: if one side is permissive, all with a format.

        The columns have the bytes of both sides of a record if one side is malformed.
        """
        permissive = any(each.permissive for each in self.given)
        return [each.side for each in self.given] if permissive else []

    def more_columns(self) -> list[StructField]:
        """Return the columns that a row has beside Spark's."""
        made = [StructField(f"{side}_bytes", BinaryType()) for side in self.with_bytes]
        permissive = [each for each in self.given if each.permissive]
        return made + [StructField(f"{each.side}_error", StringType()) for each in permissive]


BINARY = ReadFormats()
"""Keys and values as they are."""


def read_formats(values: Mapping[str, Any]) -> ReadFormats:
    """Return the formats that the options name, with their schemas.

    `values` is by the options' names. Raises OptionError, and RegistryError if the registry does
    not have a schema.
    """
    registry = registry_of(values)
    return ReadFormats(**{side: _read_format(side, values, registry) for side in SIDES})


def registry_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the registry's options, {} without a registry.

    Raises OptionError if no format has a schema.
    """
    given = registry_options(values)
    if given and not any(values[f"{side}.format"] in WITH_SCHEMA for side in SIDES):
        raise OptionError(
            URL, None, "remove it, or set value.format or key.format to avro, json or protobuf"
        )
    return given


def _read_format(
    side: str, values: Mapping[str, Any], registry: Mapping[str, str]
) -> ReadFormat | None:
    name = values[f"{side}.format"]
    refuse_schema(side, values, "fields")
    if name == "binary":
        if values[f"{side}.mode"] != "failfast":
            raise OptionError(f"{side}.mode", "PERMISSIVE", f"remove it or set {side}.format")
        return None
    make = {"string": _text, "json": _json, "avro": _avro, "protobuf": _protobuf}[name]
    return ReadFormat(side, make(side, values, registry), values[f"{side}.mode"] == "permissive")


def refuse_schema(side: str, values: Mapping[str, Any], fields: str) -> None:
    """Raise OptionError for a schema, or for `fields`, of a format that has none."""
    name = values[f"{side}.format"]
    for option in ("schema", "message.name", "subject", fields):
        if name in ("binary", "string") and values[f"{side}.{option}"] is not None:
            raise OptionError(f"{side}.{option}", None, f"{side}.format={name} has none: remove it")


def _text(side: str, values: Mapping[str, Any], registry: Mapping[str, str]) -> Reader:  # noqa: ARG001
    from txnlog_spark.formats.readers import Reader, read_text

    return Reader(StringType(), read_text)


def _json(side: str, values: Mapping[str, Any], registry: Mapping[str, str]) -> Reader:
    from txnlog_spark.formats.json.decode import json_decoder
    from txnlog_spark.formats.readers import Reader, read_json
    from txnlog_spark.formats.time_zone import time_zone

    schema = values[f"{side}.schema"] or latest_schema(side, values, registry, "JSON")
    type_ = _wanted(side, values, partial(json_type, f"{side}.schema", schema))
    try:
        # A type or a zone that is not read is refused here, before a task sees it.
        json_decoder(type_, values["timeZone"] or "UTC")
    except ValueError as error:
        raise OptionError(f"{side}.schema", None, str(error)) from None
    zone = time_zone(values["timeZone"], type_)
    return Reader(type_, read_json, (zone,), bool(registry))


def _wanted(side: str, values: Mapping[str, Any], make: Callable[..., DataType]) -> DataType:
    """Return the part of a type that `value.fields` names; `make` makes the type."""
    from txnlog_spark.formats.types import part_of

    fields = values[f"{side}.fields"] or ()
    return part_of(make(lenient=bool(fields)), fields, f"{side}.fields")


_KINDS: dict[str, type[StructType] | type[ArrayType] | type[MapType]] = {
    "fields": StructType,
    "elementType": ArrayType,
    "keyType": MapType,
}
"""Words that the JSON of a Spark type has, and a JSON Schema does not have."""


def json_type(
    option: str, schema: str, *, of_write: bool = False, lenient: bool = False
) -> DataType:
    """Return the type of DDL, of the JSON of a struct, array or map type, or of a JSON Schema.

    `of_write` and `lenient` are those of `json_schema_type`.
    """
    if not schema.lstrip().startswith("{"):
        from txnlog_spark.formats.ddl import parse_ddl

        try:
            return parse_ddl(schema)
        except ValueError as error:
            raise OptionError(option, schema, f"a schema in DDL with {error}") from None
    from txnlog_spark.formats.types import all_nullable

    try:
        parsed = json.loads(schema)
        for word, kind in _KINDS.items():
            if word in parsed:
                return all_nullable(kind.fromJson(parsed))
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(option, None, f"a schema in JSON: {error}") from None
    from txnlog_spark.formats.json.schema import json_schema_type

    return json_schema_type(schema, of_write=of_write, lenient=lenient)


def _avro(side: str, values: Mapping[str, Any], registry: Mapping[str, str]) -> Reader:
    require(f"{side}.format", "avro")
    from txnlog_spark.formats.avro.schema import parse_avro
    from txnlog_spark.formats.avro.types import TypeOptions, spark_type
    from txnlog_spark.formats.readers import Reader, read_avro

    schema = values[f"{side}.schema"] or latest_schema(side, values, registry, "AVRO")
    depth = values["recursiveFieldMaxDepth"]
    options = TypeOptions(recursive_depth=depth)
    type_ = _wanted(side, values, partial(spark_type, parse_avro(schema), options))
    schemas = (schema, None if registry else schema)
    arguments = (schemas, tuple(registry.items()), depth)
    return Reader(type_, read_avro, arguments, bool(registry))


def _protobuf(side: str, values: Mapping[str, Any], registry: Mapping[str, str]) -> Reader:
    from txnlog_spark.formats.readers import Reader, read_protobuf

    require(f"{side}.format", "protobuf")
    from txnlog_spark.formats.protobuf.frames import split_frames
    from txnlog_spark.formats.protobuf.types import message_descriptor, protobuf_type

    descriptors, message = _protobuf_schema(side, values, registry)
    descriptor = message_descriptor(descriptors, message)
    type_ = _wanted(side, values, partial(protobuf_type, descriptor))
    arguments = (descriptors, descriptor.full_name, tuple(registry.items()))
    return Reader(type_, read_protobuf, arguments, bool(registry), split_frames)


def _protobuf_schema(
    side: str, values: Mapping[str, Any], registry: Mapping[str, str]
) -> tuple[bytes, str]:
    """Return a descriptor set and a message in it: the options', else the registry's latest."""
    from txnlog_spark.formats.protobuf.types import descriptor_set_of, first_message

    path = values[f"{side}.schema"]
    if path is None:
        schema = latest_schema(side, values, registry, "PROTOBUF")
        descriptors = descriptor_set_of(base64.b64decode(schema))
    else:
        descriptors = read_descriptors(f"{side}.schema", path)
    return descriptors, values[f"{side}.message.name"] or first_message(descriptors)


def read_descriptors(option: str, path: str) -> bytes:
    """Return the bytes of a file with a descriptor set. OptionError if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OptionError(
            option,
            path,
            f"a file on the driver that protoc writes with --descriptor_set_out: {error.strerror}",
        ) from None


_MODULES = {"avro": "fastavro", "protobuf": "txnlog_spark.formats.protobuf.types"}
"""Modules of formats that need packages of an extra."""


def require(option: str, name: str) -> None:
    """Raise OptionError if a package of the format `name` is not installed, or too old."""
    try:
        importlib.import_module(_MODULES[name])
    except ImportError as error:
        raise OptionError(
            option,
            name,
            f"it needs a package which {sys.executable} does not have, or not new enough ({error})"
            + do_this(f"pip install 'txnlog_spark[{name}]'"),
        ) from None


def latest_schema(
    side: str, values: Mapping[str, Any], registry: Mapping[str, str], kind: str
) -> str:
    """Return the subject's latest schema. Raises OptionError without a registry or a subject."""
    if not registry:
        raise OptionError(
            f"{side}.schema", None, f"set it, or {URL} to take the schema from a registry"
        )
    from txnlog_spark.formats.registry.client import registry_for

    subject = values[f"{side}.subject"] or _subject_read(side, values)
    return registry_for(registry).latest(subject, kind)[1]


def _subject_read(side: str, values: Mapping[str, Any]) -> str:
    topics: Sequence[str] = values["subscribe"] or [each.topic for each in values["assign"] or ()]
    strategy = values[f"{side}.subject.name.strategy"]
    if len(set(topics)) != 1 or strategy != "TopicNameStrategy":
        raise OptionError(
            f"{side}.subject",
            None,
            f"set it, or {side}.schema: the subject is made of the one topic that is read "
            "(TopicNameStrategy)",
        )
    return subject_of(strategy, topics[0], side, "")
