"""Confluent's frame: schema id and message indexes before a Protobuf message."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.spark.protobuf_cases import FileOfMessages

from txnlog_spark.protobuf.errors import ProtobufSchemaError
from txnlog_spark.protobuf.frames import (
    index_prefix,
    message_at,
    message_indexes,
    split_indexes,
)

HEADER = b"\0\0\0\1\2"


def split(*values: bytes):
    return split_indexes(pa.array(values, pa.binary()))


def test_each_value_has_its_schema_its_indexes_and_its_message():
    other = b"\0\xff\0\0\0"
    made = split(HEADER + b"\0abc", HEADER + b"\4\2\6x", other + b"\0", HEADER + b"\0")
    assert made.kinds == [(0x102, (0,)), (0x102, (1, 3)), (0xFF000000, (0,))]
    assert made.kind.tolist() == [0, 1, 2, 0]
    assert made.messages.to_pylist() == [b"abc", b"x", b"", b""]
    assert made.problems is None


def test_the_long_form_of_the_first_message_is_the_same_kind():
    made = split(HEADER + b"\0abc", HEADER + b"\2\0abc")
    assert made.kinds == [(0x102, (0,))]
    assert made.messages.to_pylist() == [b"abc", b"abc"]


@pytest.mark.parametrize(
    "value",
    [
        b"", b"\0", HEADER, b"\1\0\0\0\1\0abc", HEADER + b"\2", HEADER + b"\4\2", HEADER + b"\1",
        HEADER + b"\2\1", HEADER + b"\x80", HEADER + b"\xff\xff\xff\xff\x0f", HEADER + b"\2\x80",
        HEADER + b"\x80\x80\x80\x80\x80\0abc", HEADER + b"\x7e" + b"\0" * 100,
    ],
)  # fmt: skip
def test_what_has_no_frame_is_null_and_leaves_the_others(value):
    made = split(HEADER + b"\0abc", value, HEADER + b"\2\2d")
    assert made.messages.to_pylist() == [b"abc", None, b"d"]
    assert made.kind.tolist() == [0, -1, 1]
    assert [text is None for text in made.problems.to_pylist()] == [True, False, True]


def test_a_slice_of_an_array_is_split_as_an_array_of_its_own():
    whole = pa.array([b"junk", HEADER + b"\0a", HEADER + b"\0bc"], pa.binary())
    assert split_indexes(whole.slice(1)).messages.to_pylist() == [b"a", b"bc"]
    assert split_indexes(whole.slice(0, 0)).kinds == []


@pytest.mark.parametrize("indexes", [(0,), (1,), (0, 0), (3, 200, 1), (63,), (64,), (10**6, 2)])
def test_a_prefix_is_read_as_it_was_written(indexes):
    made = split(HEADER + index_prefix(indexes) + b"abc")
    assert made.kinds == [(0x102, indexes)]
    assert made.messages.to_pylist() == [b"abc"]


def test_the_bytes_of_prefixes_are_confluents():
    assert [index_prefix(each) for each in [(0,), (1,), (1, 0), (0, 64)]] == [
        b"\0", b"\2\2", b"\4\2\0", b"\4\0\x80\1",
    ]  # fmt: skip


def test_indexes_name_messages_of_a_file_and_messages_within_them():
    file = FileOfMessages("proto3")
    file.message("First", "int32 a = 1")
    file.message("Second", "map<string,int32> m = 1")
    file.proto.message_type[1].nested_type.add(name="Inner")
    inner = file.descriptor("Second.Inner")
    assert message_indexes(inner) == (1, 1)
    assert message_at(inner.file, (1, 1)) is inner
    assert message_at(inner.file, (0,)).name == "First"
    with pytest.raises(ProtobufSchemaError, match=r"no message with the indexes \[1, 2\]"):
        message_at(inner.file, (1, 2))
