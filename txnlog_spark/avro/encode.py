"""Columns of Spark values to columns of Avro values, whole arrays at a time.

Avro's binary encoding of a record is that of its fields one after the other, so a column is encoded
field by field into binary columns, which Arrow joins row by row. No Python runs per row. Which
Spark type goes with which Avro type is Spark's rule (AvroSerializer), and the bytes are Spark's too
but for the order of a map's entries.

`encoder` decides once what depends on types; what it returns takes arrays without null.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnlog_spark.avro.errors import AvroSchemaError, UnencodableValue
from txnlog_spark.avro.raw import raw_members
from txnlog_spark.avro.schema import Avro, parse_avro
from txnlog_spark.avro.types import field_named
from txnlog_spark.codec.binary import binary_parts, decimal_rows, list_offsets
from txnlog_spark.codec.decoded import spread

Encode = Callable[[pa.Array], pa.Array]

_NO_BYTES = pa.scalar(b"", pa.binary())
_SAME_KIND: dict[str, Callable[[pa.DataType], bool]] = {
    "boolean": pa.types.is_boolean,
    "float": pa.types.is_float32,
    "double": pa.types.is_float64,
}


def encoder(node: Avro, type_: pa.DataType, path: str = "") -> Encode:
    """Encodes arrays of this Arrow type, without null, as `node`, which is not a union with null.

    `path` names the column in errors, "" the whole value. AvroSchemaError where they do not fit.
    """
    if node.kind == "union":
        return _union(node, type_, path)
    made = _nested(node, type_, path) or _leaf(node, type_, path)
    if made is None:
        raise AvroSchemaError(
            f"{_place(path)} of type {type_} cannot be written as Avro {_shown(node)}"
        )
    return made


def _shown(node: Avro) -> str:
    if not node.logical:
        return node.kind
    digits = f"({node.precision}, {node.scale})" if node.logical == "decimal" else ""
    return f"logical type {node.logical}{digits} on {node.kind}"


def nullable_encoder(node: Avro, type_: pa.DataType, path: str = "") -> Encode:
    """The same for arrays that may have null, which is an error where the schema has none."""
    inner = _of_null if pa.types.is_null(type_) else encoder(_non_null(node), type_, path)
    prefix = _branch_prefix(node)
    null = next((at for at, each in enumerate(node.branches) if each.kind == "null"), None)

    def encode(array: pa.Array) -> pa.Array:
        if not array.null_count:
            return prefix(inner(array))
        if node.kind == "null":
            return _repeat(b"", len(array))
        if null is None:
            raise UnencodableValue(f"{_place(path)} is null, which its Avro type does not have")
        dense = prefix(inner(array.drop_null()))
        return spread(dense, array.is_valid()).fill_null(_varint_of(null))

    return encode


@lru_cache(maxsize=256)
def schema_encoder(schema: str, type_: pa.DataType) -> Encode:
    """`nullable_encoder` of a schema's text, made once in a process."""
    return nullable_encoder(parse_avro(schema), type_)


def _place(path: str) -> str:
    return f"the column {path}" if path else "the value"


def _non_null(node: Avro) -> Avro:
    """The one type of a union of it and null; a union of several as it is."""
    return node.non_null[0] if len(node.non_null) == 1 else node


def _branch_prefix(node: Avro) -> Encode:
    """Puts the branch's number first, for a union of one type and null; those of several do it."""
    if node.kind != "union" or len(node.non_null) != 1:
        return lambda encoded: encoded
    number = pa.scalar(_varint_of(node.branches.index(node.non_null[0])), pa.binary())
    return lambda encoded: join(number, encoded)


def _of_null(array: pa.Array) -> pa.Array:
    return _repeat(b"", len(array))


def join(*parts: Any) -> pa.Array:
    """The bytes of each row's parts one after the other."""
    return pc.binary_join_element_wise(*parts, _NO_BYTES)


# Nested types ---------------------------------------------------------------------------------


def _nested(node: Avro, type_: pa.DataType, path: str) -> Encode | None:
    if node.kind == "record" and pa.types.is_struct(type_):
        return _record(node, type_, path)
    if node.kind == "array" and pa.types.is_list(type_):
        return _array(nullable_encoder(node.items, type_.value_type, _below(path, "element")))
    if node.kind == "map" and pa.types.is_map(type_) and pa.types.is_string(type_.key_type):
        return _map(nullable_encoder(node.items, type_.item_type, _below(path, "value")))
    return None


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _record(node: Avro, type_: pa.DataType, path: str) -> Encode:
    columns: dict[str, tuple[int, Encode]] = {}
    for at, each in enumerate(type_):
        field = field_named(node, each.name)
        below = _below(path, each.name)
        if field is None or field.name in columns:
            raise AvroSchemaError(f"{_place(below)} has no field in the Avro record {node.name}")
        columns[field.name] = at, nullable_encoder(field.type, each.type, below)
    for field in node.fields:
        if field.name not in columns and not field.type.nullable:
            raise AvroSchemaError(
                f"the field {field.name} of the Avro record {node.name} has no column, and cannot "
                "be null"
            )
    nulls = {f.name: nullable_encoder(f.type, pa.null()) for f in node.fields if f.type.nullable}

    def encode(array: pa.Array) -> pa.Array:
        parts = []
        for field in node.fields:
            if field.name in columns:
                at, inner = columns[field.name]
                parts.append(inner(array.field(at)))
            else:
                parts.append(nulls[field.name](pa.nulls(len(array))))
        return join(*parts) if parts else _repeat(b"", len(array))

    return encode


def _blocks(encoded: pa.Array, offsets: np.ndarray[Any, Any]) -> pa.Array:
    """Lists as one block of items each, and the empty block that ends them."""
    bounds, data = binary_parts(encoded)
    at = bounds[offsets].astype(np.int32)
    buffers = [None, pa.py_buffer(at.tobytes()), pa.py_buffer(data)]
    items = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    counts = np.diff(offsets)
    full = join(varints(counts), items, pa.scalar(b"\0", pa.binary()))
    return pc.if_else(pa.array(counts == 0), pa.scalar(b"\0", pa.binary()), full)


def _offsets(array: pa.Array) -> tuple[np.ndarray[Any, Any], int]:
    offsets = list_offsets(array)
    return offsets - offsets[0], int(offsets[0])


def _array(items: Encode) -> Encode:
    def encode(array: pa.Array) -> pa.Array:
        offsets, first = _offsets(array)
        return _blocks(items(array.values.slice(first, int(offsets[-1]))), offsets)

    return encode


def _map(values: Encode) -> Encode:
    def encode(array: pa.Array) -> pa.Array:
        offsets, first = _offsets(array)
        keys = _sized(array.keys.slice(first, int(offsets[-1])))
        items = values(array.items.slice(first, int(offsets[-1])))
        return _blocks(join(keys, items), offsets)

    return encode


def _union(node: Avro, type_: pa.DataType, path: str) -> Encode:
    """Of int and long, of float and double, or of several types, which is a struct of members."""
    if node.widened:
        of_widened = next(each for each in node.branches if each.kind == node.widened)
        number = pa.scalar(_varint_of(node.branches.index(of_widened)), pa.binary())
        inner = encoder(Avro(node.widened), type_, path)
        return lambda array: join(number, inner(array))
    members = raw_members(node)
    names = [f"member{at}" for at in range(len(members))]
    if not pa.types.is_struct(type_) or [each.name for each in type_] != names:
        raise AvroSchemaError(
            f"{_place(path)} of type {type_} cannot be written as an Avro union of several types; "
            f"that takes a struct of {', '.join(names)}"
        )
    branches = [
        _member(node.branches.index(branch), branch, type_.field(at).type, path)
        for at, branch in enumerate(members)
    ]
    null = next((at for at, each in enumerate(node.branches) if each.kind == "null"), None)

    def encode(array: pa.Array) -> pa.Array:
        made = pc.coalesce(*(inner(array.field(at)) for at, inner in enumerate(branches)))
        if null is not None:
            return made.fill_null(_varint_of(null))
        if made.null_count:
            raise UnencodableValue(f"{_place(path)} has null in all members of an Avro union")
        return made

    return encode


def _member(number: int, branch: Avro, type_: pa.DataType, path: str) -> Encode:
    inner, prefix = encoder(branch, type_, path), pa.scalar(_varint_of(number), pa.binary())

    def encode(array: pa.Array) -> pa.Array:
        if not array.null_count:
            return join(prefix, inner(array))
        return spread(join(prefix, inner(array.drop_null())), array.is_valid())

    return encode


# Values ---------------------------------------------------------------------------------------


def _leaf(node: Avro, type_: pa.DataType, path: str) -> Encode | None:
    if node.kind in ("int", "long"):
        return _whole(node, type_)
    if node.kind in _SAME_KIND:
        return _fixed_width if _SAME_KIND[node.kind](type_) else None
    if pa.types.is_decimal128(type_):
        fits = node.logical == "decimal" and (node.precision, node.scale) == (
            type_.precision,
            type_.scale,
        )
        return _decimal(node) if fits else None
    if node.kind == "enum" and pa.types.is_string(type_):
        return _enum(node, path)
    if node.kind == "fixed" and pa.types.is_binary(type_):
        return _fixed(node, path)
    if (node.kind == "string" and pa.types.is_string(type_)) or (
        node.kind == "bytes" and pa.types.is_binary(type_)
    ):
        return _sized
    return None


def _whole(node: Avro, type_: pa.DataType) -> Encode | None:
    """Integers, dates, times and timestamps. A long without logical type has milliseconds."""
    small = pa.types.is_integer(type_) and type_.bit_width < 64
    if node.kind == "int":
        if small or pa.types.is_date32(type_):
            return lambda array: varints(array.cast(pa.int32()).to_numpy())
        return None
    if pa.types.is_int64(type_):
        return lambda array: varints(array.to_numpy())
    if pa.types.is_time64(type_) and node.logical == "time-micros":
        return lambda array: varints(array.view(pa.int64()).to_numpy() // 1000)
    if not pa.types.is_timestamp(type_):
        return None
    prefix = "timestamp" if type_.tz else "local-timestamp"
    if node.logical == f"{prefix}-micros":
        return lambda array: varints(array.view(pa.int64()).to_numpy())
    if node.logical in ("", f"{prefix}-millis"):
        return lambda array: varints(array.view(pa.int64()).to_numpy() // 1000)
    return None


def varints(values: np.ndarray[Any, Any]) -> pa.Array:
    """Avro's variable-length zig-zag encoding of integers."""
    whole = values.astype(np.int64)
    zigzag = ((whole << 1) ^ (whole >> 63)).view(np.uint64)
    sizes = np.ones(len(whole), np.int32)
    for bits in range(7, 64, 7):
        longer = zigzag >= np.uint64(1 << bits)
        if not longer.any():
            break
        sizes += longer
    offsets = np.zeros(len(whole) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    for place in range(int(sizes.max(initial=0))):
        has = sizes > place
        seven = (zigzag[has] >> np.uint64(7 * place)).astype(np.uint8) & 0x7F
        data[offsets[:-1][has] + place] = seven | np.where(sizes[has] > place + 1, 0x80, 0)
    return _binary(offsets, data)


def _varint_of(value: int) -> bytes:
    encoded: bytes = varints(np.array([value]))[0].as_py()
    return encoded


def _binary(offsets: np.ndarray[Any, Any], data: np.ndarray[Any, Any]) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _even(data: np.ndarray[Any, Any], width: int) -> pa.Array:
    rows = data.size // width if width else 0
    return _binary(np.arange(rows + 1, dtype=np.int32) * width, data)


def _repeat(value: bytes, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.binary()), rows)


def _fixed_width(array: pa.Array) -> pa.Array:
    numbers = array.to_numpy(zero_copy_only=False)
    return _even(numbers.view(np.uint8).reshape(-1), numbers.itemsize)


def _sized(array: pa.Array) -> pa.Array:
    """Bytes or text after their length."""
    bytes_ = array.cast(pa.binary())
    return join(varints(pc.binary_length(bytes_).to_numpy()), bytes_)


def _fixed(node: Avro, path: str) -> Encode:
    def encode(array: pa.Array) -> pa.Array:
        sizes = pc.binary_length(array).to_numpy()
        wrong = sizes[sizes != node.size]
        if wrong.size:
            raise UnencodableValue(
                f"{_place(path)} has a value of {wrong[0]} bytes, and the Avro fixed {node.name} "
                f"has {node.size}"
            )
        return array

    return encode


def _enum(node: Avro, path: str) -> Encode:
    symbols = pa.array(node.symbols, pa.string())

    def encode(array: pa.Array) -> pa.Array:
        at = pc.index_in(array, value_set=symbols)
        if at.null_count:
            unknown = array.filter(at.is_null())[0].as_py()
            raise UnencodableValue(
                f"{_place(path)} has the value {unknown!r}, which is not a symbol of the Avro enum "
                f"{node.name}"
            )
        return varints(at.to_numpy())

    return encode


def _decimal(node: Avro) -> Encode:
    """Two's complement, big-endian: of the size of the fixed, or of as few bytes as it takes."""

    def encode(array: pa.Array) -> pa.Array:
        big = decimal_rows(array)[:, ::-1]
        sign = np.where(big[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
        if node.kind == "fixed":
            wide = np.concatenate([np.repeat(sign, max(node.size - 16, 0), axis=1), big], axis=1)
            last = np.ascontiguousarray(wide[:, wide.shape[1] - node.size :])
            return _even(last.reshape(-1), node.size)
        # A leading byte can go where it, and the first bit after it, only repeat the sign.
        repeats = (big[:, :-1] == sign) & (((big[:, 1:] ^ sign) & 0x80) == 0)
        sizes = 16 - np.cumprod(repeats, axis=1).sum(axis=1)
        kept = np.arange(16)[None, :] >= (16 - sizes)[:, None]
        offsets = np.zeros(len(array) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        return _sized(_binary(offsets, big[kept]))

    return encode
