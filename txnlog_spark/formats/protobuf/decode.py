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
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    OneofDescriptor,
)
from pyspark.sql import types as spark

from txnlog_spark.codec.binary import cut_out
from txnlog_spark.codec.varints import unsigned_at, unzigzag
from txnlog_spark.formats.columns import (
    Flags,
    Whole,
    Wire,
    below,
    field_at,
    listed,
    offsets_of,
    structs,
)
from txnlog_spark.formats.decoded import Decode, Decoded, spread, with_problems
from txnlog_spark.formats.errors import ProtobufSchemaError
from txnlog_spark.formats.protobuf.scan import (
    NOTHING,
    Faults,
    Found,
    Layout,
    Occurrences,
    Parts,
    Read,
    Scan,
    in_order,
    locate,
)
from txnlog_spark.formats.protobuf.types import (
    DTYPES,
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

Numbers = npt.NDArray[Any]

_ZIGZAG = (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64)

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
            wire, rows = Wire(column), np.arange(len(column))
            parts = Parts(wire.bounds[:-1], wire.bounds[1:], rows, rows)
            made = read(Scan(wire, faults), parts, len(column))
            if not faults.bad.any():
                break
            # Once more without them, so that nothing of a malformed value is left behind.
            texts |= {int(kept[row]): text for row, text in faults.texts().items()}
            kept = kept[~faults.bad]
        return with_problems(made, texts, len(binary))

    return decode


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
        return structs(arrays, count, arrow)

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
        of_leaf = _leaf(field, type_, path)

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
        of_leaf = _leaf(field, type_, path)
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


# Values that are not messages -----------------------------------------------------------------


def _leaf(field: FieldDescriptor, type_: spark.DataType, path: str) -> _Numbers | _Bytes:
    """Return the reader of a field that is not a message.

    A field can become two columns: `single` has an element for each message, and `each` has an
    element for each occurrence, for a list. Both take the row of each message (`roots`). If
    `always`, an absent field has its default, as in a map's entry.
    """
    if type(type_) is not type(leaf_type(field)):
        raise _unfit(path, TYPE_NAMES[field.type], type_)
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        return _Bytes(field)
    is_enum = field.cpp_type == FieldDescriptor.CPPTYPE_ENUM
    return _Numbers(field, _Names(field) if is_enum else None)


class _Numbers:
    def __init__(self, field: FieldDescriptor, names: _Names | None) -> None:
        self.field, self.names = field, names
        self.dtype = DTYPES[field.cpp_type]
        self.implicit = not field.has_presence and not field.is_repeated
        self.has_default = field.has_default_value

    def single(self, scan: Scan, found: Found, roots: Whole, always: bool) -> pa.Array:
        values, count = self._checked(scan, found, roots), len(roots)
        valid: Flags | None = None
        if len(found.owner) != count or (found.owner != np.arange(count)).any():
            valid, dense = found.present(count), np.zeros(count, self.dtype)
            dense[found.owner] = values  # the last one stays
            values = dense
        if always or self.has_default:
            if valid is not None:
                values[~valid] = self._default()
            return self._finish(values, None)
        if self.implicit:
            # As Java compares: minus zero is not the default.
            bits = values.view(f"u{self.dtype.itemsize}") if self.dtype.kind == "f" else values
            valid = bits != 0 if valid is None else valid & (bits != 0)
        return self._finish(values, None if valid is None or valid.all() else ~valid)

    def each(self, scan: Scan, found: Occurrences, roots: Whole) -> tuple[Whole, pa.Array]:
        alone = found.alone
        if len(found.packed.start):
            unpacked = self._unpack(scan, found.packed, roots)
            alone = in_order([alone, unpacked]) if len(alone.start) else unpacked
        return alone.owner, self._finish(self._checked(scan, alone, roots), None)

    def _checked(self, scan: Scan, found: Found, roots: Whole) -> Numbers:
        values = self._numbers(scan, found)
        if self.names is not None:
            self.names.check(scan, found, values, roots)
        return values

    def _finish(self, values: Numbers, null: Flags | None) -> pa.Array:
        if self.names is None:
            return pa.array(values, mask=null)
        return self.names.of(values, null)

    def _default(self) -> Any:
        default = self.field.default_value
        if self.dtype.kind != "i":
            return default
        bits = 8 * self.dtype.itemsize  # an unsigned default as the signed number of its bits
        return np.array([default % 2**bits], f"u{self.dtype.itemsize}").view(self.dtype)[0]

    def _numbers(self, scan: Scan, found: Found) -> Numbers:
        made: Numbers
        if wire_type_of(self.field):
            places = found.start[:, None] + np.arange(self.dtype.itemsize)
            made = scan.wire.data[places].reshape(-1).view(self.dtype)
        elif self.dtype.kind == "b":
            made = found.end != 0
        elif self.field.type in _ZIGZAG:
            bits = found.end.view(np.uint64)
            if self.dtype.itemsize == 4:
                bits = bits & np.uint64(0xFFFFFFFF)
            made = unzigzag(bits).astype(self.dtype)
        else:
            made = found.end.astype(self.dtype)  # of 32 bits the lower ones
        return made

    def _unpack(self, scan: Scan, packed: Found, roots: Whole) -> Found:
        """Find each value in lists that are packed into one."""
        sizes = packed.end - packed.start
        if wire_type_of(self.field):
            width = self.dtype.itemsize
            wrong = sizes % width != 0
            counts = np.where(wrong, 0, sizes // width)
            owner, start = _within(packed, counts, width)
            end = start
        else:
            data = scan.wire.data
            wrong = (sizes > 0) & (data[packed.end - 1] >= 0x80)
            right = packed.take(~wrong) if wrong.any() else packed
            owner, at = _within(right, right.end - right.start, 1)
            last = data[at] < 0x80
            # A number begins where a list begins, and behind the last byte of another.
            begins = np.empty(len(at), bool)
            begins[1:] = last[:-1]
            begins[:1] = True
            owner, start = owner[begins], at[begins]
            value, _, long = unsigned_at(data, start)
            end = value.view(np.int64)
            if long is not None:
                scan.faults.add(roots[owner[long]], f"a number of {self.field.name} is too long")
        if wrong.any():
            text = f"the packed values of {self.field.name} end within one"
            scan.faults.add(roots[packed.owner[wrong]], text)
        return Found(owner, start, end)


def _within(packed: Found, counts: Whole, width: int) -> tuple[Whole, Whole]:
    """Return owner and position of each of `counts` elements."""
    total, first = int(counts.sum()), np.cumsum(counts) - counts
    number = np.arange(total) - np.repeat(first, counts)
    return np.repeat(packed.owner, counts), np.repeat(packed.start, counts) + number * width


class _Names:
    """Names of an enum.

    A number without a name has the name that Java gives it; in a closed enum it is malformed.
    """

    def __init__(self, field: FieldDescriptor) -> None:
        enum: EnumDescriptor = field.enum_type
        names: dict[int, str] = {}
        for value in enum.values:
            names.setdefault(value.number, value.name)  # of several names the first
        self.field, self.enum = field, enum
        self.numbers = np.array(sorted(names), np.int32)
        self.names = pa.array([names[number] for number in sorted(names)], pa.string())

    def check(self, scan: Scan, found: Found, values: Numbers, roots: Whole) -> None:
        """Report numbers without a name of a closed enum."""
        if not self.enum.is_closed:
            return
        unknown = ~np.isin(values, self.numbers)
        if unknown.any():
            text = f"a number of {self.field.name} is not one of the enum {self.enum.name}"
            scan.faults.add(roots[found.owner[unknown]], text)

    def of(self, values: Numbers, null: Flags | None) -> pa.Array:
        at = np.minimum(np.searchsorted(self.numbers, values), len(self.numbers) - 1)
        unknown = self.numbers[at] != values
        names = self.names
        if null is not None:
            unknown &= ~null
        if unknown.any():
            extra, which = np.unique(values[unknown], return_inverse=True)
            prefix = f"UNKNOWN_ENUM_VALUE_{self.enum.name}_"
            made = pa.array([f"{prefix}{number}" for number in extra.tolist()], pa.string())
            names = pa.concat_arrays([names, made])
            at[unknown] = len(self.names) + which
        return names.take(pa.array(at, mask=null))


class _Bytes:
    def __init__(self, field: FieldDescriptor) -> None:
        self.field = field
        self.is_text = field.type == FieldDescriptor.TYPE_STRING
        self.implicit = not field.has_presence and not field.is_repeated

    def single(self, scan: Scan, found: Found, roots: Whole, always: bool) -> pa.Array:
        count = len(roots)
        place = np.full(count, -1)
        place[found.owner] = np.arange(len(found.owner))  # the last one stays
        absent = place < 0
        if count - int(np.count_nonzero(absent)) < len(found.owner):
            self.each(scan, Occurrences(found), roots)  # those that do not stay are checked too
        if self.implicit and not always and len(found.start):
            absent |= (found.end == found.start)[place]
        null = absent if absent.any() else None
        rows = pa.array(place, mask=null)
        made = self._finish(scan, cut_out(scan.wire.buffer, found.start, found.end, rows), roots)
        if null is None or not (always or self.field.has_default_value):
            return made
        return made.fill_null(pa.scalar(self.field.default_value, made.type))

    def each(self, scan: Scan, found: Occurrences, roots: Whole) -> tuple[Whole, pa.Array]:
        alone = found.alone
        made = cut_out(scan.wire.buffer, alone.start, alone.end)
        return alone.owner, self._finish(scan, made, roots[alone.owner])

    def _finish(self, scan: Scan, made: pa.Array, rows: Whole) -> pa.Array:
        """Return the values of these bytes, of these rows; text is UTF-8, also in proto2."""
        if not self.is_text:
            return made
        wrong = _not_utf8(made)
        if wrong:
            scan.faults.add(rows[wrong], f"the bytes of {self.field.name} are not UTF-8")
        return made.view(pa.string())


def _not_utf8(made: pa.Array, first: int = 0) -> list[int]:
    """Return the numbers of the elements that are not UTF-8, looking into halves."""
    try:
        made.cast(pa.string())
    except pa.ArrowInvalid:
        half = len(made) // 2
        if not half:
            return [first]
        return _not_utf8(made.slice(0, half), first) + _not_utf8(made.slice(half), first + half)
    return []
