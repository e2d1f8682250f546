"""Positions of the fields of Protobuf messages, found in all messages at once.

A message is a sequence of fields, each a tag (number and wire type) and a value, in any order.
Numpy reads all messages together: each has a position, and a pass looks for one tag after another
and reads on the messages that have it next. Encoders write tags in the order of their numbers, so
one pass over the tags is enough for most messages. The rest of other messages takes more passes,
and the rest of a few long messages is read field by field.

A message is accepted if Protobuf's own runtime accepts it and it has no group (proto2). Otherwise
it is reported to `Faults` and left alone; no value makes this module raise an exception.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog_spark.codec.varints import VARINT_BYTES_MAX, unsigned_at
from txnlog_spark.formats.columns import Flags, Whole, Wire
from txnlog_spark.formats.protobuf.types import (
    END_GROUP,
    FIXED32,
    FIXED64,
    GROUP,
    LENGTH,
    VARINT,
)

_TAG_BYTES_MAX = 5
_LENGTH_BYTES_MAX = 5
_LENGTH_MAX = 2**31 - 1
_TAG_MAX = 2**32 - 1

_FEW = 8
"""Number of messages that are read one by one when the others are done."""

_NO_TAG = np.uint8(1)
"""Tag that stands for 0, which is not a tag either: here 0 is the end of a message."""

_A_GROUP = "it has a group, which is not read"
_NOT_A_TAG = "a tag is not one of a field"
_OTHER_TYPE = "a field has another type than in the descriptor"
_OVER_32_BITS = "a tag is truncated or is over 32 bits"
_TRUNCATED = "it ends within a field"


class Faults:
    """Reasons for which rows are malformed; the first text about a row stays."""

    def __init__(self, rows: int) -> None:
        self.bad = np.zeros(rows, bool)
        self._texts: list[tuple[Whole, str]] = []

    def add(self, rows: Whole, text: str) -> None:
        """Report the text about these rows."""
        new = np.unique(rows[~self.bad[rows]])
        if new.size:
            self._texts.append((new, text))
            self.bad[new] = True

    def texts(self) -> dict[int, str]:
        """Return the texts by row."""
        return {row: text for rows, text in self._texts for row in rows.tolist()}


@dataclass(frozen=True, slots=True)
class Scan:
    """State of one decoding: its bytes and its faults."""

    wire: Wire
    faults: Faults


@dataclass(frozen=True, slots=True)
class Parts:
    """Stretches of bytes that are messages.

    Part i is of message `owner[i]`; a message may have several parts, or no part. `roots` has the
    row of each message. Owners and positions do not fall.
    """

    start: Whole
    end: Whole
    owner: Whole
    roots: Whole


@dataclass(frozen=True, slots=True)
class Found:
    """Occurrences of a field, in the order of their positions.

    owner: the message. start: the value's position. end: its end, or the 64 bits of a VARINT.
    """

    owner: Whole
    start: Whole
    end: Whole

    def take(self, chosen: Any) -> Found:
        """Return chosen occurrences, by index or flag."""
        return Found(self.owner[chosen], self.start[chosen], self.end[chosen])

    def present(self, count: int) -> Flags:
        """Return which of `count` messages have an occurrence."""
        made = np.zeros(count, bool)
        made[self.owner] = True
        return made


NOTHING = Found(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class Occurrences:
    """Occurrences of a field: values by themselves, and values packed into one."""

    alone: Found
    packed: Found = NOTHING


@dataclass(frozen=True, slots=True)
class Layout:
    """Tags of a message's fields, in the order in which they are looked for.

    repeated: tags that may follow themselves. also: tags that are right and rare. refused: numbers
    of fields that may not come with another wire type.
    """

    tags: tuple[int, ...]
    repeated: frozenset[int]
    also: frozenset[int]
    refused: Whole


@dataclass(slots=True)
class _Cursors:
    """Positions in parts that are not read to their ends.

    which: the number of each part. end: the part's end. tag: the next tag, 0 where the part is at
    its end. body: the position behind the tag.
    """

    scan: Scan
    parts: Parts
    which: Whole
    end: Whole
    tag: Whole
    body: Whole

    def rows(self, chosen: Any) -> Whole:
        rows: Whole = self.parts.roots[self.parts.owner[self.which[chosen]]]
        return rows

    def pick(self, chosen: Whole) -> _Cursors:
        columns = (self.which, self.end, self.tag, self.body)
        return _Cursors(self.scan, self.parts, *(column[chosen] for column in columns))

    def go(self, chosen: Any, to: Whole) -> None:
        """Read the tags at these positions."""
        end = self.end[chosen]
        byte = self.scan.wire.data[to]
        if (byte < 0x80).all():
            self._set(chosen, to + 1, np.where(to < end, np.maximum(byte, _NO_TAG), 0))
            return
        value, after, long = unsigned_at(self.scan.wire.data, to, _TAG_BYTES_MAX)
        inside = to < end
        wrong = inside & ((after > end) | (value > _TAG_MAX))
        if long is not None:
            wrong |= inside & long
        if wrong.any():
            self.scan.faults.add(self.rows(chosen)[wrong], _OVER_32_BITS)
        self._set(chosen, after, np.where(inside & ~wrong, np.maximum(value, _NO_TAG), 0))

    def _set(self, chosen: Any, body: Whole, tag: npt.NDArray[Any]) -> None:
        """Set tags and bodies; all of them in new arrays, as earlier results may be views."""
        if isinstance(chosen, slice):
            self.body, self.tag = body, tag.astype(np.int64)
        else:
            self.body[chosen], self.tag[chosen] = body, tag

    def read(self, wire_type: int, chosen: Any) -> tuple[Any, Whole, Whole]:
        """Read on behind values of this wire type. Return the right ones, their starts and ends."""
        start, end = self.body[chosen], self.end[chosen]
        if wire_type == VARINT:
            value, after, long = unsigned_at(self.scan.wire.data, start)
            bounds = start, value.view(np.int64)
        elif wire_type == LENGTH:
            size, begin, long = unsigned_at(self.scan.wire.data, start, _LENGTH_BYTES_MAX)
            after = begin + np.minimum(size, _LENGTH_MAX).astype(np.int64)
            over = size > _LENGTH_MAX
            long = over if long is None else long | over
            bounds = begin, after
        else:
            long, after = None, start + (8 if wire_type == FIXED64 else 4)
            bounds = start, after
        wrong = after > end
        if long is not None:
            wrong |= long
        if wrong.any():
            self.scan.faults.add(self.rows(chosen)[wrong], _TRUNCATED)
            self.go(chosen, np.where(wrong, end, after))
            right = np.flatnonzero(~wrong)
            return right, bounds[0][right], bounds[1][right]
        self.go(chosen, after)
        return slice(None), *bounds


def locate(scan: Scan, parts: Parts, layout: Layout) -> dict[int, Found]:
    """Return the occurrences of each tag of the layout."""
    found: dict[int, list[Found]] = {}
    count = len(parts.start)
    tag, body = np.zeros(count, np.int64), np.zeros(count, np.int64)
    cursors = _Cursors(scan, parts, np.arange(count), parts.end, tag, body)
    cursors.go(slice(None), parts.start)
    while True:
        _pass(cursors, layout, found)
        _others(cursors, layout, found)
        left = np.flatnonzero(cursors.tag)
        if not left.size:
            break
        cursors = cursors.pick(left)
        # A pass looks for each tag, which for so few costs more than a step in Python for each.
        if left.size <= max(_FEW, len(layout.tags)):
            for at in range(left.size):
                _rest(cursors, at, layout, found)
            break
    return {tag: in_order(lists) for tag, lists in found.items()}


def _pass(cursors: _Cursors, layout: Layout, found: dict[int, list[Found]]) -> None:
    total = len(cursors.tag)
    for tag in layout.tags:
        while True:
            hits = cursors.tag == tag
            count = int(np.count_nonzero(hits))
            if not count:
                break
            chosen = slice(None) if count == total else np.flatnonzero(hits)
            _keep(cursors, tag, chosen, found)
            if tag not in layout.repeated or count <= _FEW:
                break


def _keep(cursors: _Cursors, tag: int, chosen: Any, found: dict[int, list[Found]]) -> None:
    right, start, end = cursors.read(tag & 7, chosen)
    owner = cursors.parts.owner[cursors.which[chosen][right]]
    found.setdefault(tag, []).append(Found(owner, start, end))


def _others(cursors: _Cursors, layout: Layout, found: dict[int, list[Found]]) -> None:
    """Read tags that are right and rare, and skip tags that the message does not know."""
    for tag in layout.also:
        chosen = np.flatnonzero(cursors.tag == tag)
        if chosen.size:
            _keep(cursors, tag, chosen, found)
    known = np.array([0, *layout.tags, *layout.also], np.int64)
    unknown = np.flatnonzero(~np.isin(cursors.tag, known))
    if not unknown.size:
        return
    tags = cursors.tag[unknown]
    wrong = np.zeros(len(tags), bool)
    for also_wrong, text in (
        ((tags < 8) | ((tags & 7) > FIXED32), _NOT_A_TAG),
        (((tags & 7) == GROUP) | ((tags & 7) == END_GROUP), _A_GROUP),
        (np.isin(tags >> 3, layout.refused), _OTHER_TYPE),
    ):
        if also_wrong.any():
            cursors.scan.faults.add(cursors.rows(unknown[also_wrong]), text)
            wrong |= also_wrong
    cursors.tag[unknown[wrong]] = 0
    for wire_type in (VARINT, FIXED64, LENGTH, FIXED32):
        chosen = unknown[((tags & 7) == wire_type) & ~wrong]
        if chosen.size:
            cursors.read(wire_type, chosen)


def in_order(lists: list[Found]) -> Found:
    """Return the occurrences of all lists in the order of their positions."""
    if len(lists) == 1:
        return lists[0]
    names = ("owner", "start", "end")
    owner, start, end = (np.concatenate([getattr(each, name) for each in lists]) for name in names)
    return Found(owner, start, end).take(np.argsort(start, kind="stable"))


# One message by itself ------------------------------------------------------------------------


class _Malformed(Exception):
    """The bytes are not a message."""


def _rest(cursors: _Cursors, at: int, layout: Layout, found: dict[int, list[Found]]) -> None:
    """Read the rest of one part, field by field."""
    data, known = cursors.scan.wire.data, {*layout.tags, *layout.also}
    end, tag, body = int(cursors.end[at]), int(cursors.tag[at]), int(cursors.body[at])
    refused, starts = set(layout.refused.tolist()), dict[int, tuple[list[int], list[int]]]()
    try:
        while True:
            if tag not in known and tag >> 3 in refused:
                raise _Malformed(_OTHER_TYPE)
            start, last, after = _value(data, body, end, tag)
            if tag in known:
                begins, ends = starts.setdefault(tag, ([], []))
                begins.append(start)
                ends.append(last)
            if after >= end:
                break
            tag, body = _number(data, after, end, _TAG_BYTES_MAX)
            if tag > _TAG_MAX:
                raise _Malformed(_OVER_32_BITS)
    except _Malformed as error:
        cursors.scan.faults.add(cursors.rows(slice(at, at + 1)), str(error))
        return
    owner = int(cursors.parts.owner[cursors.which[at]])
    for tag, (begins, ends) in starts.items():
        bits = np.array(ends, np.uint64).view(np.int64)
        each = Found(np.full(len(begins), owner), np.array(begins, np.int64), bits)
        found.setdefault(tag, []).append(each)


def _number(data: npt.NDArray[np.uint8], at: int, end: int, bytes_max: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : min(at + bytes_max, end)].tolist()):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise _Malformed(_TRUNCATED)


def _value(data: npt.NDArray[np.uint8], body: int, end: int, tag: int) -> tuple[int, int, int]:
    """Return start and end of the value behind a tag, as in Found, and the next position."""
    wire_type = tag & 7
    if tag < 8 or wire_type > FIXED32:
        raise _Malformed(_NOT_A_TAG)
    if wire_type in (GROUP, END_GROUP):
        raise _Malformed(_A_GROUP)
    if wire_type == VARINT:
        value, after = _number(data, body, end, VARINT_BYTES_MAX)
        return body, value & (2**64 - 1), after
    if wire_type == LENGTH:
        size, body = _number(data, body, end, _LENGTH_BYTES_MAX)
        after = body + size
    else:
        after = body + (8 if wire_type == FIXED64 else 4)
    if after > end:
        raise _Malformed(_TRUNCATED)
    return body, after, after


Read = Callable[[Scan, Parts, int], pa.Array]
"""Reads a number of messages to an array without null of that length."""
