"""Descriptors of Protobuf messages, and the Spark types of messages.

Types are matched as Spark does (SchemaConverters, with the options of from_protobuf at their
defaults).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from pyspark.sql import types as spark

from txnlog_spark.formats.errors import ProtobufSchemaError
from txnlog_spark.formats.types import Unreadable

_WELL_KNOWN = (
    *("any", "api", "descriptor", "duration", "empty", "field_mask"),
    *("source_context", "struct", "timestamp", "type", "wrappers"),
)
"""Files that come with Protobuf itself, as modules of the runtime."""

_NAMES_MAX = 20
"""Number of names that an error lists."""

_LEAVES: dict[int, spark.DataType] = {
    FieldDescriptor.CPPTYPE_INT32: spark.IntegerType(),
    FieldDescriptor.CPPTYPE_UINT32: spark.IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: spark.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: spark.LongType(),
    FieldDescriptor.CPPTYPE_FLOAT: spark.FloatType(),
    FieldDescriptor.CPPTYPE_DOUBLE: spark.DoubleType(),
    FieldDescriptor.CPPTYPE_BOOL: spark.BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: spark.StringType(),
    FieldDescriptor.CPPTYPE_STRING: spark.StringType(),
}
TYPES_OF_SECONDS: dict[str, spark.DataType] = {
    "Timestamp": spark.TimestampType(),
    "Duration": spark.DayTimeIntervalType(),
}


def message_descriptor(descriptor_set: bytes, message_name: str) -> Descriptor:
    """Return the message of this name, with or without its package, in a FileDescriptorSet.

    As in Spark, a name without a package finds messages that are not in another message. The files
    that come with Protobuf itself need not be in the set.
    """
    files = _files(descriptor_set)
    pool = descriptor_pool.DescriptorPool()
    for name in files:
        _add(pool, name, files, ())
    names = [name for file in files.values() for name in _message_names(file)]
    outer = [name for file in files.values() for name in _outer_names(file)]
    if message_name in names:
        return pool.FindMessageTypeByName(message_name)
    for name in outer:
        if name.rpartition(".")[2] == message_name:
            return pool.FindMessageTypeByName(name)
    known = ", ".join(sorted(names)[:_NAMES_MAX]) or "none"
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    raise ProtobufSchemaError(
        f"there is no message {message_name} in the descriptor file; its messages: {known}{more}"
    )


def first_message(descriptor_set: bytes) -> str:
    """Return the full name of the first message of the last file, of which the set was made.

    Raises ProtobufSchemaError if that file has no message.
    """
    file = list(_files(descriptor_set).values())[-1]
    names = _outer_names(file)
    if not names:
        raise ProtobufSchemaError(f"the file {file.name} has no message")
    return names[0]


def descriptor_set_of(file: bytes) -> bytes:
    """Return a set of one serialized file, which a schema registry gives."""
    try:
        made = descriptor_pb2.FileDescriptorProto.FromString(file)
    except DecodeError as error:
        raise ProtobufSchemaError(f"the registry's schema is not a file: {error}") from None
    made_set: bytes = descriptor_pb2.FileDescriptorSet(file=[made]).SerializeToString()
    return made_set


def file_of(descriptor: Descriptor) -> bytes:
    """Return the serialized file of a message, without the files that it imports."""
    made = descriptor_pb2.FileDescriptorProto()
    descriptor.file.CopyToProto(made)
    serialized: bytes = made.SerializeToString()
    return serialized


def _files(descriptor_set: bytes) -> dict[str, Any]:
    try:
        made = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set)
    except DecodeError as error:
        raise ProtobufSchemaError(
            f"the {len(descriptor_set)} bytes are not a FileDescriptorSet, which protoc writes "
            f"with --descriptor_set_out: {error}"
        ) from None
    if not made.file or not all(file.name for file in made.file):
        raise ProtobufSchemaError(
            f"the {len(descriptor_set)} bytes are not a FileDescriptorSet: no file is in it"
        )
    return {file.name: file for file in made.file}


def _add(
    pool: descriptor_pool.DescriptorPool, name: str, files: dict[str, Any], within: tuple[str, ...]
) -> None:
    if name in within:
        raise ProtobufSchemaError(f"the file {name} imports itself")
    try:
        pool.FindFileByName(name)
        return
    except KeyError:
        file = files.get(name) or _well_known(name)
    if file is None:
        raise ProtobufSchemaError(
            f"the file {name}, which {within[-1]} imports, is not in the descriptor file: make it "
            "with protoc --include_imports"
        )
    for imported in file.dependency:
        _add(pool, imported, files, (*within, name))
    try:
        pool.AddSerializedFile(file.SerializeToString())
        pool.FindFileByName(name)
    except (TypeError, ValueError, KeyError) as error:
        raise ProtobufSchemaError(f"the file {name} is not a valid descriptor: {error}") from None


def _well_known(name: str) -> Any:
    known = name.removeprefix("google/protobuf/").removesuffix(".proto")
    if name != f"google/protobuf/{known}.proto" or known not in _WELL_KNOWN:
        return None
    module = importlib.import_module(f"google.protobuf.{known}_pb2")
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def _outer_names(file: Any) -> list[str]:
    return [f"{file.package}.{message.name}".lstrip(".") for message in file.message_type]


def _message_names(file: Any) -> Iterator[str]:
    pending = [(file.package, message) for message in file.message_type]
    while pending:
        prefix, message = pending.pop()
        name = f"{prefix}.{message.name}".lstrip(".")
        if not message.options.map_entry:
            yield name
        pending += [(name, inner) for inner in message.nested_type]


# Spark types ----------------------------------------------------------------------------------


def protobuf_type(descriptor: Descriptor, *, lenient: bool = False) -> spark.StructType:
    """Return the Spark type that from_protobuf gives messages.

    ProtobufSchemaError names a message that can contain itself; if `lenient`, the field with that
    message is `Unreadable`.
    """
    return _struct(descriptor, (descriptor.full_name,), lenient)


def _struct(descriptor: Descriptor, within: tuple[str, ...], lenient: bool) -> spark.StructType:
    fields = (_field(field, within, lenient) for field in descriptor.fields)
    return spark.StructType([field for field in fields if field is not None])


def _field(
    field: FieldDescriptor, within: tuple[str, ...], lenient: bool
) -> spark.StructField | None:
    """Return None for a message without fields: Spark drops its column."""
    try:
        type_ = (_map if is_map(field) else _single)(field, within, lenient)
    except ProtobufSchemaError as error:
        if not lenient:
            raise
        return spark.StructField(field.name, Unreadable(error))
    if type_ is None:
        return None
    if isinstance(type_, spark.MapType):
        return spark.StructField(field.name, type_)
    if field.is_repeated:
        return spark.StructField(field.name, spark.ArrayType(type_, containsNull=False))
    return spark.StructField(field.name, type_, nullable=not field.is_required)


def _map(field: FieldDescriptor, within: tuple[str, ...], lenient: bool) -> spark.DataType | None:
    key, value = field.message_type.fields
    key_type, value_type = _single(key, within, lenient), _single(value, within, lenient)
    if key_type is None or value_type is None:
        return None
    return spark.MapType(key_type, value_type, valueContainsNull=False)


def _single(
    field: FieldDescriptor, within: tuple[str, ...], lenient: bool
) -> spark.DataType | None:
    """Return the type of one value, repeated or not."""
    message = field.message_type
    if message is None:
        return leaf_type(field)
    if wire_type_of(field) == GROUP:
        raise ProtobufSchemaError(f"the field {field.full_name} is a group, which is not read")
    if of_seconds(message):
        return TYPES_OF_SECONDS[message.name]
    if message.full_name in within:
        raise ProtobufSchemaError(
            f"the field {field.full_name} makes the message {message.full_name} contain itself, "
            "and a Spark type cannot: leave the field out of the descriptor"
        )
    made = _struct(message, (*within, message.full_name), lenient)
    return made if made.fields else None


def leaf_type(field: FieldDescriptor) -> spark.DataType:
    """Return the type of one value of a field that is not a message."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        return spark.BinaryType()
    return _LEAVES[field.cpp_type]


def is_map(field: FieldDescriptor) -> bool:
    """Return whether the field is a map: a repeated message of key and value."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def of_seconds(message: Descriptor) -> bool:
    """Return whether Spark takes the message for a time: by its names, in any package."""
    return message.name in TYPES_OF_SECONDS and [field.name for field in message.fields] == [
        "seconds",
        "nanos",
    ]


TYPE_NAMES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}
"""Names of types as a .proto file has them."""

DTYPES: dict[int, np.dtype[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: np.dtype("<i4"),
    FieldDescriptor.CPPTYPE_UINT32: np.dtype("<i4"),
    FieldDescriptor.CPPTYPE_ENUM: np.dtype("<i4"),
    FieldDescriptor.CPPTYPE_INT64: np.dtype("<i8"),
    FieldDescriptor.CPPTYPE_UINT64: np.dtype("<i8"),
    FieldDescriptor.CPPTYPE_FLOAT: np.dtype("<f4"),
    FieldDescriptor.CPPTYPE_DOUBLE: np.dtype("<f8"),
    FieldDescriptor.CPPTYPE_BOOL: np.dtype(bool),
}
"""Numbers of values, by the type in memory."""


# The wire -------------------------------------------------------------------------------------

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)
"""Wire types."""

_WIRE_TYPES = {
    FieldDescriptor.TYPE_DOUBLE: FIXED64,
    FieldDescriptor.TYPE_FIXED64: FIXED64,
    FieldDescriptor.TYPE_SFIXED64: FIXED64,
    FieldDescriptor.TYPE_FLOAT: FIXED32,
    FieldDescriptor.TYPE_FIXED32: FIXED32,
    FieldDescriptor.TYPE_SFIXED32: FIXED32,
    FieldDescriptor.TYPE_STRING: LENGTH,
    FieldDescriptor.TYPE_BYTES: LENGTH,
    FieldDescriptor.TYPE_MESSAGE: LENGTH,
    FieldDescriptor.TYPE_GROUP: GROUP,
}


def wire_type_of(field: FieldDescriptor) -> int:
    """Return the wire type of a value by itself, not packed."""
    return _WIRE_TYPES.get(field.type, VARINT)


def tag_of(field: FieldDescriptor) -> int:
    """Return the tag of a value by itself."""
    return int(field.number << 3 | wire_type_of(field))


def packed_tag_of(field: FieldDescriptor) -> int | None:
    """Return the tag of packed values, None if the field's values cannot be packed."""
    if not field.is_repeated or wire_type_of(field) in (LENGTH, GROUP):
        return None
    return int(field.number << 3 | LENGTH)
