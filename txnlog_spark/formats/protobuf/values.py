"""Spark values of fields that are not messages, as Protobuf writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from pyspark.sql import types as spark

from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.varints import pack_varints, zigzag
from txnlog_spark.formats.columns import column_at, stretches
from txnlog_spark.formats.errors import ProtobufSchemaError, UnencodableMessage
from txnlog_spark.formats.protobuf.types import LENGTH, TYPE_NAMES, leaf_type, wire_type_of

Flags = npt.NDArray[np.bool_]

_FIXED: dict[int, np.dtype[Any]] = {
    FieldDescriptor.TYPE_FLOAT: np.dtype("<f4"),
    FieldDescriptor.TYPE_DOUBLE: np.dtype("<f8"),
    FieldDescriptor.TYPE_FIXED32: np.dtype("<i4"),
    FieldDescriptor.TYPE_SFIXED32: np.dtype("<i4"),
    FieldDescriptor.TYPE_FIXED64: np.dtype("<i8"),
    FieldDescriptor.TYPE_SFIXED64: np.dtype("<i8"),
}
_LOWER_32 = np.uint64(0xFFFFFFFF)


def unfit(path: str, type_: spark.DataType, what: str) -> ProtobufSchemaError:
    """Return the error about a column whose type the field does not have."""
    return ProtobufSchemaError(
        f"{column_at(path)} of type {type_.simpleString()} cannot be written as Protobuf {what}"
    )


# Binary columns -------------------------------------------------------------------------------


def tagged(tag: bytes, values: npt.NDArray[np.uint64], present: Flags | None = None) -> pa.Array:
    """Return the tag and a varint in each row where it is present; the tag may be empty."""
    rows = len(values)
    data, sizes = pack_varints(
        [*tag, values if present is None else values[present]],
        rows if present is None else int(np.count_nonzero(present)),
    )
    return stretches(data, _spread_sizes(sizes, present, rows))


def tagged_fixed(tag: bytes, values: npt.NDArray[Any], present: Flags | None) -> pa.Array:
    """Return the tag and a number of a fixed width, where present; the tag may be empty."""
    rows, kept = len(values), values if present is None else values[present]
    matrix = np.empty((len(kept), len(tag) + values.itemsize), np.uint8)
    matrix[:, : len(tag)] = np.frombuffer(tag, np.uint8)
    matrix[:, len(tag) :] = (
        np.ascontiguousarray(kept).view(np.uint8).reshape(len(kept), values.itemsize)
    )
    sizes = np.full(len(kept), matrix.shape[1], np.int64)
    return stretches(matrix.reshape(-1), _spread_sizes(sizes, present, rows))


def _spread_sizes(
    sizes: npt.NDArray[np.int64], present: Flags | None, rows: int
) -> npt.NDArray[np.int64]:
    if present is None:
        return sizes
    made = np.zeros(rows, np.int64)
    made[present] = sizes
    return made


def sized(tag: bytes, values: pa.Array, present: Flags | None = None) -> list[pa.Array]:
    """Return values without null behind the tag and their length, where they are present."""
    lengths = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.uint64)
    return [tagged(tag, lengths, present), values]


# Fields ---------------------------------------------------------------------------------------


class FieldWriter:
    """Writes arrays of a Spark type as values of a field."""

    def __init__(self, field: FieldDescriptor, type_: spark.DataType, path: str) -> None:
        if not _fits(field, type_):
            raise unfit(path, type_, TYPE_NAMES[field.type])
        self.field, self.path = field, path
        # Spark hands over an array of bytes, which Java never takes for the default.
        self._drops_empty = field.type == FieldDescriptor.TYPE_STRING
        self.is_bytes = wire_type_of(field) == LENGTH
        self.fixed = _FIXED.get(field.type)
        self._numbers = _enum(field, path) if field.enum_type is not None else _numbers

    def single(self, tag: bytes, array: pa.Array) -> list[pa.Array]:
        """Write a value in each row; null is absent, and an error in a required field."""
        present = None if not array.null_count else _validity(array)
        if present is not None and self.field.is_required:
            raise UnencodableMessage(f"{column_at(self.path)} is null, and its field is required")
        if self.is_bytes:
            return self._single_bytes(tag, array, present)
        values = self.wire(array if present is None else array.drop_null())
        if present is not None:
            dense = np.zeros(len(array), values.dtype)
            dense[present] = values
            values = dense
        if not self.field.has_presence:
            bits = values.view(f"u{values.itemsize}")  # minus zero is not the default
            present = bits != 0 if present is None else present & (bits != 0)
        return [self._tagged(tag, values, present)]

    def _single_bytes(self, tag: bytes, array: pa.Array, present: Flags | None) -> list[pa.Array]:
        values = array.cast(pa.binary())
        if present is not None:
            values = values.fill_null(b"")
        if self._drops_empty and not self.field.has_presence:
            some = pc.binary_length(values).to_numpy(zero_copy_only=False) > 0
            present = some if present is None else present & some
        return sized(tag, values, present)

    def every(self, tag: bytes, array: pa.Array) -> list[pa.Array]:
        """Write a value in each row, also if it is the default; the tag may be empty."""
        if self.is_bytes:
            return sized(tag, array.cast(pa.binary()))
        return [self._tagged(tag, self.wire(array), None)]

    def wire(self, array: pa.Array) -> npt.NDArray[Any]:
        """Return the numbers as they are written: of a fixed width, or the 64 bits of varints."""
        numbers = self._numbers(array)
        if self.fixed is not None:
            return numbers.astype(self.fixed)
        if self.field.type in (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64):
            return zigzag(numbers)
        bits = numbers.astype(np.int64, copy=False).view(np.uint64)
        return bits & _LOWER_32 if self.field.type == FieldDescriptor.TYPE_UINT32 else bits

    def _tagged(self, tag: bytes, values: npt.NDArray[Any], present: Flags | None) -> pa.Array:
        if self.fixed is not None:
            return tagged_fixed(tag, values, present)
        return tagged(tag, values, present)


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
        at = pc.index_in(array.cast(names.type), value_set=names)
        if at.null_count:
            unknown = array.filter(at.is_null())[0].as_py()
            raise UnencodableMessage(
                f"{column_at(path)} has the value {unknown!r}, which is not in the enum "
                f"{field.enum_type.full_name}"
            )
        found: npt.NDArray[np.int32] = numbers[at.to_numpy()]
        return found

    return numbers_of
