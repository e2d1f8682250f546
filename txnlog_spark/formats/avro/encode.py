"""Columns of Spark values to columns of Avro values, whole arrays at a time.

Avro's binary encoding of a record is that of its fields one after the other, so a column is encoded
field by field into binary columns, which Arrow joins row by row. No Python runs per row. Types are
matched as Spark does (AvroSerializer), and the bytes are Spark's but for the order of a map's
entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnlog_kafka.wire.varint import encode_signed
from txnlog_spark.codec.binary import decimal_rows, gathered, list_offsets
from txnlog_spark.formats.avro.raw import raw_members
from txnlog_spark.formats.avro.schema import Avro, parse_avro
from txnlog_spark.formats.avro.types import field_named
from txnlog_spark.formats.columns import (
    below,
    column_at,
    indexes,
    join,
    repeated,
    shown,
    spread_bytes,
    stretches,
    varints,
)
from txnlog_spark.formats.decoded import Encode, on_present
from txnlog_spark.formats.errors import AvroSchemaError, UnencodableValue

_SAME_KIND: dict[str, Callable[[pa.DataType], bool]] = {
    "boolean": pa.types.is_boolean,
    "float": pa.types.is_float32,
    "double": pa.types.is_float64,
}


def encoder(node: Avro, type_: pa.DataType, path: str = "") -> Encode:
    """Encode arrays of this Arrow type, without null, as `node`, which is not a union with null.

    `path` names the column in errors, "" the whole value. AvroSchemaError if they do not fit.
    """
    if node.kind == "union":
        return _union(node, type_, path)
    made = _nested(node, type_, path) or _leaf(node, type_, path)
    if made is None:
        raise AvroSchemaError(
            f"{column_at(path)} of type {type_} cannot be written as Avro {node.described}"
        )
    return made


def avro_encoder(node: Avro, type_: pa.DataType, path: str = "") -> Encode:
    """Encode arrays that may have null; null is an error if the schema does not allow it."""
    # A union of null and one type is encoded as that type, behind the number of its branch.
    only = node.non_null[0] if len(node.non_null) == 1 else None
    inner = _of_null if pa.types.is_null(type_) else encoder(only or node, type_, path)
    if only is not None:
        inner = _branch(node, only, inner)
    null = node.null_branch

    def encode(array: pa.Array) -> pa.Array:
        if not array.null_count:
            return inner(array)
        if node.kind == "null":
            return repeated(b"", len(array))
        if null is None:
            raise UnencodableValue(f"{column_at(path)} is null, which its Avro type does not have")
        return spread_bytes(inner(array.drop_null()), array.is_valid(), encode_signed(null))

    return encode


def schema_encoder(schema: str, type_: pa.DataType) -> Encode:
    """Return `avro_encoder` of a schema's text."""
    return avro_encoder(parse_avro(schema), type_)


def _branch(union: Avro, branch: Avro, inner: Encode) -> Encode:
    """Return the encoder of one branch of a union: the number of the branch, then the value."""
    number = encode_signed(union.branches.index(branch))
    return lambda array: join([number, inner(array)], len(array))


def _of_null(array: pa.Array) -> pa.Array:
    return repeated(b"", len(array))


# Nested types ---------------------------------------------------------------------------------


def _nested(node: Avro, type_: pa.DataType, path: str) -> Encode | None:
    if node.kind == "record" and pa.types.is_struct(type_):
        return _record(node, type_, path)
    if node.kind == "array" and pa.types.is_list(type_):
        items = avro_encoder(node.items, type_.value_type, below(path, "element"))
        return lambda array: _blocks(array, items(shown(array, array.values)))
    if node.kind == "map" and pa.types.is_map(type_) and pa.types.is_string(type_.key_type):
        return _map(avro_encoder(node.items, type_.item_type, below(path, "value")))
    return None


def _record(node: Avro, type_: pa.DataType, path: str) -> Encode:
    columns: dict[str, tuple[int, Encode]] = {}
    for at, each in enumerate(type_):
        field = field_named(node, each.name)
        inner = below(path, each.name)
        if field is None or field.name in columns:
            raise AvroSchemaError(f"{column_at(inner)} has no field in the Avro record {node.name}")
        columns[field.name] = at, avro_encoder(field.type, each.type, inner)
    for field in node.fields:
        if field.name not in columns and not field.type.nullable:
            raise AvroSchemaError(
                f"the field {field.name} of the Avro record {node.name} has no column, and cannot "
                "be null"
            )
    nulls = {f.name: avro_encoder(f.type, pa.null()) for f in node.fields if f.type.nullable}

    def encode(array: pa.Array) -> pa.Array:
        parts = []
        for field in node.fields:
            if field.name in columns:
                at, inner = columns[field.name]
                parts.append(inner(array.field(at)))
            else:
                parts.append(nulls[field.name](pa.nulls(len(array))))
        return join(parts, len(array))

    return encode


def _blocks(array: pa.Array, encoded: pa.Array) -> pa.Array:
    """Write each list as one block of items and the empty block that ends it."""
    counts = np.diff(list_offsets(array))
    full = join([varints(counts), gathered(encoded, counts), b"\0"], len(counts))
    return pc.if_else(pa.array(counts == 0), pa.scalar(b"\0", pa.binary()), full)


def _map(values: Encode) -> Encode:
    def encode(array: pa.Array) -> pa.Array:
        keys, items = _sized(shown(array, array.keys)), values(shown(array, array.items))
        return _blocks(array, join([keys, items], len(keys)))

    return encode


def _union(node: Avro, type_: pa.DataType, path: str) -> Encode:
    """Encode a union: of int and long, of float and double, or of members in a struct."""
    if node.widened:
        of_widened = next(each for each in node.branches if each.kind == node.widened)
        return _branch(node, of_widened, encoder(Avro(node.widened), type_, path))
    members = raw_members(node)
    names = [f"member{at}" for at in range(len(members))]
    if not pa.types.is_struct(type_) or [each.name for each in type_] != names:
        raise AvroSchemaError(
            f"{column_at(path)} of type {type_} cannot be written as an Avro union of several "
            f"types; that takes a struct of {', '.join(names)}"
        )
    branches = [
        on_present(_branch(node, branch, encoder(branch, type_.field(at).type, path)))
        for at, branch in enumerate(members)
    ]
    null = node.null_branch

    def encode(array: pa.Array) -> pa.Array:
        made = pc.coalesce(*(inner(array.field(at)) for at, inner in enumerate(branches)))
        if null is not None:
            return made.fill_null(encode_signed(null))
        if made.null_count:
            raise UnencodableValue(f"{column_at(path)} has null in all members of an Avro union")
        return made

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
    """Encode integers, dates and times. A timestamp in a plain long is in milliseconds."""
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


def _even(data: np.ndarray[Any, Any], width: int) -> pa.Array:
    return stretches(data, np.full(data.size // width if width else 0, width))


def _fixed_width(array: pa.Array) -> pa.Array:
    numbers = array.to_numpy(zero_copy_only=False)
    return _even(numbers.view(np.uint8).reshape(-1), numbers.itemsize)


def _sized(array: pa.Array) -> pa.Array:
    """Write bytes or text behind their length."""
    bytes_ = array.cast(pa.binary())
    return join([varints(pc.binary_length(bytes_).to_numpy()), bytes_], len(array))


def _fixed(node: Avro, path: str) -> Encode:
    def encode(array: pa.Array) -> pa.Array:
        sizes = pc.binary_length(array).to_numpy()
        wrong = sizes[sizes != node.size]
        if wrong.size:
            raise UnencodableValue(
                f"{column_at(path)} has a value of {wrong[0]} bytes, and the Avro fixed "
                f"{node.name} has {node.size}"
            )
        return array

    return encode


def _enum(node: Avro, path: str) -> Encode:
    symbols = pa.array(node.symbols, pa.string())

    place = f"a symbol of the Avro enum {node.name}"
    return lambda array: varints(indexes(array, symbols, path, UnencodableValue, place))


def _decimal(node: Avro) -> Encode:
    """Write two's complement, big-endian: in the size of the fixed, or in the fewest bytes."""

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
        return _sized(stretches(big[kept], sizes))

    return encode
