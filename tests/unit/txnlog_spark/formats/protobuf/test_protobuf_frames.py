"""Confluent's frame: schema id and message indexes before a Protobuf message."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.spark.protobuf_cases import FileOfMessages

from txnlog_spark.formats.errors import ProtobufSchemaError
from txnlog_spark.formats.protobuf.frames import (
    index_prefix,
    indexes_in,
    message_at,
    message_indexes,
    split_frames,
)
from txnlog_spark.formats.schema_ids import NoSchema

HEADER = b"\0\0\0\1\2"


def split(*values: bytes):
    """Schema id, indexes and message of each value, None for one without a frame."""
    return taken_apart(pa.array(values, pa.binary()))


def taken_apart(values):
    made = split_frames(values)
    rows = zip(made.codes.tolist(), made.payloads.to_pylist(), strict=True)
    return [of_key(made.keys[code], message) for code, message in rows]


def of_key(key, message):
    return None if isinstance(key, NoSchema) else (key[0], indexes_in(key[1]), message)


def test_each_value_has_its_schema_its_indexes_and_its_message():
    other = b"\0\xff\0\0\0"
    made = split(HEADER + b"\0abc", HEADER + b"\4\2\6x", other + b"\0", HEADER + b"\0")
    assert made == [
        (0x102, (0,), b"abc"),
        (0x102, (1, 3), b"x"),
        (0xFF000000, (0,), b""),
        (0x102, (0,), b""),
    ]


def test_the_long_form_of_the_first_message_is_the_same_message():
    assert split(HEADER + b"\0abc", HEADER + b"\2\0abc") == [(0x102, (0,), b"abc")] * 2


@pytest.mark.parametrize(
    "value",
    [
        b"", b"\0", HEADER, b"\1\0\0\0\1\0abc", HEADER + b"\2", HEADER + b"\4\2", HEADER + b"\1",
        HEADER + b"\2\1", HEADER + b"\x80", HEADER + b"\xff\xff\xff\xff\x0f", HEADER + b"\2\x80",
        HEADER + b"\x80\x80\x80\x80\x80\0abc", HEADER + b"\x7e" + b"\0" * 100,
    ],
)  # fmt: skip
def test_what_has_no_frame_says_so_and_leaves_the_others(value):
    made = split(HEADER + b"\0abc", value, HEADER + b"\2\2d")
    assert made == [(0x102, (0,), b"abc"), None, (0x102, (1,), b"d")]


def test_a_slice_of_an_array_is_split_as_an_array_of_its_own():
    whole = pa.array([b"junk", HEADER + b"\0a", HEADER + b"\0bc"], pa.binary())
    assert [message for _, _, message in taken_apart(whole.slice(1))] == [b"a", b"bc"]
    assert taken_apart(whole.slice(0, 0)) == []


@pytest.mark.parametrize("indexes", [(0,), (1,), (0, 0), (3, 200, 1), (63,), (64,), (10**6, 2)])
def test_a_prefix_is_read_as_it_was_written(indexes):
    assert split(HEADER + index_prefix(indexes) + b"abc") == [(0x102, indexes, b"abc")]


@pytest.mark.parametrize("prefix", [b"", b"\1", b"\2", b"\2\1", b"\x80", b"\x7e" + b"\0" * 100])
def test_a_header_without_indexes_has_no_schema(prefix):
    with pytest.raises(NoSchema, match="not a message's indexes"):
        indexes_in(prefix)


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
