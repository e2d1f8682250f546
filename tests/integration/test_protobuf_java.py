"""Protobuf columns against protobuf-java, used as Spark's from_protobuf and to_protobuf use it:
the same values, the same refusals, the same bytes."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from support.harness.availability import available
from support.spark.protobuf_cases import (
    REFUSED,
    FileOfMessages,
    damaged,
    modern,
    old,
    parsed,
    python_values,
    random_message,
    row_of,
    same,
    shuffled,
)
from support.spark.protobuf_java import ask_java, protobuf_java_jar, text_of

from txnlog_spark.formats.protobuf.decode import protobuf_decoder
from txnlog_spark.formats.protobuf.encode import protobuf_encoder
from txnlog_spark.formats.protobuf.types import protobuf_type

pytestmark = [pytest.mark.slow, pytest.mark.weekly(day=4)]

ROWS = 1000
files = pytest.mark.parametrize("file", [modern(), old()], ids=["modern", "old"])


@pytest.fixture(scope="module")
def jar() -> Path:
    return available(protobuf_java_jar)


def messages(file: FileOfMessages, seed: int, rows: int = ROWS) -> list[bytes]:
    chosen = random.Random(seed)
    descriptor = file.descriptor("All")
    made = [random_message(descriptor, chosen).SerializeToString() for _ in range(rows // 2)]
    for _ in range(rows // 2):
        both = [random_message(descriptor, chosen) for _ in range(chosen.choice((1, 2, 3)))]
        made.append(shuffled(both, chosen))
    return made


@files
def test_each_value_is_read_and_written_byte_for_byte_as_in_java(jar, file):
    descriptor, values = file.descriptor("All"), messages(file, 1)
    found = protobuf_decoder(descriptor)(pa.array(values, pa.binary()))
    assert all(REFUSED.search(each) for each in found.problems.drop_null().to_pylist())
    values = pa.array(values, pa.binary()).filter(found.problems.is_null()).to_pylist()
    assert len(values) > ROWS // 2
    made = protobuf_decoder(descriptor)(pa.array(values, pa.binary())).values
    written = protobuf_encoder(descriptor, protobuf_type(descriptor))(made).to_pylist()
    theirs = ask_java(jar, file.descriptor_set(), "All", values)
    for ours, bytes_, answer in zip(made, written, theirs, strict=True):
        assert text_of(ours) == answer.text
        assert bytes_ == answer.written


@files
def test_damage_is_refused_where_java_refuses_it(jar, file):
    """Java and Python differ for overlong numbers alone; there the decoder agrees with Python."""
    descriptor, values = file.descriptor("All"), list(damaged(messages(file, 3), random.Random(2)))
    made = protobuf_decoder(descriptor)(pa.array(values, pa.binary()))
    theirs = ask_java(jar, file.descriptor_set(), "All", values)
    rows, refused, different = python_values(made.values), 0, 0
    problems = made.problems.to_pylist()
    for value, ours, row, answer, problem in zip(
        values, made.values, rows, theirs, problems, strict=True
    ):
        refused += answer is None
        if problem is not None and REFUSED.search(problem):
            continue
        if (row is None) != (answer is None) or (answer and text_of(ours) != answer.text):
            different += 1
            message = parsed(descriptor, value)
            assert same(row, None if message is None else row_of(message))
    assert refused > ROWS / 10
    assert different < 5


def compared(jar, file: FileOfMessages, values: list[bytes]) -> list[int]:
    """Compare each value with Java's; return the numbers of values that are refused here alone."""
    made = protobuf_decoder(file.descriptor("All"))(pa.array(values, pa.binary()))
    answers = ask_java(jar, file.descriptor_set(), "All", values)
    rows = zip(made.values, made.problems.to_pylist(), answers, strict=True)
    refused = []
    for at, (row, problem, answer) in enumerate(rows):
        if answer is not None and problem is not None and REFUSED.search(problem):
            refused.append(at)
        else:
            assert text_of(row) == (answer.text if answer else "null")
    return refused


def test_entries_of_maps_that_pythons_runtime_does_not_know_are_read_as_in_java(jar):
    file = FileOfMessages("proto2")
    file.enum("Status", NEW=0, PAID=1)
    file.message("In", "int32 x = 1 default 5")
    file.message("All", "map<string,enum:Status> m = 1", "map<string,int32> n = 2",
                 "map<bool,In> i = 3")  # fmt: skip
    values = [
        b"\x0a\4\x0a\0\x10\x63", b"\x12\7\x0a\1k\x10\5\x18\1", b"\x12\7\x0d\0\0\0\0\x10\1",
        b"\x0a\0", b"\x12\3\x0a\1k\x12\5\x0a\1k\x10\1", b"\x1a\0", b"\x1a\4\x12\0\x12\0",
        b"\x1a\2\x10\1", b"\x12\3\x0a\1\xff", b"\x12\1\x0a", b"\x10\1",
    ]  # fmt: skip
    assert compared(jar, file, values) == [0, 2, 7]


def test_numbers_without_a_name_in_a_closed_enum_are_refused(jar):
    file = FileOfMessages("proto2")
    file.enum("Status", NEW=0, PAID=1)
    file.message("Needs", "required enum:Status e = 1")
    file.message("Either", "oneof c enum:Status e = 1", "oneof c int32 x = 2",
                 "repeated enum:Status l = 3", "enum:Status d = 4 default PAID")  # fmt: skip
    file.message("All", "Needs n = 1", "Either o = 2", "repeated Either l = 3", "enum:Status e = 4")
    values = [
        b"\x0a\2\x08\1", b"\x0a\2\x08\x63", b"\x12\4\x10\5\x08\x63", b"\x12\4\x10\5\x08\1",
        b"\x1a\6\x18\x63\x18\1\x20\x63", b"\x1a\5\x1a\3\1\x63\0", b"\x20\x63", b"\x20\1",
    ]  # fmt: skip
    assert compared(jar, file, values) == [2, 3, 4, 5]
