"""Protobuf columns: any message in any order of its fields, any damage; the official runtime says
what the bytes mean."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import message_factory
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type
from support.spark.protobuf_cases import (
    REFUSED,
    SCALARS,
    FileOfMessages,
    damaged,
    has_odd_entry,
    modern,
    old,
    parsed,
    python_values,
    random_message,
    random_value,
    row_of,
    same,
    shuffled,
    varint,
)

from txnlog_spark.formats.protobuf.decode import protobuf_decoder
from txnlog_spark.formats.protobuf.encode import protobuf_encoder
from txnlog_spark.formats.protobuf.frames import index_prefix, indexes_in, split_frames
from txnlog_spark.formats.protobuf.types import protobuf_type
from txnlog_spark.formats.schema_ids import NoSchema

SEEDS = st.integers(0, 2**32)
ROWS = 20
DESCRIPTORS = {"modern": modern().descriptor("All"), "old": old().descriptor("All")}
DECODERS = {name: protobuf_decoder(each) for name, each in DESCRIPTORS.items()}
ENCODERS = {name: protobuf_encoder(each, protobuf_type(each)) for name, each in DESCRIPTORS.items()}
files = pytest.mark.parametrize("name", list(DESCRIPTORS))


def column(values: list[bytes]) -> pa.Array:
    return pa.array(values, pa.binary())


def check(name: str, values: list[bytes], may_refuse: bool) -> None:
    """Decode together; what is malformed, and what each value is, must be the runtime's."""
    made = DECODERS[name](column(values))
    made.values.validate(full=True)
    rows = python_values(made.values)
    problems = [None] * len(values) if made.problems is None else made.problems.to_pylist()
    assert may_refuse or made.problems is None
    for value, row, problem in zip(values, rows, problems, strict=True):
        if may_refuse and has_odd_entry(DESCRIPTORS[name], value):
            continue
        message = parsed(DESCRIPTORS[name], value)
        if message is None or problem is not None:
            assert message is None or REFUSED.search(problem)
            assert row is None
            assert problem
        else:
            expected = row_of(message)
            assert all(same(row[key], expected[key]) for key in expected)


@files
@given(SEEDS)
def test_each_message_is_read_as_the_official_runtime_reads_it(name: str, seed: int) -> None:
    chosen = random.Random(seed)
    values = [random_message(DESCRIPTORS[name], chosen) for _ in range(ROWS)]
    check(name, [value.SerializeToString() for value in values], may_refuse=False)


@files
@given(SEEDS)
def test_fields_in_any_order_are_read_as_messages_that_are_merged(name: str, seed: int) -> None:
    chosen = random.Random(seed)
    values = []
    for _ in range(ROWS):
        count = chosen.choice((1, 1, 2, 3))
        messages = [random_message(DESCRIPTORS[name], chosen) for _ in range(count)]
        values.append(shuffled(messages, chosen))
    check(name, values, may_refuse=True)


@files
@given(SEEDS)
def test_damage_is_found_where_the_official_runtime_finds_it(name: str, seed: int) -> None:
    chosen = random.Random(seed)
    values = [random_message(DESCRIPTORS[name], chosen).SerializeToString() for _ in range(ROWS)]
    check(name, list(damaged(values, chosen)), may_refuse=True)


@files
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=ROWS))
def test_any_bytes_are_read_or_refused_as_by_the_official_runtime(
    name: str, values: list[bytes]
) -> None:
    check(name, values, may_refuse=True)


@files
@given(SEEDS)
def test_a_value_is_decoded_alone_as_it_is_among_others(name: str, seed: int) -> None:
    chosen = random.Random(seed)
    values = [random_message(DESCRIPTORS[name], chosen).SerializeToString() for _ in range(ROWS)]
    values = list(damaged(values, chosen))
    together = DECODERS[name](column(values))
    for row, value in list(enumerate(values))[:5]:
        alone = DECODERS[name](column([value]))
        ours = python_values(together.values.slice(row, 1))
        assert same(python_values(alone.values), ours)
        assert (alone.problems is None) == (ours[0] is not None)


@files
@given(SEEDS)
def test_what_is_encoded_is_decoded_as_it_was(name: str, seed: int) -> None:
    chosen = random.Random(seed)
    messages = [random_message(DESCRIPTORS[name], chosen) for _ in range(ROWS)]
    array = DECODERS[name](column([each.SerializeToString() for each in messages])).values
    encoded = ENCODERS[name](array)
    encoded.validate(full=True)
    assert encoded.equals(ENCODERS[name](array))  # each time the same bytes
    again = DECODERS[name](encoded)
    assert again.problems is None
    for before, after in zip(python_values(array), python_values(again.values), strict=True):
        for key, value in before.items():
            if key in ("at", "took", "l_at", "m_at"):  # Spark writes milliseconds
                assert _millis(value) == _millis(after[key])
            else:
                assert same(value, after[key]), key


def _millis(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _millis(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_millis(each) for each in value]
    return None if value is None else value // 1000


@given(SEEDS)
def test_a_message_without_times_and_maps_is_written_as_the_official_runtime_does(
    seed: int,
) -> None:
    chosen, descriptor = random.Random(seed), DESCRIPTORS["modern"]
    kept = [f for f in protobuf_type(descriptor) if f.name[:2] in ("a_", "o_", "l_", "u_")]
    type_ = spark.StructType([field for field in kept if field.name != "l_at"])
    names = [field.name for field in type_]
    decode, encode = protobuf_decoder(descriptor, type_), protobuf_encoder(descriptor, type_)
    values = []
    for _ in range(ROWS):
        message = random_message(descriptor, chosen)
        for field in descriptor.fields:
            if field.name not in names:
                message.ClearField(field.name)
        message.a_bytes = message.a_bytes or b"x"  # without, Spark writes it all the same
        values.append(message.SerializeToString(deterministic=True))
    assert encode(decode(column(values)).values).to_pylist() == values


@given(st.data())
def test_some_of_the_fields_are_read_as_they_are_among_all(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(DESCRIPTORS)))
    whole = protobuf_type(DESCRIPTORS[name])
    names = data.draw(st.lists(st.sampled_from(whole.names), unique=True, max_size=5))
    chosen = random.Random(data.draw(SEEDS))
    values = column(
        [random_message(DESCRIPTORS[name], chosen).SerializeToString() for _ in range(ROWS)]
    )
    wanted = spark.StructType([whole[each] for each in names])
    some = protobuf_decoder(DESCRIPTORS[name], wanted)(values).values
    every = DECODERS[name](values).values
    assert some.type == to_arrow_type(wanted, timezone="UTC")
    for each in names:
        assert same(python_values(some.field(each)), python_values(every.field(each)))


@given(st.sampled_from(SCALARS), st.booleans(), SEEDS)
def test_long_lists_of_any_type_are_read_to_their_end(scalar: str, packed: bool, seed: int) -> None:
    mark = "" if scalar in ("string", "bytes") else "packed " if packed else "unpacked "
    file = FileOfMessages("proto3")
    file.message("All", f"repeated {mark}{scalar} a = 7", "int32 b = 9")
    descriptor, chosen = file.descriptor("All"), random.Random(seed)
    values = []
    for _ in range(12):
        message = message_factory.GetMessageClass(descriptor)()
        single = DESCRIPTORS["modern"].fields_by_name[f"a_{scalar}"]
        count = chosen.choice((0, 1, 3, 200))
        message.a.extend([random_value(single, chosen, 0) for _ in range(count)])
        message.b = chosen.randrange(2)
        values.append(message.SerializeToString())
    made = protobuf_decoder(descriptor)(column(values))
    assert made.problems is None
    for value, row in zip(values, python_values(made.values), strict=True):
        assert same(row, row_of(parsed(descriptor, value)))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**32 - 1),
            st.lists(st.integers(0, 2**27), min_size=1, max_size=5),
            st.binary(max_size=9),
        ),
        max_size=20,
    )
)
def test_confluents_frames_are_taken_apart_as_they_were_made(
    frames: list[tuple[int, list[int], bytes]],
) -> None:
    values = [b"\0" + id_.to_bytes(4, "big") + index_prefix(at) + m for id_, at, m in frames]
    made = split_frames(column(values))
    assert made.payloads.to_pylist() == [message for _, _, message in frames]
    keys = [made.keys[number] for number in made.codes.tolist()]
    assert [(id_, indexes_in(rest)) for id_, rest in keys] == [
        (id_, tuple(at)) for id_, at, _ in frames
    ]
    assert len(set(made.keys)) == len(made.keys)


@given(st.lists(st.binary(max_size=16), max_size=20))
def test_any_bytes_are_a_frame_or_say_that_they_are_not(values: list[bytes]) -> None:
    made = split_frames(column(values))
    for value, number, message in zip(
        values, made.codes.tolist(), made.payloads.to_pylist(), strict=True
    ):
        key = made.keys[number]
        if isinstance(key, NoSchema):
            assert message == value
        else:
            assert value == b"\0" + key[0].to_bytes(4, "big") + key[1] + message
            indexes_in(key[1])


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_varints_of_all_sizes(values: list[int]) -> None:
    file = FileOfMessages("proto3")
    file.message("All", "repeated uint64 a = 1")
    packed = b"".join(varint(value) for value in values)
    value = b"\x0a" + varint(len(packed)) + packed
    made = protobuf_decoder(file.descriptor("All"))(column([value]))
    assert made.values.to_pylist()[0]["a"] == np.array(values, np.uint64).view(np.int64).tolist()


@st.composite
def files_of_any_fields(draw: st.DrawFn) -> FileOfMessages:
    """A file whose message `All` has any fields, and within it messages of any fields."""
    syntax = draw(st.sampled_from(["proto2", "proto3"]))
    file = FileOfMessages(syntax)
    file.enum("Status", NEW=0, PAID=1, SENT=-2)
    messages: list[str] = []
    for name in ("Third", "Second", "All"):
        numbers = draw(st.lists(st.integers(1, 18_999), unique=True, min_size=1, max_size=6))
        fields = [
            f"{draw(_types(messages, syntax))} f{at} = {number}"
            for at, number in enumerate(numbers)
        ]
        file.message(name, *fields)
        messages.append(name)
    return file


@st.composite
def _types(draw: st.DrawFn, messages: list[str], syntax: str) -> str:
    type_ = draw(st.sampled_from([*SCALARS, "enum:Status", *messages, *messages]))
    marks = ["", "repeated", "map", "oneof choice"]
    marks += ["required"] if syntax == "proto2" else []
    mark = draw(st.sampled_from(marks))
    if mark == "map":
        key = draw(st.sampled_from(["string", "int32", "bool", "fixed64", "sint64"]))
        return f"map<{key},{type_}>"
    packs = type_ not in ("string", "bytes", *messages)
    if mark == "repeated" and packs:
        mark += draw(st.sampled_from(["", " packed", " unpacked"]))
    return f"{mark} {type_}"


@given(files_of_any_fields(), SEEDS)
def test_messages_of_any_schema_are_read_and_written_and_read_again(
    file: FileOfMessages, seed: int
) -> None:
    descriptor, chosen = file.descriptor("All"), random.Random(seed)
    values = [
        shuffled([random_message(descriptor, chosen) for _ in range(chosen.choice((1, 2)))], chosen)
        for _ in range(12)
    ]
    values += [random_message(descriptor, chosen).SerializeToString() for _ in range(12)]
    decode = protobuf_decoder(descriptor)
    problems = decode(column(values)).problems
    if problems is not None:
        assert all(REFUSED.search(each) for each in problems.drop_null().to_pylist())
        values = column(values).filter(problems.is_null()).to_pylist()
    made = decode(column(values))
    assert made.problems is None
    made.values.validate(full=True)
    rows = python_values(made.values)
    for value, row in zip(values, rows, strict=True):
        assert same(row, row_of(parsed(descriptor, value)))
    encoded = protobuf_encoder(descriptor, protobuf_type(descriptor))(made.values)
    again = decode(encoded)
    assert again.problems is None
    assert same(python_values(again.values), rows)
    for value, row in zip(encoded.to_pylist(), rows, strict=True):
        assert same(row, row_of(parsed(descriptor, value)))
