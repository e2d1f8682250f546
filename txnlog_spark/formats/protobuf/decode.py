"""Columns of Protobuf messages to columns of Spark values, whole arrays at a time.

`scan` finds the fields; here the occurrences of each become a column. A message means what Spark's
from_protobuf makes of it (ProtobufDeserializer, on Java's DynamicMessage):

- A field without presence, as of proto3, is null if it is absent or has its default.
- The last value of a field that is not repeated counts; the occurrences of a message are merged.
- A message with several members of a oneof is malformed, and so is one with a group.
- No known field may come with another wire type than its own, at any depth.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor, OneofDescriptor
from pyspark.sql import types as spark

from txnlog_spark.formats.columns import Whole, Wire, below, field_at, listed, offsets_of
from txnlog_spark.formats.decoded import Decode, Decoded, spread, with_problems
from txnlog_spark.formats.errors import ProtobufSchemaError
from txnlog_spark.formats.protobuf.leaves import leaf
from txnlog_spark.formats.protobuf.scan import (
    NOTHING,
    Faults,
    Found,
    Layout,
    Occurrences,
    Parts,
    Read,
    Scan,
    locate,
)
from txnlog_spark.formats.protobuf.types import (
    GROUP,
    TYPE_NAMES,
    TYPES_OF_SECONDS,
    is_map,
    leaf_type,
    of_seconds,
    packed_tag_of,
    protobuf_type,
    tag_of,
    wire_type_of,
)
from txnlog_spark.formats.types import arrow_type

Column = Callable[[Scan, Occurrences, Whole], pa.Array]
"""Makes an array with an element for each message, of a field's occurrences and messages' rows."""

_SECONDS_MAX = 2**63 // 10**6 - 3
"""Most seconds that, with any nanoseconds of 32 bits, are 64 bits of microseconds."""


def protobuf_decoder(descriptor: Descriptor, type_: spark.DataType | None = None) -> Decode:
    """Decode binary arrays of such messages to `type_`, or to the whole of `protobuf_type`.

    `type_` has some of the message's fields; the other fields are not converted, and a fault in
    them is not seen. ProtobufSchemaError names a field that the message does not have, or has with
    another type.
    """
    wanted = protobuf_type(descriptor) if type_ is None else type_
    arrow = arrow_type(wanted)
    read = _message(descriptor, wanted, arrow, "")

    def decode(values: pa.Array) -> Decoded:
        binary = values if pa.types.is_binary(values.type) else values.cast(pa.binary())
        kept, texts = np.arange(len(binary)), dict[int, str]()
        while True:
            faults = Faults(len(kept))
            column = binary if len(kept) == len(binary) else binary.take(pa.array(kept))
            made = _whole(read, column, faults)
            if not faults.bad.any():
                break
            # Once more without them, so that nothing of a malformed value is left behind.
            texts |= {int(kept[row]): text for row, text in faults.texts().items()}
            kept = kept[~faults.bad]
        return with_problems(made, texts, len(binary))

    return decode


def _whole(read: Read, column: pa.Array, faults: Faults) -> pa.Array:
    wire, rows = Wire(column), np.arange(len(column))
    parts = Parts(wire.bounds[:-1], wire.bounds[1:], rows, rows)
    return read(Scan(wire, faults), parts, len(column))


# Messages -------------------------------------------------------------------------------------


def _message(
    descriptor: Descriptor,
    type_: spark.DataType,
    arrow: pa.DataType,
    path: str,
    is_entry: bool = False,
) -> Read:
    """Return the reader of messages.

    `is_entry`: of entries of a map, where an absent field has its default.
    """
    if not isinstance(type_, spark.StructType):
        raise _unfit(path, descriptor.full_name, type_)
    fields = [_named(descriptor, each.name, path) for each in type_.fields]
    columns = [
        _column(field, each.dataType, arrow.field(at).type, below(path, each.name), is_entry)
        for at, (field, each) in enumerate(zip(fields, type_.fields, strict=True))
    ]
    layout = _layout(descriptor)
    oneofs = [each for each in descriptor.oneofs if len(each.fields) > 1]
    required = [field for field in descriptor.fields if field.is_required]

    def read(scan: Scan, parts: Parts, count: int) -> pa.Array:
        found = locate(scan, parts, layout)
        for field in required:
            _check_required(scan, field, found, parts.roots)
        for oneof in oneofs:
            _check_one_member(scan, oneof, found, parts.roots)
        arrays = []
        for field, column in zip(fields, columns, strict=True):
            packed = packed_tag_of(field)
            packed_values = NOTHING if packed is None else found.get(packed, NOTHING)
            there = Occurrences(found.get(tag_of(field), NOTHING), packed_values)
            arrays.append(column(scan, there, parts.roots))
        if not arrays:
            return pa.Array.from_buffers(arrow, count, [None])
        return pa.StructArray.from_arrays(arrays, fields=list(arrow))

    return read


def _unfit(path: str, what: str, type_: spark.DataType) -> ProtobufSchemaError:
    return ProtobufSchemaError(
        f"{field_at(path)} is of the Protobuf type {what}, which is not read as "
        f"{type_.simpleString()}"
    )


def _named(descriptor: Descriptor, name: str, path: str) -> FieldDescriptor:
    field = descriptor.fields_by_name.get(name)
    if field is None:
        known = ", ".join(each.name for each in descriptor.fields) or "none"
        raise ProtobufSchemaError(
            f"{field_at(below(path, name))} is not in the message {descriptor.full_name}; its "
            f"fields: {known}"
        )
    return field


def _layout(descriptor: Descriptor) -> Layout:
    tags, repeated, also = [], set(), set()
    for field in sorted(descriptor.fields, key=lambda each: each.number):
        if wire_type_of(field) == GROUP:
            continue
        alone, packed = tag_of(field), packed_tag_of(field)
        if packed is not None:
            also.add(alone if field.is_packed else packed)
        tags.append(packed if packed is not None and field.is_packed else alone)
        if field.is_repeated:
            repeated.add(tags[-1])
    numbers = [field.number for field in descriptor.fields]
    return Layout(tuple(tags), frozenset(repeated), frozenset(also), np.array(numbers, np.int64))


def _check_required(
    scan: Scan, field: FieldDescriptor, found: dict[int, Found], roots: Whole
) -> None:
    missing = ~found.get(tag_of(field), NOTHING).present(len(roots))
    if missing.any():
        scan.faults.add(roots[missing], f"the field {field.name} is required and absent")


def _check_one_member(
    scan: Scan, oneof: OneofDescriptor, found: dict[int, Found], roots: Whole
) -> None:
    some, several = np.zeros(len(roots), bool), np.zeros(len(roots), bool)
    for field in oneof.fields:
        present = found.get(tag_of(field), NOTHING).present(len(roots))
        several |= some & present
        some |= present
    if several.any():
        scan.faults.add(roots[several], f"several members of the oneof {oneof.name} are there")


# Fields ---------------------------------------------------------------------------------------


def _column(
    field: FieldDescriptor, type_: spark.DataType, arrow: pa.DataType, path: str, is_entry: bool
) -> Column:
    if is_map(field):
        return _map(field, type_, arrow, path)
    if not field.is_repeated:
        return _single(field, type_, arrow, path, is_entry)
    if not isinstance(type_, spark.ArrayType):
        raise _unfit(path, "repeated", type_)
    inner, type_ = arrow.value_type, type_.elementType
    if field.message_type is None:
        of_leaf = leaf(field)
        _check_leaf(field, type_, path)

        def column(scan: Scan, found: Occurrences, roots: Whole) -> pa.Array:
            owner, values = of_leaf.each(scan, found, roots)
            return listed(owner, values, len(roots), arrow)

        return column
    read = _of_message(field.message_type, type_, inner, path)

    def messages(scan: Scan, found: Occurrences, roots: Whole) -> pa.Array:
        values = _each(read, scan, found.alone, roots)
        return listed(found.alone.owner, values, len(roots), arrow)

    return messages


def _each(read: Read, scan: Scan, found: Found, roots: Whole) -> pa.Array:
    """Read each occurrence as a message."""
    number = np.arange(len(found.owner))
    return read(scan, Parts(found.start, found.end, number, roots[found.owner]), len(number))


def _map(field: FieldDescriptor, type_: spark.DataType, arrow: pa.DataType, path: str) -> Column:
    """Return the column of a map. As in Spark, all entries with the same key stay."""
    if not isinstance(type_, spark.MapType):
        raise _unfit(path, "map", type_)
    entry = spark.StructType().add("key", type_.keyType).add("value", type_.valueType)
    fields = [pa.field("key", arrow.key_type), pa.field("value", arrow.item_type)]
    read = _message(field.message_type, entry, pa.struct(fields), path, is_entry=True)

    def column(scan: Scan, found: Occurrences, roots: Whole) -> pa.Array:
        offsets = offsets_of(found.alone.owner, len(roots))
        entries = _each(read, scan, found.alone, roots)
        return pa.MapArray.from_arrays(offsets, entries.field(0), entries.field(1), type=arrow)

    return column


def _single(
    field: FieldDescriptor, type_: spark.DataType, arrow: pa.DataType, path: str, is_entry: bool
) -> Column:
    if field.message_type is None:
        of_leaf = leaf(field)
        _check_leaf(field, type_, path)
        return lambda scan, found, roots: of_leaf.single(scan, found.alone, roots, is_entry)
    read = _of_message(field.message_type, type_, arrow, path)

    def column(scan: Scan, found: Occurrences, roots: Whole) -> pa.Array:
        there = found.alone
        present = there.present(len(roots))
        if is_entry or present.all():
            return read(scan, Parts(there.start, there.end, there.owner, roots), len(roots))
        owner, some = (np.cumsum(present) - 1)[there.owner], roots[present]
        made = read(scan, Parts(there.start, there.end, owner, some), len(some))
        return spread(made, pa.array(present))

    return column


def _check_leaf(field: FieldDescriptor, type_: spark.DataType, path: str) -> None:
    expected = leaf_type(field)
    if type(type_) is not type(expected):
        raise _unfit(path, TYPE_NAMES[field.type], type_)


def _of_message(
    descriptor: Descriptor, type_: spark.DataType, arrow: pa.DataType, path: str
) -> Read:
    made = _time if of_seconds(descriptor) else _message
    return made(descriptor, type_, arrow, path)


def _time(descriptor: Descriptor, type_: spark.DataType, arrow: pa.DataType, path: str) -> Read:
    """Read seconds and nanoseconds as microseconds."""
    if type(type_) is not type(TYPES_OF_SECONDS[descriptor.name]):
        raise _unfit(path, descriptor.full_name, type_)
    both = spark.StructType().add("seconds", spark.LongType()).add("nanos", spark.IntegerType())
    fields = [pa.field("seconds", pa.int64()), pa.field("nanos", pa.int32())]
    read = _message(descriptor, both, pa.struct(fields), path, is_entry=True)

    def column(scan: Scan, parts: Parts, count: int) -> pa.Array:
        made = read(scan, parts, count)
        seconds, nanos = (made.field(at).to_numpy().astype(np.int64) for at in range(2))
        beyond = np.abs(seconds) > _SECONDS_MAX
        if beyond.any():
            scan.faults.add(parts.roots[beyond], f"{field_at(path)} is beyond the range of a time")
        # Like Java, towards zero.
        micros = seconds * 1_000_000 + np.sign(nanos) * (np.abs(nanos) // 1000)
        return pa.array(micros).view(arrow)

    return column
