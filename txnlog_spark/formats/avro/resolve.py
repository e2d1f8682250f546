"""From raw Arrow arrays to Spark's: logical types, and the writer's schema read as the reader's.

Schema resolution is that of the Avro specification, on whole arrays: fields by name or alias,
defaults for what the writer did not have, int to long, float and double, branches of unions. The
writer's logical type says what its bytes mean, and of a plain type the reader's: units of times and
scales of decimals are converted, which the specification leaves open.
What depends on the schemas alone is decided once, in `resolver`; what depends on a value raises
MalformedAvro without saying which row: the caller looks for it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnlog_spark.codec.binary import binary_parts, validity
from txnlog_spark.formats.avro.raw import raw_default, raw_members, raw_type
from txnlog_spark.formats.avro.schema import NO_DEFAULT, Avro, AvroField
from txnlog_spark.formats.columns import below, field_at, structs
from txnlog_spark.formats.decoded import on_present
from txnlog_spark.formats.errors import AvroSchemaError

Convert = Callable[[pa.Array], pa.Array]

_PROMOTED = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}
_MEANINGS = {
    "date": ("date", 1),
    "time-millis": ("time", 1_000_000),
    "time-micros": ("time", 1000),
    "timestamp-millis": ("timestamp", 1000),
    "timestamp-micros": ("timestamp", 1),
    "local-timestamp-millis": ("local timestamp", 1000),
    "local-timestamp-micros": ("local timestamp", 1),
    "decimal": ("decimal", 1),
}
"""Meaning of a logical type, and units of Arrow's type in a unit of its own."""


class Unresolvable(Exception):
    """A value is valid for the writer, and the reader's schema cannot hold it."""


def resolver(writer: Avro, reader: Avro, type_: pa.DataType, path: str = "") -> Convert:
    """Convert raw arrays of the writer's schema to `type_`, Arrow's type of the reader's schema.

    The arrays have null only where the writer's schema has it: not below a null struct. `path`
    names the field in errors, "" the whole value. AvroSchemaError if the reader's schema cannot
    read the writer's.
    """
    if "union" in (writer.kind, reader.kind):
        return _union(writer, reader, type_, path)
    if not (_readable(writer, reader) and _holds(writer, reader)):
        raise _unfit(writer, reader, path)
    if reader.kind == "record":
        return _record(writer, reader, type_, path)
    if reader.kind == "array":
        return _list(writer, reader, type_, path)
    if reader.kind == "map":
        return _map(writer, reader, type_, path)
    if reader.kind == "enum":
        return _enum(writer, reader)
    return _leaf(writer if writer.logical else reader, reader, type_)


def _readable(writer: Avro, reader: Avro) -> bool:
    if writer.kind == "fixed" and reader.kind == "fixed":
        return writer.size == reader.size
    return writer.kind == reader.kind or writer.kind in _PROMOTED.get(reader.kind, ())


def _holds(writer: Avro, reader: Avro) -> bool:
    """Return whether the reader's logical type, if it has one, holds all values of the writer's."""
    if not writer.logical or reader.logical not in _MEANINGS:
        return True
    meaning, _ = _MEANINGS.get(writer.logical, ("", 1))
    if meaning != _MEANINGS[reader.logical][0]:
        return False
    digits = writer.precision - writer.scale
    return reader.scale >= writer.scale and reader.precision - reader.scale >= digits


def _unfit(writer: Avro, reader: Avro, path: str) -> AvroSchemaError:
    return AvroSchemaError(
        f"{field_at(path)}: what is written as {writer.described} cannot be read as "
        f"{reader.described}"
    )


# Records --------------------------------------------------------------------------------------


def _record(writer: Avro, reader: Avro, type_: pa.DataType, path: str) -> Convert:
    fields = {field.name: field for field in reader.fields}
    columns = [_column(writer, fields[each.name], each.type, path) for each in type_]

    def convert(array: pa.Array) -> pa.Array:
        return structs([column(array) for column in columns], len(array), type_)

    return on_present(convert)


def _column(writer: Avro, field: AvroField, type_: pa.DataType, path: str) -> Convert:
    path = below(path, field.name)
    written = next((each for each in writer.fields if each.name == field.name), None)
    if written is None:
        written = next((each for each in writer.fields if each.name in field.aliases), None)
    if written is not None:
        name, inner = written.name, resolver(written.type, field.type, type_, path)
        return lambda array: inner(array.field(name))
    if field.default is NO_DEFAULT:
        raise AvroSchemaError(
            f"the reader's schema has a field {path} without a default, which the writer's schema "
            "does not have"
        )
    value = _default(field, type_)
    return lambda array: value.take(pa.array(np.zeros(len(array), np.int64)))


def _default(field: AvroField, type_: pa.DataType) -> pa.Array:
    if field.default is None and field.type.nullable:
        return pa.nulls(1, type_)
    raw = pa.array([raw_default(field.type, field.default)], raw_type(field.type, 1))
    try:
        return resolver(field.type, field.type, type_)(raw)
    except KeyError:
        raise AvroSchemaError(
            f"the default of the field {field.name} is of a record that contains itself"
        ) from None


# Lists and maps -------------------------------------------------------------------------------


def _list(writer: Avro, reader: Avro, type_: pa.DataType, path: str) -> Convert:
    items = resolver(writer.items, reader.items, type_.value_type, path)

    def convert(array: pa.Array) -> pa.Array:
        offsets = array.offsets
        return pa.ListArray.from_arrays(offsets, items(array.values), type=type_)

    return on_present(convert)


def _map(writer: Avro, reader: Avro, type_: pa.DataType, path: str) -> Convert:
    values = resolver(writer.items, reader.items, type_.item_type, path)

    def convert(array: pa.Array) -> pa.Array:
        keys = _as_string(array.values.field("key"))
        items = values(array.values.field("value"))
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=type_)

    return on_present(convert)


# Unions ---------------------------------------------------------------------------------------


def _union(writer: Avro, reader: Avro, type_: pa.DataType, path: str) -> Convert:
    """Convert each branch of the writer to a branch of the reader; without one it is refused."""
    places = _places(writer, reader, type_, path)
    if not any(places):
        return _nothing(writer, reader, type_, path)

    def of_members(array: pa.Array) -> pa.Array:
        members = [array.field(f"member{at}") for at in range(len(raw_members(writer)))] or [array]
        found: dict[int, list[pa.Array]] = {}
        for member, place in zip(members, places, strict=True):
            if place is not None:
                index, of_branch = place
                found.setdefault(index, []).append(of_branch(member))
            elif member.null_count < len(member):
                raise Unresolvable("a branch of the writer's union that the reader's lacks")
        merged = {
            index: arrays[0] if len(arrays) == 1 else pc.coalesce(*arrays)
            for index, arrays in found.items()
        }
        return _into_members(merged, array, type_) if raw_members(reader) else merged[0]

    # A struct of members that is null may have members that are not.
    inner = on_present(of_members) if raw_members(writer) else of_members

    def convert(array: pa.Array) -> pa.Array:
        if array.null_count and not reader.nullable:
            raise Unresolvable("null where the reader's schema has no null")
        return inner(array)

    return convert


def _places(
    writer: Avro, reader: Avro, type_: pa.DataType, path: str
) -> list[tuple[int, Convert] | None]:
    """Return for each of the writer's types the reader's type and the conversion, or None."""
    branches = _members(reader)
    places: list[tuple[int, Convert] | None] = []
    for branch in _members(writer):
        place = _branch_for(branch, branches)
        if place is None:
            places.append(None)
        else:
            target = type_.field(place).type if raw_members(reader) else type_
            places.append((place, resolver(branch, branches[place], target, path)))
    return places


def _members(node: Avro) -> list[Avro]:
    """Return the types beside null; a union of int and long, or of float and double, is one type.

    If a branch of such a union has a logical type, its raw values do not tell which have it.
    """
    if node.widened:
        has_logical = any(each.logical for each in node.non_null)
        names = [each.logical or each.kind for each in node.non_null] if has_logical else []
        return [Avro(node.widened, logical=" or ".join(names))]
    if node.kind in ("union", "null"):
        return node.non_null
    return [node]


def _nothing(writer: Avro, reader: Avro, type_: pa.DataType, path: str) -> Convert:
    if not (writer.nullable and reader.nullable):
        raise _unfit(writer, reader, path)

    def convert(array: pa.Array) -> pa.Array:
        if array.null_count < len(array):
            raise Unresolvable("a value where the reader's schema has null alone")
        return pa.nulls(len(array), type_)

    return convert


def _branch_for(branch: Avro, branches: list[Avro]) -> int | None:
    """Return the reader's branch for a writer's: by name, by alias, else the first that fits."""
    able = [index for index, each in enumerate(branches) if _readable(branch, each)]
    tests: tuple[Callable[[Avro], bool], ...] = (
        lambda each: each.branch_name == branch.branch_name,
        lambda each: branch.name in each.aliases,
        lambda each: _simple(each) == _simple(branch),
        lambda each: not each.name or len(branches) == 1,
    )
    for test in tests:
        for index in able:
            if test(branches[index]):
                return index
    return None


def _simple(node: Avro) -> str:
    return node.branch_name.rpartition(".")[2]


def _into_members(merged: dict[int, pa.Array], array: pa.Array, type_: pa.DataType) -> pa.Array:
    children = [
        merged[index] if index in merged else pa.nulls(len(array), field.type)
        for index, field in enumerate(type_)
    ]
    return structs(children, len(array), type_, array.is_null() if array.null_count else None)


# Values ---------------------------------------------------------------------------------------


def _enum(writer: Avro, reader: Avro) -> Convert:
    symbols = [s if s in reader.symbols else reader.default_symbol for s in writer.symbols]
    dictionary = pa.array(symbols, pa.string())
    missing = dictionary.null_count > 0

    def convert(array: pa.Array) -> pa.Array:
        made = pa.DictionaryArray.from_arrays(array, dictionary).cast(pa.string())
        if missing and made.null_count > array.null_count:
            raise Unresolvable(f"a symbol of {writer.name} that the reader's enum lacks")
        return made

    return convert


def _leaf(meant: Avro, reader: Avro, type_: pa.DataType) -> Convert:
    """Return the conversion of a leaf; `meant` has the logical type of the written values."""
    if reader.logical == "decimal":
        written = pa.decimal128(meant.precision, meant.scale)
        return lambda array: _decimal(array, written).cast(type_)
    if pa.types.is_string(type_):
        return _as_string
    if pa.types.is_binary(type_):
        return lambda array: array.cast(pa.binary())
    if pa.types.is_floating(type_):
        return lambda array: array.cast(type_, safe=False)
    if pa.types.is_temporal(type_):
        return _temporal(meant, type_)
    return lambda array: array.cast(type_)


def _as_string(array: pa.Array) -> pa.Array:
    """Return the same bytes. Like Spark, it does not check that they are UTF-8."""
    return array.view(pa.string())


def _temporal(meant: Avro, type_: pa.DataType) -> Convert:
    if meant.logical == "date":
        return lambda array: array.view(type_)
    _, factor = _MEANINGS[meant.logical]

    def convert(array: pa.Array) -> pa.Array:
        whole = array.cast(pa.int64())
        return (whole if factor == 1 else pc.multiply_checked(whole, factor)).view(type_)

    return convert


def _decimal(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Convert big-endian two's complement of any length to Arrow's 16 bytes, little-endian."""
    rows = array.cast(pa.binary())
    offsets, data = binary_parts(rows)
    sizes = np.diff(offsets)
    valid = rows.is_valid().to_numpy(zero_copy_only=False)
    if (sizes[valid] == 0).any():
        raise Unresolvable("a decimal of no bytes")
    out = np.zeros((len(rows), 16), np.uint8)
    first = offsets[:-1][sizes > 0]
    out[sizes > 0] = np.where(data[first] & 0x80, 0xFF, 0)[:, None]
    for place in range(int(sizes.max(initial=0))):
        has = sizes > place
        digits = data[offsets[1:][has] - 1 - place]
        if place < 16:
            out[has, place] = digits
        elif (digits != np.where(out[has, 15] & 0x80, 0xFF, 0)).any():
            raise Unresolvable("a decimal of more than 16 bytes")
    buffers = [validity(valid), pa.py_buffer(out.tobytes())]
    made = pa.Array.from_buffers(type_, len(rows), buffers)
    made.validate(full=True)
    return made
