"""Strings as Jackson writes them between quotes, for arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.binary import binary_parts
from txnlog_spark.json.text import ESCAPES, java_text

_WIDTH = 6
_SIZES = np.ones(256, np.uint8)
_BYTES = np.zeros((256, _WIDTH), np.uint8)
for _code in range(256):
    _text = ESCAPES.get(chr(_code), "").encode() or bytes([_code])
    _SIZES[_code] = len(_text)
    _BYTES[_code, : len(_text)] = list(_text)


def escape(array: pa.Array) -> pa.Array:
    """The characters of strings without null, as they are between the quotes of a JSON string."""
    array = _valid(array)
    offsets, data = binary_parts(array)
    data = data[offsets[0] : offsets[-1]]
    special = (data < 32) | (data == ord('"')) | (data == ord("\\"))
    if not special.any():
        return array
    places = np.flatnonzero(special) + offsets[0]
    rows = np.searchsorted(offsets, places, side="right") - 1
    wrong = np.zeros(len(array), bool)
    wrong[rows] = True
    mask = pa.array(wrong)
    return pc.replace_with_mask(array, mask, _escaped(array.filter(mask)))


def _valid(array: pa.Array) -> pa.Array:
    """Spark's strings are any bytes; Java replaces what is not UTF-8."""
    try:
        return array.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(map(java_text, array.cast(pa.binary()).to_pylist()), pa.string())


def _escaped(array: pa.Array) -> pa.Array:
    offsets, data = binary_parts(array)
    data = data[offsets[0] : offsets[-1]]
    sizes = _SIZES[data]
    ends: np.ndarray[Any, Any] = np.zeros(len(data) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    made = np.empty(int(ends[-1]), np.uint8)
    made[ends[:-1]] = _BYTES[data, 0]
    longer = np.flatnonzero(sizes > 1)
    for place in range(1, _WIDTH):
        has = longer[sizes[longer] > place]
        made[ends[has] + place] = _BYTES[data[has], place]
    bounds = ends[offsets - offsets[0]]
    buffers = [None, pa.py_buffer(bounds.tobytes()), pa.py_buffer(made.tobytes())]
    return pa.Array.from_buffers(pa.string(), len(array), buffers)
