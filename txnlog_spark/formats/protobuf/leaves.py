"""Columns of fields that are not messages: numbers, enums, text and bytes.

A field can become two columns: `single` has an element for each message, and `each` has an element
for each occurrence, for a list.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from txnlog_spark.codec.binary import cut_out
from txnlog_spark.codec.varints import unsigned_at, unzigzag
from txnlog_spark.formats.columns import Flags, Whole
from txnlog_spark.formats.protobuf.scan import (
    Found,
    Occurrences,
    Scan,
    in_order,
)
from txnlog_spark.formats.protobuf.types import DTYPES, wire_type_of

Numbers = npt.NDArray[Any]

_ZIGZAG = (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64)


class FieldReader(Protocol):
    """Makes values of the occurrences of a field.

    roots: the row of each message. always: an absent field has its default, as in a map's entry.
    """

    def single(self, scan: Scan, found: Found, roots: Whole, always: bool) -> pa.Array: ...

    def each(self, scan: Scan, found: Occurrences, roots: Whole) -> tuple[Whole, pa.Array]: ...


def leaf(field: FieldDescriptor) -> FieldReader:
    """Return the reader of a field that is not a message."""
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        return _Bytes(field)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return _Numbers(field, _Names(field))
    return _Numbers(field, None)


def is_each(owner: Whole, count: int) -> bool:
    """Return whether each message has one occurrence."""
    return len(owner) == count and bool((owner == np.arange(count)).all())


# Numbers --------------------------------------------------------------------------------------


class _Numbers:
    def __init__(self, field: FieldDescriptor, names: _Names | None) -> None:
        self.field, self.names = field, names
        self.dtype = DTYPES[field.cpp_type]
        self.implicit = not field.has_presence and not field.is_repeated
        self.has_default = field.has_default_value

    def single(self, scan: Scan, found: Found, roots: Whole, always: bool) -> pa.Array:
        values, count = self._checked(scan, found, roots), len(roots)
        valid: Flags | None = None
        if not is_each(found.owner, count):
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


# Text and bytes -------------------------------------------------------------------------------


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
