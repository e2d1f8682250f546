"""From Avro bytes to raw Arrow arrays, all values at once.

Each value has a cursor, and a field is read at all cursors together by numpy: an integer costs some
passes over an array and no Python object. The result is the result of `RawDecoder`. A value that is
not as it should be ends the scan with Misfit, and fastavro, value by value, has the last word.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog_spark.codec.binary import binary_parts, cut_out
from txnlog_spark.codec.varints import VARINT_BYTES_MAX, unsigned_at, unzigzag
from txnlog_spark.formats.avro.raw import raw_members, raw_type
from txnlog_spark.formats.avro.schema import Avro
from txnlog_spark.formats.columns import Whole, Wire, listed, structs
from txnlog_spark.formats.decoded import Misfit, spread

ROWS_MIN = 32
"""Number of values from which a scan is faster than fastavro."""

_ITEMS_A_STEP_MIN = 16
"""Items of a step, on average, from which lists are scanned: a step reads one item of each."""

_FLOATS: dict[str, np.dtype[np.float32] | np.dtype[np.float64]] = {
    "float": np.dtype("<f4"),
    "double": np.dtype("<f8"),
}


class _Cursors:
    """Positions to read at in some values, of the rows `rows`. Positions rise with the rows."""

    def __init__(self, source: Wire, at: Whole, end: Whole, rows: Whole) -> None:
        self.source, self.at, self.end, self.rows = source, at, end, rows

    def pick(self, chosen: Whole) -> _Cursors:
        return _Cursors(self.source, self.at[chosen], self.end[chosen], self.rows[chosen])

    def move(self, to: Whole) -> None:
        """Move to these positions. Misfit names the rows whose value ends before."""
        self.refuse(to > self.end)
        self.at = to

    def refuse(self, wrong: npt.NDArray[np.bool_]) -> None:
        if wrong.any():
            raise Misfit(self.rows[wrong])

    def integers(self) -> Whole:
        """Read a zig-zag varint at each position."""
        value, after, _ = unsigned_at(self.source.data, self.at)
        full = after - self.at == VARINT_BYTES_MAX
        if full.any():
            self.refuse(full & (self.source.data[after - 1] > 1))  # more than 64 bits
        self.move(after)
        return unzigzag(value)

    def slices(self, sizes: Whole) -> pa.Array:
        """Read `sizes` bytes at each position, as a binary array."""
        self.refuse((sizes < 0) | (sizes > self.end - self.at))
        start = self.at
        self.move(start + sizes)
        return cut_out(self.source.buffer, start, self.at)


Read = Callable[[_Cursors], pa.Array]


def scanner(node: Avro) -> Callable[[pa.Array], pa.Array] | None:
    """Return what decodes binary arrays without null to raw arrays.

    None for a schema that contains itself, or has lists of items without bytes.
    """
    if not _scannable(node, ()):
        return None
    read = _reader(node)

    def scan(values: pa.Array) -> pa.Array:
        if len(values) < ROWS_MIN:
            raise Misfit
        source = Wire(values)
        rows = np.arange(len(values))
        return read(_Cursors(source, source.bounds[:-1].copy(), source.bounds[1:], rows))

    return scan


def _scannable(node: Avro, within: tuple[Avro, ...]) -> bool:
    if node in within:
        return False
    if node.kind == "array" and _takes_no_bytes(node.items):
        return False
    parts = [*node.branches, *(field.type for field in node.fields)]
    parts += [node.items] if node.items else []
    return all(_scannable(part, (*within, node)) for part in parts)


def _takes_no_bytes(node: Avro) -> bool:
    if node.kind == "record":
        return all(_takes_no_bytes(field.type) for field in node.fields)
    return node.kind == "null" or (node.kind == "fixed" and not node.size)


def _reader(node: Avro) -> Read:
    made = _nested(node) or _leaf(node)
    type_ = raw_type(node, 1)

    def read(cursors: _Cursors) -> pa.Array:
        return made(cursors) if len(cursors.at) else pa.array([], type_)

    return read


def _nested(node: Avro) -> Read | None:
    if node.kind == "record":
        return _record(node)
    if node.kind == "union":
        return _union(node)
    if node.kind == "array":
        return _list(node, _items(node.items))
    if node.kind == "map":
        return _list(node, _stepwise(_entry(node)))
    return None


# Values ---------------------------------------------------------------------------------------


def _leaf(node: Avro) -> Read:
    if node.kind == "null":
        return lambda cursors: pa.nulls(len(cursors.at))
    if node.kind in ("bytes", "string"):
        return lambda cursors: cursors.slices(cursors.integers())
    if node.kind == "fixed":
        return lambda cursors: _fixed(cursors, node.size)
    if node.kind == "boolean":
        return _boolean
    if node.kind in _FLOATS:
        dtype = _FLOATS[node.kind]
        return lambda cursors: pa.array(_fixed_bytes(cursors, dtype.itemsize).view(dtype))
    if node.kind == "long":
        return lambda cursors: pa.array(cursors.integers())
    return lambda cursors: _int32(cursors.integers(), cursors.rows)


def _int32(values: Whole, rows: Whole) -> pa.Array:
    small = values.astype(np.int32)
    if (small != values).any():
        raise Misfit(rows[small != values])
    return pa.array(small)


def _boolean(cursors: _Cursors) -> pa.Array:
    byte = cursors.source.data[cursors.at]
    cursors.refuse(byte > 1)
    cursors.move(cursors.at + 1)
    return pa.array(byte == 1)


def _fixed_bytes(cursors: _Cursors, size: int) -> npt.NDArray[np.uint8]:
    _, data = binary_parts(cursors.slices(np.full(len(cursors.at), size)))
    return data[: size * len(cursors.at)]


def _fixed(cursors: _Cursors, size: int) -> pa.Array:
    data = _fixed_bytes(cursors, size) if size else np.zeros(0, np.uint8)
    buffers = [None, pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(size), len(cursors.at), buffers)


# Records and unions ---------------------------------------------------------------------------


def _record(node: Avro) -> Read:
    readers = [_reader(field.type) for field in node.fields]
    type_ = raw_type(node, 1)

    def read(cursors: _Cursors) -> pa.Array:
        return structs([each(cursors) for each in readers], len(cursors.at), type_)

    return read


def _union(node: Avro) -> Read:
    readers = [_reader(branch) for branch in node.branches]
    type_, is_null = raw_type(node, 1), [branch.kind == "null" for branch in node.branches]
    complex_ = bool(raw_members(node))

    def read(cursors: _Cursors) -> pa.Array:
        chosen = cursors.integers()
        cursors.refuse((chosen < 0) | (chosen >= len(readers)))
        parts = []
        for number, reader in enumerate(readers):
            if is_null[number]:
                continue
            at = np.flatnonzero(chosen == number)
            below = cursors.pick(at)
            parts.append((at, reader(below)))
            cursors.at[at] = below.at
        if complex_:
            return _members(parts, len(chosen), type_)
        return _merged(parts, len(chosen), type_)

    return read


def _members(parts: list[tuple[Whole, pa.Array]], count: int, type_: pa.DataType) -> pa.Array:
    some = np.zeros(count, bool)
    arrays = []
    for at, array in parts:
        here = np.zeros(count, bool)
        here[at] = True
        some |= here
        arrays.append(spread(array, pa.array(here)))
    return structs(arrays, count, type_, pa.array(~some))


def _merged(parts: list[tuple[Whole, pa.Array]], count: int, type_: pa.DataType) -> pa.Array:
    """Return the elements of all parts at their places, and null at the others."""
    places, null, base = np.zeros(count, np.int64), np.ones(count, bool), 0
    for at, array in parts:
        if len(at) == count:
            return array.cast(type_)
        places[at] = base + np.arange(len(at))
        null[at] = False
        base += len(at)
    if not base:
        return pa.nulls(count, type_)
    # Of several parts there are numbers alone, of two widths.
    arrays = [array if len(parts) == 1 else array.cast(type_) for _, array in parts]
    return pa.concat_arrays(arrays).take(pa.array(places, mask=null))


# Lists ----------------------------------------------------------------------------------------

Items = Callable[[_Cursors, Whole], tuple[Whole, pa.Array]]
"""Reads a number of items at each cursor. Returns each item's cursor number, and the items."""


def _list(node: Avro, items: Items) -> Read:
    type_ = raw_type(node, 1)
    empty = pa.array([], type_.value_type)

    def read(cursors: _Cursors) -> pa.Array:
        open_ = np.arange(len(cursors.at))
        owners, arrays = [np.zeros(0, np.int64)], [empty]
        while True:
            below = cursors.pick(open_)
            counts = below.integers()
            sized = np.flatnonzero(counts < 0)
            if sized.size:  # then the block's size in bytes follows
                after = below.pick(sized)
                after.integers()
                below.at[sized] = after.at
            cursors.at[open_] = below.at
            open_, counts = open_[counts != 0], np.abs(counts[counts != 0])
            if not open_.size:
                break
            below = cursors.pick(open_)
            below.refuse((counts < 0) | (counts > below.end - below.at))
            owner, array = items(below, counts)
            cursors.at[open_] = below.at
            owners.append(open_[owner])
            arrays.append(array)
        owner, values = np.concatenate(owners), pa.concat_arrays(arrays)
        if (np.diff(owner) < 0).any():
            values = values.take(pa.array(np.argsort(owner, kind="stable")))
        return listed(owner, values, len(cursors.at), type_)

    return read


def _items(node: Avro) -> Items:
    if node.kind in ("int", "long", "enum"):
        return lambda cursors, counts: _integer_items(cursors, counts, node.kind == "long")
    return _stepwise(_reader(node))


def _entry(node: Avro) -> Read:
    key, value, type_ = _leaf(Avro("string")), _reader(node.items), raw_type(node, 1).value_type

    def read(cursors: _Cursors) -> pa.Array:
        return structs([key(cursors), value(cursors)], len(cursors.at), type_)

    return read


def _stepwise(reader: Read) -> Items:
    """Read the first item of all lists, then the second of the lists that have one, and so on."""

    def read(cursors: _Cursors, counts: Whole) -> tuple[Whole, pa.Array]:
        steps = int(counts.max())
        if steps > _ITEMS_A_STEP_MIN and counts.sum() < _ITEMS_A_STEP_MIN * steps:
            raise Misfit
        owners, arrays = [], []
        for step in range(steps):
            at = np.flatnonzero(counts > step)
            below = cursors.pick(at)
            arrays.append(reader(below))
            owners.append(at)
            cursors.at[at] = below.at
        return np.concatenate(owners), pa.concat_arrays(arrays)

    return read


def _integer_items(cursors: _Cursors, counts: Whole, wide: bool) -> tuple[Whole, pa.Array]:
    """Read all items at once: each integer ends at the next byte that can end one."""
    ends = cursors.source.ends
    first = np.searchsorted(ends, cursors.at)
    owner = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    which = first[owner] + within
    cursors.refuse(first + counts > len(ends))
    last = ends[which]
    start = np.where(within == 0, cursors.at[owner], ends[which - 1] + 1)
    items = _Cursors(cursors.source, start, cursors.end[owner], cursors.rows[owner])
    values = items.integers()
    cursors.move(last[np.cumsum(counts) - 1] + 1)
    return owner, pa.array(values) if wide else _int32(values, items.rows)
