"""Buffers of Arrow arrays: one module reads them, and refuses the types that it does not read."""

from __future__ import annotations

import itertools
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import txnlog_spark
from txnlog_kafka.wire.invariants import InvariantViolation
from txnlog_spark.codec.binary import binary_parts, decimal_rows, list_offsets, validity
from txnlog_spark.codec.partitioner import murmur2

BYTES = pa.array([b"", b"ab", None, b"abc"])
LISTS = pa.array([[b"a"], None, [], [b"b", None]], pa.list_(pa.binary()))
RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array([b"a", b"b"]))
OTHERS = [
    BYTES.cast(pa.large_binary()),
    BYTES.cast(pa.string()).cast(pa.large_string()),
    pa.array([b"a"], pa.binary_view()),
    pa.array(["a"], pa.string_view()),
    pa.array([b"abcd"], pa.binary(4)),
    BYTES.dictionary_encode(),
    RUNS,
    LISTS.cast(pa.large_list(pa.binary())),
    pa.array([[b"a"]], pa.list_view(pa.binary())),
    pa.array([[b"a"]], pa.large_list_view(pa.binary())),
    pa.array([[b"a"]], pa.list_(pa.binary(), 1)),
    pa.array([Decimal(1)], pa.decimal256(40, 0)),
    pa.array([{"a": b"a"}]),
    pa.array([1]),
    pa.nulls(1),
]
"""Arrays that no function below reads."""


@pytest.mark.parametrize("array", OTHERS, ids=lambda array: str(array.type).partition("<")[0])
@pytest.mark.parametrize("read", [binary_parts, list_offsets, decimal_rows])
def test_an_array_of_another_type_is_refused_by_its_name(read, array) -> None:
    with pytest.raises(InvariantViolation, match=re.escape(f"type='{array.type}'")):
        read(array)


@pytest.mark.parametrize("array", [BYTES, BYTES.cast(pa.string())], ids=["binary", "string"])
@pytest.mark.parametrize("start", range(5))
def test_a_slice_of_bytes_is_read_from_where_it_begins(array, start) -> None:
    part = array.slice(start)
    at, data = binary_parts(part)
    assert len(at) == len(part) + 1
    found = [data[low:high].tobytes() for low, high in itertools.pairwise(at)]
    assert found == [each or b"" for each in part.cast(pa.binary()).to_pylist()]


def test_an_array_without_offsets_has_no_elements() -> None:
    nothing = pa.Array.from_buffers(pa.binary(), 0, [None, None, pa.py_buffer(b"")])
    assert [each.tolist() for each in binary_parts(nothing)] == [[0], []]


def test_a_slice_of_lists_or_maps_is_read_from_where_it_begins() -> None:
    maps = pa.array([[("a", 1)], [("b", 2), ("c", 3)]], pa.map_(pa.string(), pa.int32()))
    assert list_offsets(LISTS.slice(2)).tolist() == [1, 1, 3]
    assert list_offsets(maps.slice(1)).tolist() == [1, 3]


def test_a_slice_of_decimals_is_read_from_where_it_begins() -> None:
    numbers = pa.array([Decimal(n) for n in (7, -1, 258)], pa.decimal128(10, 0))
    found = [int.from_bytes(row.tobytes(), "little", signed=True) for row in decimal_rows(numbers)]
    assert found == [7, -1, 258]
    assert (decimal_rows(numbers.slice(1)) == decimal_rows(numbers)[1:]).all()


def test_bits_say_which_elements_are_there() -> None:
    valid = np.array([True, False] * 5)
    made = pa.Array.from_buffers(pa.int8(), 10, [validity(valid), pa.py_buffer(bytes(10))])
    assert made.is_valid().to_pylist() == valid.tolist()


def test_keys_of_large_types_are_hashed_as_the_others() -> None:
    usual = murmur2(BYTES.slice(1)).tolist()
    assert murmur2(BYTES.cast(pa.large_binary()).slice(1)).tolist() == usual
    assert murmur2(BYTES.cast(pa.string()).cast(pa.large_string()).slice(1)).tolist() == usual


def test_no_other_module_reads_a_buffer_by_hand() -> None:
    """A second module would have its own list of Arrow types."""
    folder = Path(txnlog_spark.__file__).parent
    by_hand = re.compile(r"\.buffers\(|\.address\b.*pa\.|\.offsets\.to_numpy|__array_interface__")
    found = {
        str(file.relative_to(folder))
        for file in folder.rglob("*.py")
        if by_hand.search(file.read_text())
    }
    # The address of a fetched buffer of bytes, which is no Arrow array.
    assert found == {"codec/binary.py", "codec/decode.py"}
