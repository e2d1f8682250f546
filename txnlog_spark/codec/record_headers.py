"""The headers of records as a column: lists of name and value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from txnlog_kafka.wire.varint import decode_signed
from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.binary import (
    binary_parts,
    check_within,
    cut_out_fields,
    list_offsets,
    offsets_from,
)
from txnlog_spark.codec.varints import Int64Array, read_varints

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""Spark's header column."""

FEW = 16
"""Number of records with one more header up to which they are read one after the other."""

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")

_Round = tuple[Int64Array, ...]
"""Columns of some headers: record, begin and end of the name, begin and end of the value, and the
length of the value."""


def decode_headers(
    body: bytes | bytearray, counts: Int64Array, starts: Int64Array, ends: Int64Array
) -> Any:
    """The header lists of records whose headers are `counts` many, and from start to end.

    One round reads the next header of every record that has one more, until few have. Raises
    ValueError, IndexError or MalformedVarint for other bytes.
    """
    if bool((counts < 0).any()) or bool((counts > ends - starts).any()):
        raise ValueError("a header count is out of its record")
    data = np.frombuffer(body, np.uint8)
    at = starts.copy()
    rounds: list[_Round] = []
    rows = np.flatnonzero(counts)
    index = 0
    while len(rows) > FEW:
        name_lengths, name_starts = read_varints(data, at[rows])
        name_ends = name_starts + name_lengths
        lengths, content_starts = read_varints(data, name_ends)
        content_ends = content_starts + np.maximum(lengths, 0)
        check_within(name_starts, name_ends, ends[rows])
        check_within(content_starts, content_ends, ends[rows])
        at[rows] = content_ends
        rounds.append((rows, name_starts, name_ends, content_starts, content_ends, lengths))
        index += 1
        rows = rows[counts[rows] > index]
    if len(rows):
        rounds.append(_read_few(body, rows, counts - index, at))
    if bool(((counts > 0) & (at != ends)).any()):
        raise ValueError("bytes are left after the last header of a record")
    offsets = pa.array(offsets_from(counts))
    return pa.ListArray.from_arrays(offsets, _header_items(body, rounds), type=HEADERS_TYPE)


def names_within(
    body: bytes | bytearray, names: Sequence[str], starts: Int64Array, ends: Int64Array
) -> list[str]:
    """Return the names whose bytes occur in the headers of records, from start to end each."""
    some = ends - starts >= min(map(len, names))
    if not some.any():
        return []
    offsets, data = binary_parts(cut_out_fields(body, starts[some], ends[some], ~some[some]))
    found = data[offsets[0] : offsets[-1]].tobytes()
    return [name for name in names if name.encode() in found]


def last_contents(headers: Any, name: str) -> Any:
    """Return the content of each record's last header of this name, None if no record has one.

    `headers` are those of `decode_headers`. The array has null where a record has no such header,
    and no bytes for a null in it.
    """
    items = headers.values
    found = np.flatnonzero(pc.equal(items.field("key"), name).to_numpy(zero_copy_only=False))
    if not len(found):
        return None
    places = np.full(len(headers), -1)
    # Of several headers of one record the last assignment stays.
    places[np.searchsorted(list_offsets(headers), found, "right") - 1] = found
    contents = items.field("value").fill_null(b"")
    return contents.take(pa.array(places, mask=places < 0))


def _read_few(
    body: bytes | bytearray, rows: Int64Array, counts: Int64Array, at: Int64Array
) -> _Round:
    """Return all further headers of these records, `counts` of each record; move `at` behind them.

    Each header begins where the header before ends. So if the last header of a record ends inside
    the record, all of its headers are inside.
    """
    found: list[tuple[int, ...]] = []
    for row in rows.tolist():
        position = int(at[row])
        for _ in range(int(counts[row])):
            length, name_start = decode_signed(body, position)
            if length < 0:
                raise ValueError("a header has a name of negative length")
            name_end = name_start + length
            length, start = decode_signed(body, name_end)
            position = start + max(length, 0)
            found.append((row, name_start, name_end, start, position, max(length, -1)))
        at[row] = position
    return tuple(np.array(found, np.int64).T)


def _header_items(body: bytes | bytearray, rounds: list[_Round]) -> Any:
    """The rounds' headers in the order of their records, as struct<key, value>."""
    if not rounds:
        return pa.array([], HEADERS_TYPE.value_type)
    columns = [np.concatenate(parts) for parts in zip(*rounds, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    _, name_starts, name_ends, starts, ends, lengths = (column[order] for column in columns)
    names = key_texts(cut_out_fields(body, name_starts, name_ends, np.zeros(len(order), np.bool_)))
    contents = cut_out_fields(body, starts, ends, lengths < 0)
    return pa.StructArray.from_arrays([names, contents], fields=list(HEADERS_TYPE.value_type))


def key_texts(names: Any) -> Any:
    """Header keys as strings. Bytes that are not UTF-8 become U+FFFD, as in Java's clients."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        # Java replaces a surrogate's three bytes by one character, Python by three.
        whole = (_SURROGATE.sub(b"\xff", name) for name in names.to_pylist())
        return pa.array([name.decode("utf-8", "replace") for name in whole])
