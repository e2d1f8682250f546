"""Columns of fields that are no messages: numbers, enums, text and bytes.

A field has two columns to choose from, `single` with an element for each message, and `each` with
one for each occurrence, which a list takes.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from txnlog_spark.codec import compute as pc
from txnlog_spark.formats.protobuf_scan import Found, Scan, Whole, slices, varints
from txnlog_spark.formats.protobuf_types import verifies_utf8, wire_type_of

Numbers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

_DTYPES = {
    FieldDescriptor.CPPTYPE_INT32: np.dtype("<i4"),
    FieldDescriptor.CPPTYPE_UINT32: np.dtype("<i4"),
    FieldDescriptor.CPPTYPE_ENUM: np.dtype("<i4"),
    FieldDescriptor.CPPTYPE_INT64: np.dtype("<i8"),
    FieldDescriptor.CPPTYPE_UINT64: np.dtype("<i8"),
    FieldDescriptor.CPPTYPE_FLOAT: np.dtype("<f4"),
    FieldDescriptor.CPPTYPE_DOUBLE: np.dtype("<f8"),
    FieldDescriptor.CPPTYPE_BOOL: np.dtype(bool),
}
_ZIGZAG = (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64)


class Leaf(Protocol):
    """How the occurrences of a field become values.

    roots: the row of each message. always: an absent field has its default, as in a map's entry.
    """

    def single(self, scan: Scan, found: Found, roots: Whole, always: bool) -> pa.Array: ...

    def each(
        self, scan: Scan, alone: Found, packed: Found, roots: Whole
    ) -> tuple[Whole, pa.Array]: ...


def leaf(field: FieldDescriptor, outer: bool) -> Leaf:
    """Of a field that is not a message; `outer` says that it is one of the outer message."""
    if field.type == FieldDescriptor.TYPE_STRING:
        return _Texts(field)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _Binaries(field)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return _Enums(field, outer)
    return _Numbers(field)


def is_each(owner: Whole, count: int) -> bool:
    """Whether each of the messages has one occurrence."""
    return len(owner) == count and bool((owner == np.arange(count)).all())


# Numbers --------------------------------------------------------------------------------------


class _Numbers:
    def __init__(self, field: FieldDescriptor) -> None:
        self.field = field
        self.dtype = _DTYPES[field.cpp_type]
        self.implicit = not field.has_presence and not field.is_repeated
        self.default: Any = field.default_value if field.has_default_value else None
        self.initial: Any = 0

    def single(self, scan: Scan, found: Found, roots: Whole, always: bool) -> pa.Array:
        found, values = self.kept(scan, found, self.numbers(scan, found), roots)
        count = len(roots)
        valid: Flags | None = None
        if not is_each(found.owner, count):
            valid, dense = np.zeros(count, bool), np.zeros(count, self.dtype)
            dense[found.owner], valid[found.owner] = values, True  # the last one stays
            values = dense
        if always or self.default is not None:
            if valid is not None:
                values[~valid] = self.initial if self.default is None else self.default
            return self.finish(values, None)
        if self.implicit:
            # As Java compares: minus zero is not the default.
            bits = values.view(f"u{self.dtype.itemsize}") if self.dtype.kind == "f" else values
            valid = bits != 0 if valid is None else valid & (bits != 0)
        return self.finish(values, None if valid is None or valid.all() else ~valid)

    def each(
        self, scan: Scan, alone: Found, packed: Found, roots: Whole
    ) -> tuple[Whole, pa.Array]:
        if len(packed.start):
            unpacked = self._unpack(scan, packed, roots)
            if len(alone.start):
                both = [
                    np.concatenate([getattr(part, name) for part in (alone, unpacked)])
                    for name in ("owner", "start", "end")
                ]
                unpacked = Found(*both).take(np.argsort(both[1], kind="stable"))
            alone = unpacked
        alone, values = self.kept(scan, alone, self.numbers(scan, alone), roots)
        return alone.owner, self.finish(values, None)

    def numbers(self, scan: Scan, found: Found) -> Numbers:
        if self.dtype.kind == "f" or wire_type_of(self.field):
            size = self.dtype.itemsize
            places = found.start[:, None] + np.arange(size)
            return scan.wire.data[places].reshape(-1).view(self.dtype)
        if self.dtype.kind == "b":
            return found.end != 0
        if self.field.type in _ZIGZAG:
            bits = found.end.view(np.uint64)
            if self.dtype.itemsize == 4:
                bits = bits & np.uint64(0xFFFFFFFF)
            whole = (bits >> np.uint64(1)).astype(np.int64) ^ -(bits & np.uint64(1)).astype(np.int64)
            return whole.astype(self.dtype)
        return found.end.astype(self.dtype)  # of 32 bits the lower ones

    def kept(
        self, scan: Scan, found: Found, values: Numbers, roots: Whole
    ) -> tuple[Found, Numbers]:
        """The occurrences that count."""
        return found, values

    def finish(self, values: Numbers, null: Flags | None) -> pa.Array:
        return pa.array(values, mask=null)

    def _unpack(self, scan: Scan, packed: Found, roots: Whole) -> Found:
        """Each value of lists that are written as one."""
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
            value, _, long = varints(data, start)
            end = value.view(np.int64)
            if long is not None:
                scan.faults.add(roots[owner[long]], f"a number of {self.field.name} is too long")
        if wrong.any():
            text = f"the packed values of {self.field.name} end within one"
            scan.faults.add(roots[packed.owner[wrong]], text)
        return Found(owner, start, end)


def _within(packed: Found, counts: Whole, width: int) -> tuple[Whole, Whole]:
    """Owner and position of each element of so many."""
    total, first = int(counts.sum()), np.cumsum(counts) - counts
    number = np.arange(total) - np.repeat(first, counts)
    return np.repeat(packed.owner, counts), np.repeat(packed.start, counts) + number * width


class _Enums(_Numbers):
    """Names; a number without one has Java's name for it, or does not count in a closed enum.

    In the outer message Spark refuses such a number of a closed enum.
    """

    def __init__(self, field: FieldDescriptor, outer: bool) -> None:
        super().__init__(field)
        enum: EnumDescriptor = field.enum_type
        names: dict[int, str] = {}
        for value in enum.values:
            names.setdefault(value.number, value.name)  # of several names the first
        self.enum_name, self.closed, self.outer = enum.name, enum.is_closed, outer
        self.numbers_known = np.array(sorted(names), np.int32)
        self.names = pa.array([names[number] for number in sorted(names)], pa.string())
        self.initial = enum.values[0].number

    def kept(
        self, scan: Scan, found: Found, values: Numbers, roots: Whole
    ) -> tuple[Found, Numbers]:
        if not self.closed:
            return found, values
        known = np.isin(values, self.numbers_known)
        if known.all():
            return found, values
        if self.outer:
            text = f"a number of {self.field.name} is not one of the enum {self.enum_name}"
            scan.faults.add(roots[found.owner[~known]], text)
        return found.take(known), values[known]

    def finish(self, values: Numbers, null: Flags | None) -> pa.Array:
        at = np.searchsorted(self.numbers_known, values)
        at = np.minimum(at, len(self.numbers_known) - 1)
        unknown = self.numbers_known[at] != values
        names = self.names
        if null is not None:
            unknown &= ~null
        if unknown.any():
            extra, which = np.unique(values[unknown], return_inverse=True)
            prefix = f"UNKNOWN_ENUM_VALUE_{self.enum_name}_"
            names = pa.concat_arrays([names, pa.array([f"{prefix}{n}" for n in extra.tolist()])])
            at[unknown] = len(self.names) + which
        return names.take(pa.array(at, mask=null))


# Text and bytes -------------------------------------------------------------------------------


class _Binaries:
    def __init__(self, field: FieldDescriptor) -> None:
        self.field = field
        self.implicit = not field.has_presence and not field.is_repeated
        self.default: Any = field.default_value if field.has_default_value else None

    def single(self, scan: Scan, found: Found, roots: Whole, always: bool) -> pa.Array:
        count = len(roots)
        place = np.full(count, -1)
        place[found.owner] = np.arange(len(found.owner))  # the last one stays
        absent = place < 0
        if count - int(np.count_nonzero(absent)) < len(found.owner):
            self.each(scan, found, found.take(slice(0, 0)), roots)  # what is replaced is checked too
        if self.implicit and not always and len(found.start):
            absent |= (found.end == found.start)[place]
        null = absent if absent.any() else None
        made = self.finish(scan, slices(scan.wire, found, pa.array(2 * place, mask=null)), roots)
        default = self.default if self.default is not None else "" if always else None
        if default is None or null is None:
            return made
        if isinstance(default, str) and pa.types.is_binary(made.type):
            default = default.encode()
        return made.fill_null(pa.scalar(default, made.type))

    def each(
        self, scan: Scan, alone: Found, packed: Found, roots: Whole
    ) -> tuple[Whole, pa.Array]:
        places = pa.array(2 * np.arange(len(alone.start)))
        return alone.owner, self.finish(scan, slices(scan.wire, alone, places), roots[alone.owner])

    def finish(self, scan: Scan, made: pa.Array, rows: Whole) -> pa.Array:
        """The values of these bytes, of these rows."""
        return made


class _Texts(_Binaries):
    def __init__(self, field: FieldDescriptor) -> None:
        super().__init__(field)
        self.verifies = verifies_utf8(field)

    def finish(self, scan: Scan, made: pa.Array, rows: Whole) -> pa.Array:
        wrong = _not_utf8(made)
        if not wrong:
            return made.view(pa.string())
        if self.verifies:
            scan.faults.add(rows[wrong], f"the bytes of {self.field.name} are not UTF-8")
            mended = [""] * len(wrong)
        else:
            # Like Java, which puts a replacement character for what is not UTF-8.
            mended = [made[at].as_py().decode(errors="replace") for at in wrong]
        mask = np.zeros(len(made), bool)
        mask[wrong] = True
        mended_bytes = pa.array([text.encode() for text in mended], pa.binary())
        return pc.replace_with_mask(made, pa.array(mask), mended_bytes).view(pa.string())


def _not_utf8(made: pa.Array, first: int = 0) -> list[int]:
    """The numbers of the elements that are not UTF-8: of each half, where there is one."""
    try:
        made.cast(pa.string())
    except pa.ArrowInvalid:
        half = len(made) // 2
        if not half:
            return [first]
        return _not_utf8(made.slice(0, half), first) + _not_utf8(made.slice(half), first + half)
    return []
