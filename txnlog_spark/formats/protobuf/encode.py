"""Columns of Spark values to columns of Protobuf messages, whole arrays at a time.

A message is its fields one after the other, so each field is encoded into binary columns, empty
where it is absent, and Arrow joins them row by row. No Python runs per row. Types are matched, and
fields left out, as Spark does (ProtobufSerializer, on Java's DynamicMessage). Fields are in the
order of their numbers.

`protobuf_encoder` decides once what depends on types.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyspark.sql import types as spark

from txnlog_kafka.wire.varint import encode_unsigned
from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.binary import gathered, list_offsets
from txnlog_spark.codec.varints import pack_varints, zigzag
from txnlog_spark.formats.columns import (
    Flags,
    below,
    column_at,
    indexes,
    join,
    shown,
    spread_bytes,
    stretches,
)
from txnlog_spark.formats.decoded import Encode
from txnlog_spark.formats.errors import ProtobufSchemaError, UnencodableMessage
from txnlog_spark.formats.protobuf.types import (
    DTYPES,
    FIXED32,
    FIXED64,
    GROUP,
    LENGTH,
    TYPE_NAMES,
    TYPES_OF_SECONDS,
    is_map,
    leaf_type,
    message_descriptor,
    of_seconds,
    packed_tag_of,
    tag_of,
    wire_type_of,
)

Parts = Callable[[pa.Array], list[pa.Array]]
"""Makes of a column the binary columns of its field, empty where the field is absent."""


def protobuf_encoder(descriptor: Descriptor, type_: spark.DataType) -> Encode:
    """Encode struct arrays of this type, without null at the top, as such messages.

    Fields are found by name, in any case. ProtobufSchemaError if a column has no field or another
    type, or a required field has no column. The encoder raises UnencodableMessage for a value.
    """
    return _struct(descriptor, type_, "")


def message_encoder(descriptors: bytes, message: str, type_: spark.DataType) -> Encode:
    """Return `protobuf_encoder` of the message of this name in a descriptor set."""
    return protobuf_encoder(message_descriptor(descriptors, message), type_)


def _unfit(path: str, type_: spark.DataType, what: str) -> ProtobufSchemaError:
    """Return the error about a column whose type the field does not have."""
    return ProtobufSchemaError(
        f"{column_at(path)} of type {type_.simpleString()} cannot be written as Protobuf {what}"
    )


# Messages -------------------------------------------------------------------------------------


def _struct(descriptor: Descriptor, type_: spark.DataType, path: str) -> Encode:
    if not isinstance(type_, spark.StructType):
        raise _unfit(path, type_, f"message {descriptor.full_name}")
    columns: dict[int, tuple[FieldDescriptor, int, Parts]] = {}
    for at, each in enumerate(type_.fields):
        inner = below(path, each.name)
        field = _field_named(descriptor, each.name, inner)
        if field.number in columns:
            raise ProtobufSchemaError(
                f"{column_at(inner)} is a second one of the field {field.name}"
            )
        columns[field.number] = field, at, _field(field, each.dataType, inner)
    for field in descriptor.fields:
        if field.is_required and field.number not in columns:
            raise ProtobufSchemaError(
                f"the field {below(path, field.name)} of the message {descriptor.full_name} is "
                "required and has no column"
            )
    in_order = [columns[number] for number in sorted(columns)]
    oneofs = _oneofs([(field, at) for field, at, _ in in_order])

    def encode(array: pa.Array) -> pa.Array:
        children = [array.field(at) for at in range(len(type_.fields))]
        for oneof, members in oneofs.items():
            _check_one_member(children, path, oneof, members)
        parts = [part for _, at, parts in in_order for part in parts(children[at])]
        return join(parts, len(array))

    return encode


def _field_named(descriptor: Descriptor, name: str, path: str) -> FieldDescriptor:
    found = [each for each in descriptor.fields if each.name.lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(each.name for each in found)
        raise ProtobufSchemaError(
            f"{column_at(path)} has several fields in the message {descriptor.full_name}: {names}"
        )
    names = ", ".join(each.name for each in descriptor.fields) or "none"
    raise ProtobufSchemaError(
        f"{column_at(path)} has no field in the message {descriptor.full_name}; its fields: {names}"
    )


def _oneofs(fields: list[tuple[FieldDescriptor, int]]) -> dict[str, list[int]]:
    """Return the columns of each oneof with several, by its name."""
    groups: dict[str, list[int]] = {}
    for field, at in fields:
        if field.containing_oneof is not None:
            groups.setdefault(field.containing_oneof.name, []).append(at)
    return {name: group for name, group in groups.items() if len(group) > 1}


def _check_one_member(children: list[pa.Array], path: str, oneof: str, members: list[int]) -> None:
    counts = np.sum([_validity(children[at]) for at in members], axis=0)
    if (counts > 1).any():
        raise UnencodableMessage(
            f"{column_at(path)} has values in several members of the oneof {oneof}"
        )


def _field(field: FieldDescriptor, type_: spark.DataType, path: str) -> Parts:
    if is_map(field):
        return _map(field, type_, path)
    if field.is_repeated:
        return _repeated(field, type_, path)
    if field.message_type is not None:
        return _message(field, type_, path)
    return _leaf(field, type_, path)


def _leaf(field: FieldDescriptor, type_: spark.DataType, path: str) -> Parts:
    leaf, tag = _Field(field, type_, path), encode_unsigned(tag_of(field))
    return lambda array: leaf.single(tag, array)


def _message(field: FieldDescriptor, type_: spark.DataType, path: str) -> Parts:
    encode = _messages(field, type_, path)

    def parts(array: pa.Array) -> list[pa.Array]:
        if not array.null_count:
            return encode(array)
        if field.is_required:
            raise UnencodableMessage(f"{column_at(path)} is null, and its field is required")
        dense = join(encode(array.drop_null()), len(array) - array.null_count)
        return [spread_bytes(dense, array.is_valid())]

    return parts


def _messages(field: FieldDescriptor, type_: spark.DataType, path: str) -> Parts:
    """Write tag and message of each row of an array without null."""
    make = _time if of_seconds(field.message_type) else _struct
    encode = make(field.message_type, type_, path)
    tag = encode_unsigned(tag_of(field))
    if wire_type_of(field) == GROUP:
        raise _unfit(path, type_, "group")
    return lambda array: _sized(tag, encode(array))


def _time(descriptor: Descriptor, type_: spark.DataType, path: str) -> Encode:
    """Write milliseconds, as Spark does, with seconds and nanoseconds of the same sign."""
    if not isinstance(type_, type(TYPES_OF_SECONDS[descriptor.name])):
        raise _unfit(path, type_, f"message {descriptor.full_name}")
    seconds_field, nanos_field = descriptor.fields
    seconds = _leaf(seconds_field, spark.LongType(), path)
    nanos = _leaf(nanos_field, spark.IntegerType(), path)

    def encode(array: pa.Array) -> pa.Array:
        micros = array.cast(_in_micros(array.type)).view(pa.int64()).to_numpy()
        millis = micros // 1000
        whole = np.sign(millis) * (np.abs(millis) // 1000)
        rest = ((millis - whole * 1000) * 1_000_000).astype(np.int32)
        return join([*seconds(pa.array(whole)), *nanos(pa.array(rest))], len(array))

    return encode


def _in_micros(type_: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", type_.tz) if pa.types.is_timestamp(type_) else pa.duration("us")


# Lists and maps -------------------------------------------------------------------------------


def _counts(array: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the list or map array without null, and the sizes of all rows, 0 for null."""
    counts = np.zeros(len(array), np.int64)
    valid = _validity(array)
    if array.null_count:
        array = array.drop_null()
    counts[valid] = np.diff(list_offsets(array))
    return array, counts


def _repeated(field: FieldDescriptor, type_: spark.DataType, path: str) -> Parts:
    if not isinstance(type_, spark.ArrayType):
        raise _unfit(path, type_, f"repeated {TYPE_NAMES[field.type]}")
    inner, packs = below(path, "element"), packed_tag_of(field) is not None and field.is_packed
    every = _elements(field, type_.elementType, inner, packs)
    packed_tag = encode_unsigned(field.number << 3 | LENGTH)

    def parts(array: pa.Array) -> list[pa.Array]:
        array, counts = _counts(array)
        values = shown(array, array.values)
        rows = gathered(join(every(values), len(values)), counts)
        return _sized(packed_tag, rows, counts > 0) if packs else [rows]

    return parts


def _map(field: FieldDescriptor, type_: spark.DataType, path: str) -> Parts:
    """Write entries in the order of the map, each with key and value, as Java does."""
    if not isinstance(type_, spark.MapType):
        raise _unfit(path, type_, "map")
    key_field, value_field = field.message_type.fields
    tag = encode_unsigned(tag_of(field))
    keys_of = _elements(key_field, type_.keyType, below(path, "key"))
    values_of = _elements(value_field, type_.valueType, below(path, "value"))

    def parts(array: pa.Array) -> list[pa.Array]:
        array, counts = _counts(array)
        keys, values = shown(array, array.keys), shown(array, array.items)
        entries = join([*keys_of(keys), *values_of(values)], len(keys))
        return [gathered(join(_sized(tag, entries), len(keys)), counts)]

    return parts


def _elements(
    field: FieldDescriptor, type_: spark.DataType, path: str, packs: bool = False
) -> Parts:
    """Write each element of an array, also a default; behind its tag if it is not packed."""
    if field.message_type is not None:
        every = _messages(field, type_, path)
    else:
        tag = b"" if packs else encode_unsigned(tag_of(field))
        every = partial(_Field(field, type_, path).every, tag)

    def parts(array: pa.Array) -> list[pa.Array]:
        if array.null_count:
            raise UnencodableMessage(
                f"{column_at(path)} is null, which no list or map of Protobuf can hold"
            )
        return every(array)

    return parts


# Values ---------------------------------------------------------------------------------------


def _tagged(tag: bytes, values: npt.NDArray[Any], present: Flags | None = None) -> pa.Array:
    """Return the tag and a number in each row where it is present; the tag may be empty.

    Unsigned numbers of 64 bits are written as varints, all others in their fixed width.
    """
    kept = values if present is None else values[present]
    if values.dtype == np.uint64:
        data, sizes = pack_varints([*tag, kept], len(kept))
    else:
        matrix = np.empty((len(kept), len(tag) + values.itemsize), np.uint8)
        matrix[:, : len(tag)] = np.frombuffer(tag, np.uint8)
        matrix[:, len(tag) :] = (
            np.ascontiguousarray(kept).view(np.uint8).reshape(len(kept), values.itemsize)
        )
        data, sizes = matrix.reshape(-1), np.full(len(kept), matrix.shape[1], np.int64)
    if present is not None:
        spread_sizes = np.zeros(len(values), np.int64)
        spread_sizes[present] = sizes
        sizes = spread_sizes
    return stretches(data, sizes)


def _sized(tag: bytes, values: pa.Array, present: Flags | None = None) -> list[pa.Array]:
    """Return values without null behind the tag and their length, where they are present."""
    lengths = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.uint64)
    return [_tagged(tag, lengths, present), values]


class _Field:
    """Writes arrays of a Spark type as values of a field."""

    def __init__(self, field: FieldDescriptor, type_: spark.DataType, path: str) -> None:
        if not _fits(field, type_):
            raise _unfit(path, type_, TYPE_NAMES[field.type])
        self._field, self._path = field, path
        # Spark hands over an array of bytes, which Java never takes for the default.
        self._drops_empty = field.type == FieldDescriptor.TYPE_STRING
        self._is_bytes = wire_type_of(field) == LENGTH
        is_fixed = wire_type_of(field) in (FIXED32, FIXED64)
        self._fixed = DTYPES[field.cpp_type] if is_fixed else None
        self._numbers = _enum(field, path) if field.enum_type is not None else _numbers

    def single(self, tag: bytes, array: pa.Array) -> list[pa.Array]:
        """Write a value in each row; null is absent, and an error in a required field."""
        present = None if not array.null_count else _validity(array)
        if present is not None and self._field.is_required:
            raise UnencodableMessage(f"{column_at(self._path)} is null, and its field is required")
        if self._is_bytes:
            return self._single_bytes(tag, array, present)
        values = self._wire(array if present is None else array.drop_null())
        if present is not None:
            dense = np.zeros(len(array), values.dtype)
            dense[present] = values
            values = dense
        if not self._field.has_presence:
            bits = values.view(f"u{values.itemsize}")  # minus zero is not the default
            present = bits != 0 if present is None else present & (bits != 0)
        return [_tagged(tag, values, present)]

    def _single_bytes(self, tag: bytes, array: pa.Array, present: Flags | None) -> list[pa.Array]:
        values = array.cast(pa.binary())
        if present is not None:
            values = values.fill_null(b"")
        if self._drops_empty and not self._field.has_presence:
            some = pc.binary_length(values).to_numpy(zero_copy_only=False) > 0
            present = some if present is None else present & some
        return _sized(tag, values, present)

    def every(self, tag: bytes, array: pa.Array) -> list[pa.Array]:
        """Write a value in each row, also if it is the default; the tag may be empty."""
        if self._is_bytes:
            return _sized(tag, array.cast(pa.binary()))
        return [_tagged(tag, self._wire(array))]

    def _wire(self, array: pa.Array) -> npt.NDArray[Any]:
        """Return the numbers as they are written: of a fixed width, or the 64 bits of varints."""
        numbers = self._numbers(array)
        if self._fixed is not None:
            return numbers.astype(self._fixed)
        if self._field.type in (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64):
            return zigzag(numbers)
        bits = numbers.astype(np.int64, copy=False).view(np.uint64)
        is_narrow = self._field.type == FieldDescriptor.TYPE_UINT32
        return bits & np.uint64(0xFFFFFFFF) if is_narrow else bits


def _validity(array: pa.Array) -> Flags:
    valid: Flags = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _fits(field: FieldDescriptor, type_: spark.DataType) -> bool:
    expected = type(leaf_type(field))
    narrower = (spark.ByteType, spark.ShortType) if expected is spark.IntegerType else ()
    is_unsigned = field.type == FieldDescriptor.TYPE_UINT32 and isinstance(type_, spark.LongType)
    return type(type_) in (expected, *narrower) or is_unsigned


def _numbers(array: pa.Array) -> npt.NDArray[Any]:
    made: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return made


def _enum(field: FieldDescriptor, path: str) -> Callable[[pa.Array], npt.NDArray[Any]]:
    values = list(field.enum_type.values)
    numbers = np.array([value.number for value in values], np.int32)
    names = pa.array([value.name for value in values], pa.string())

    def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
        place = f"in the enum {field.enum_type.full_name}"
        return numbers[indexes(array.cast(names.type), names, path, UnencodableMessage, place)]

    return numbers_of
