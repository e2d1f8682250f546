"""Protobuf messages as Spark's rows, case by case.

The bytes are written by hand; the expected rows were looked up with protobuf-java's
DynamicMessage, which Spark's from_protobuf reads.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type
from support.spark.protobuf_cases import FileOfMessages, modern, old, python_values, varint

from txnlog_spark.formats.errors import ProtobufSchemaError
from txnlog_spark.formats.protobuf.decode import protobuf_decoder
from txnlog_spark.formats.protobuf.encode import protobuf_encoder
from txnlog_spark.formats.protobuf.types import protobuf_type


def small(syntax: str, *fields: str, others: dict[str, tuple[str, ...]] | None = None) -> Any:
    """A decoder of a message with these fields, which gives values, problems by row."""
    file = FileOfMessages(syntax)
    file.enum("Status", NEW=0, PAID=1, SENT=-2)
    for name, its in (others or {}).items():
        file.message(name, *its)
    file.message("All", *fields)
    decode = protobuf_decoder(file.descriptor("All"))

    def decoded(*values: bytes) -> Any:
        made = decode(pa.array(values, pa.binary()))
        made.values.validate(full=True)
        problems = [None] * len(values) if made.problems is None else made.problems.to_pylist()
        for value, problem in zip(python_values(made.values), problems, strict=True):
            assert (value is None) == (problem is not None)
        return python_values(made.values), problems

    return decoded


def column(decoded: Any, *values: bytes, name: str = "a") -> list[Any]:
    rows, problems = decoded(*values)
    assert problems == [None] * len(values), problems
    return [row[name] for row in rows]


# Presence -------------------------------------------------------------------------------------


def test_a_field_without_presence_is_null_when_it_is_absent_or_its_default():
    number = small("proto3", "int32 a = 1")
    assert column(number, b"", b"\x08\0", b"\x08\5", b"\x08\5\x08\0") == [None, None, 5, None]
    text = small("proto3", "string a = 1")
    assert column(text, b"", b"\x0a\0", b"\x0a\1x", b"\x0a\1x\x0a\0") == [None, None, "x", None]
    enum = small("proto3", "enum:Status a = 1")
    assert column(enum, b"", b"\x08\0", b"\x08\1") == [None, None, "PAID"]


def test_minus_zero_is_not_the_default():
    double = small("proto3", "double a = 1")
    zero, minus = b"\x09" + bytes(8), b"\x09" + bytes(7) + b"\x80"
    assert str(column(double, zero, minus)) == "[None, -0.0]"


@pytest.mark.parametrize("mark", ["optional ", "oneof choice "])
def test_a_field_with_presence_keeps_its_default(mark):
    number = small("proto3", f"{mark}int32 a = 1")
    assert column(number, b"", b"\x08\0") == [None, 0]
    text = small("proto3", f"{mark}string a = 1")
    assert column(text, b"", b"\x0a\0") == [None, ""]


def test_a_default_of_proto2_stands_for_what_is_absent():
    decoded = small(
        "proto2", "int32 a = 1 default -3", "uint64 u = 2 default 18446744073709551615",
        "string s = 3 default x", "bytes b = 4 default y", "bool t = 5 default true",
        "enum:Status e = 6 default SENT", "float f = 7 default 1.5", "int32 plain = 8",
    )  # fmt: skip
    rows, _ = decoded(b"", b"\x08\0\x1a\0")
    assert rows[0] == {
        "a": -3, "u": -1, "s": "x", "b": b"y", "t": True, "e": "SENT", "f": 1.5, "plain": None,
    }  # fmt: skip
    assert (rows[1]["a"], rows[1]["s"]) == (0, "")


def test_a_list_and_a_map_are_empty_and_never_null():
    decoded = small("proto3", "repeated int32 a = 1", "map<string,int32> m = 2")
    assert decoded(b"")[0] == [{"a": [], "m": {}}]


def test_a_message_is_null_or_has_its_fields():
    decoded = small("proto3", "In a = 1", others={"In": ("int32 x = 1", "string s = 2")})
    assert column(decoded, b"", b"\x0a\0", b"\x0a\2\x08\5") == [
        None, {"x": None, "s": None}, {"x": 5, "s": None},
    ]  # fmt: skip


# Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "bytes_", "expected"),
    [
        ("int32", b"\x08" + b"\xff" * 9 + b"\1", -1),
        ("int32", b"\x08\xff\xff\xff\xff\x0f", -1),
        ("int32", b"\x08\x85\x80\x80\x80\x10", 5),
        ("uint32", b"\x08\xff\xff\xff\xff\x0f", -1),
        ("sint32", b"\x08\xff\xff\xff\xff\x0f", -(2**31)),
        ("sint32", b"\x08\xfe\xff\xff\xff\xff\x0f", 2**31 - 1),
        ("sint64", b"\x08" + b"\xff" * 9 + b"\1", -(2**63)),
        ("int64", b"\x08" + b"\xff" * 9 + b"\x7f", -1),
        ("uint64", b"\x08" + b"\xff" * 9 + b"\1", -1),
        ("bool", b"\x08\x80\x80\x80\x80\x10", True),
        ("fixed32", b"\x0d\xff\xff\xff\xff", -1),
        ("sfixed64", b"\x09\1\0\0\0\0\0\0\x80", -(2**63) + 1),
        ("bytes", b"\x0a\2\xff\0", b"\xff\0"),
        ("string", b"\x0a\4\xf0\x9d\x84\x9e", "𝄞"),
    ],
)
def test_a_number_has_the_bits_that_its_type_takes(type_, bytes_, expected):
    assert column(small("proto3", f"{type_} a = 1"), bytes_, bytes_) == [expected, expected]


def test_a_tag_and_a_length_may_be_longer_than_they_need_be():
    decoded = small("proto3", "int32 a = 1", "string s = 2")
    rows, _ = decoded(b"\x88\x80\0\5", b"\x08\5\x92\0\x82\x80\0ab")
    assert rows == [{"a": 5, "s": None}, {"a": 5, "s": "ab"}]


def test_a_number_without_a_name_in_an_open_enum_has_javas_name():
    decoded = small("proto3", "enum:Status a = 1", "repeated enum:Status l = 2")
    rows, _ = decoded(b"\x08\x63\x12\2\1\x09", b"\x08" + b"\xfe" + b"\xff" * 8 + b"\1")
    assert rows[0] == {
        "a": "UNKNOWN_ENUM_VALUE_Status_99",
        "l": ["PAID", "UNKNOWN_ENUM_VALUE_Status_9"],
    }
    assert rows[1]["a"] == "SENT"


def test_a_number_without_a_name_in_a_closed_enum_is_malformed_at_any_depth():
    within = {"In": ("enum:Status e = 1", "repeated enum:Status l = 2")}
    decoded = small(
        "proto2", "enum:Status a = 1", "In i = 2", "map<string,enum:Status> m = 3", others=within
    )
    _, problems = decoded(
        b"\x08\x63", b"\x12\4\x10\1\x10\x63", b"\x12\2\x08\x63", b"\x1a\5\x0a\1k\x10\x63"
    )
    assert problems == [
        f"a number of {name} is not one of the enum Status" for name in ("a", "l", "e", "value")
    ]


def test_of_several_names_of_a_number_the_first_counts():
    file = FileOfMessages("proto3")
    file.enum("Status", NEW=0, OPEN=0, PAID=1)
    file.proto.enum_type[0].options.allow_alias = True
    file.message("All", "optional enum:Status a = 1")
    made = protobuf_decoder(file.descriptor("All"))(pa.array([b"\x08\0"], pa.binary()))
    assert made.values.to_pylist() == [{"a": "NEW"}]


@pytest.mark.parametrize(
    ("bytes_", "micros"),
    [
        (b"", 0),
        (b"\x08\1\x10\xe7\x07", 1_000_000),
        (b"\x08\1\x10\xe8\x07", 1_000_001),
        (b"\x10" + varint(2**64 - 1999), -1),
        (b"\x08" + varint(2**64 - 1) + b"\x10\xe8\x07", -999_999),
    ],
)
@pytest.mark.parametrize("name", ["Timestamp", "Duration"])
def test_a_time_has_microseconds_and_the_rest_goes_towards_zero(name, bytes_, micros):
    decoded = small("proto3", f"google.protobuf.{name} a = 1")
    assert column(decoded, varint(10) + varint(len(bytes_)) + bytes_) == [micros]
    assert column(decoded, b"") == [None]


def test_a_time_beyond_64_bits_of_microseconds_is_malformed():
    decoded = small("proto3", "google.protobuf.Timestamp a = 1")
    limits = [2**63 // 10**6 - 3, 2**63 // 10**6 + 3, 2**63 - 1]
    values = [b"\x08" + varint(seconds) for seconds in limits]
    _, problems = decoded(*(b"\x0a" + varint(len(value)) + value for value in values))
    assert problems[0] is None
    assert all("beyond the range of a time" in text for text in problems[1:])


# Several occurrences --------------------------------------------------------------------------


def test_of_a_field_the_last_value_counts_and_messages_are_merged():
    decoded = small(
        "proto3", "int32 a = 1", "In i = 2",
        others={"In": ("int32 x = 1", "string s = 2", "repeated int32 l = 3")},
    )  # fmt: skip
    rows, _ = decoded(b"\x08\1\x12\4\x08\5\x18\1\x08\2\x12\5\x12\1z\x18\2\x12\2\x08\7")
    assert rows == [{"a": 2, "i": {"x": 7, "s": "z", "l": [1, 2]}}]


def test_packed_and_other_values_of_a_list_are_read_in_their_order():
    decoded = small("proto3", "repeated int32 a = 1", "repeated unpacked fixed32 f = 2")
    rows, _ = decoded(b"\x08\3\x0a\2\1\2\x0a\0\x08\4\x12\x08\1\0\0\0\2\0\0\0\x15\3\0\0\0")
    assert rows == [{"a": [3, 1, 2, 4], "f": [1, 2, 3]}]


def test_a_message_with_several_members_of_a_oneof_is_malformed():
    fields = ("oneof c int32 x = 1", "oneof c string s = 2", "oneof c In i = 3")
    decoded = small("proto3", *fields, others={"In": ("int32 y = 1", "int32 z = 2")})
    rows, problems = decoded(
        b"\x08\1\x12\1q", b"\x12\1q\x08\1", b"\x1a\2\x08\5\x1a\2\x10\6", b"\x08\1"
    )
    assert problems == [*["several members of the oneof c are there"] * 2, None, None]
    assert rows[2:] == [
        {"x": None, "s": None, "i": {"y": 5, "z": 6}},
        {"x": 1, "s": None, "i": None},
    ]


def test_the_entries_of_a_map_have_defaults_and_may_have_the_same_key():
    decoded = small(
        "proto3", "map<string,int32> a = 1", "map<int32,In> m = 2", others={"In": ("int32 x = 1",)}
    )
    made = decoded(b"\x0a\0", b"\x0a\3\x0a\1k\x0a\5\x0a\1k\x10\2", b"\x12\0", b"\x12\4\x12\2\x08\5")
    assert [row["a"] for row in made[0]] == [{"": 0}, {"k": 2}, {}, {}]
    assert [row["m"] for row in made[0]] == [{}, {}, {0: {"x": None}}, {0: {"x": 5}}]
    file = FileOfMessages("proto3")
    file.message("All", "map<string,int32> a = 1")
    twice = protobuf_decoder(file.descriptor("All"))(
        pa.array([b"\x0a\3\x0a\1k\x0a\5\x0a\1k\x10\2"], pa.binary())
    )
    assert twice.values.to_pylist() == [{"a": [("k", 0), ("k", 2)]}]


def test_groups_are_refused_in_a_schema_and_malformed_in_a_value():
    groups = ("int32 b = 2", "group:In a = 1")
    with pytest.raises(ProtobufSchemaError, match=r"the field shop\.All\.a is a group"):
        small("proto2", *groups, others={"In": ("int32 x = 1",)})
    file = FileOfMessages("proto2")
    file.message("In", "int32 x = 1")
    file.message("All", *groups)
    without = protobuf_decoder(file.descriptor("All"), spark.StructType().add("b", INT))
    made = without(pa.array([b"\x10\5", b"\x10\5\x0b\x08\5\x0c"], pa.binary()))
    assert made.values.to_pylist() == [{"b": 5}, None]
    assert made.problems[1].as_py() == "it has a group, which is not read"


def test_what_is_unknown_is_skipped():
    decoded = small("proto3", "int32 a = 1")
    unknown = b"\x10\1\x19" + bytes(8) + b"\x22\2ab\x2d\0\0\0\0"
    assert column(decoded, unknown + b"\x08\5", b"\x08\5" + unknown, unknown) == [5, 5, None]


def test_an_edition_has_what_its_features_say():
    file = FileOfMessages("editions")
    file.proto.edition = descriptor_pb2.EDITION_2023
    file.enum("Status", NEW=0, PAID=1)
    file.message("In", "int32 x = 1")
    file.message(
        "All", "int32 a = 1", "string s = 2", "string t = 3", "In i = 4", "int32 z = 5",
        "enum:Status e = 6", "repeated int32 l = 7",
    )  # fmt: skip
    features = descriptor_pb2.FeatureSet
    fields = {field.name: field.options.features for field in file.proto.message_type[1].field}
    fields["t"].utf8_validation = features.NONE
    fields["z"].field_presence = features.IMPLICIT
    fields["l"].repeated_field_encoding = features.EXPANDED
    file.proto.enum_type[0].options.features.enum_type = features.CLOSED
    descriptor = file.descriptor("All")
    values = [
        b"\x08\0\x28\0\x22\2\x08\5\x30\1\x38\1\x3a\1\2",
        b"\x12\1\xff", b"\x1a\1\xff", b"\x30\7",
    ]  # fmt: skip
    made = protobuf_decoder(descriptor)(pa.array(values, pa.binary()))
    assert made.problems.to_pylist() == [
        None, "the bytes of s are not UTF-8", "the bytes of t are not UTF-8",
        "a number of e is not one of the enum Status",
    ]  # fmt: skip
    assert made.values[0].as_py() == {
        "a": 0, "s": None, "t": None, "i": {"x": 5}, "z": None, "e": "PAID", "l": [1, 2],
    }  # fmt: skip
    encode = protobuf_encoder(descriptor, protobuf_type(descriptor))
    assert encode(made.values.slice(0, 1)).to_pylist() == [b"\x08\0\x22\2\x08\5\x30\1\x38\1\x38\2"]


# Malformed values -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bytes_", "problem"),
    [
        (b"\x08", "ends within a field"),
        (b"\x08\x80", "ends within a field"),
        (b"\x08" + b"\xff" * 10 + b"\1", "ends within a field"),
        (b"\x12\2a", "ends within a field"),
        (b"\x12\xff\xff\xff\xff\x0f", "ends within a field"),
        (b"\x12\x81\x80\x80\x80\x80\0a", "ends within a field"),
        (b"\x1d\0\0\0", "ends within a field"),
        (b"\x22\1\x80", "packed values of l end within one"),
        (b"\x2a\3\0\0\0", "packed values of f end within one"),
        (b"\x22\x0b" + b"\xff" * 10 + b"\1", "number of l is too long"),
        (b"\x12\1\xff", "bytes of s are not UTF-8"),
        (b"\x12\1\xff\x12\1a", "bytes of s are not UTF-8"),
        (b"\x12\3\xed\xa0\x80", "bytes of s are not UTF-8"),
        (b"\0", "not one of a field"),
        (b"\xb2\0\0" + bytes(9), "not one of a field"),
        (b"\7", "not one of a field"),
        (b"\x0e", "not one of a field"),
        (b"\x0c", "a group, which is not read"),
        (b"\x80", "tag is truncated"),
        (b"\x88\x80\x80\x80\x10\1", "over 32 bits"),
        (b"\x88\x80\x80\x80\x80\0\1", "over 32 bits"),
        (b"\x0d\0\0\0\0", "another type than in the descriptor"),
        (b"\x53\x54", "a group, which is not read"),
        (b"\x3a\1\x10", "ends within a field"),
        (b"\x3a\3\x0a\1\xff", "not UTF-8"),
    ],
)
@pytest.mark.parametrize("rows", [1, 40])
def test_a_malformed_value_is_null_with_a_problem_and_the_others_stay(bytes_, problem, rows):
    decoded = small(
        "proto3", "int32 a = 1", "string s = 2", "fixed32 x = 3", "repeated int32 l = 4",
        "repeated fixed32 f = 5", "In i = 7", others={"In": ("string t = 1",)},
    )  # fmt: skip
    right = b"\x08\5\x12\1x"
    values, problems = decoded(*[right] * rows, bytes_, right, *[bytes_ + b"\x08\1"] * 2, right)
    assert problem in problems[rows]
    assert [row["a"] for row in values if row is not None][: rows + 1] == [5] * (rows + 1)
    assert values[rows + 1]["s"] == values[-1]["s"] == "x"


def test_a_required_field_that_is_absent_makes_the_value_malformed_at_any_depth():
    decoded = small(
        "proto2", "required int32 a = 1", "In i = 2", "oneof c In x = 3",
        others={"In": ("required int32 x = 1",)},
    )  # fmt: skip
    missing = "the field {} is required and absent"
    made = decoded(
        b"", b"\x08\1", b"\x08\1\x12\0", b"\x08\1\x12\2\x08\1", b"\x08\1\x1a\0",
    )  # fmt: skip
    assert made[1] == [
        missing.format("a"),
        None,
        missing.format("x"),
        None,
        missing.format("x"),
    ]


def test_text_that_is_not_utf8_is_malformed_also_in_proto2():
    decoded = small("proto2", "string a = 1", "map<string,string> m = 2")
    rows, problems = decoded(b"\x0a\3a\xffb", b"\x0a\1x", b"\x12\3\x0a\1\xff")
    assert [row and row["a"] for row in rows] == [None, "x", None]
    assert problems == ["the bytes of a are not UTF-8", None, "the bytes of key are not UTF-8"]


def test_a_wire_type_that_is_not_the_fields_is_malformed_also_in_an_inner_message():
    decoded = small("proto3", "In a = 1", others={"In": ("int32 x = 1",)})
    assert decoded(b"\x0a\5\x0d\0\0\0\0")[1] == ["a field has another type than in the descriptor"]


# Columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [modern(), old()], ids=["modern", "old"])
def test_the_arrow_type_is_that_of_sparks_type_also_without_rows(file):
    descriptor = file.descriptor("All")
    arrow = to_arrow_type(protobuf_type(descriptor), timezone="UTC")
    decode = protobuf_decoder(descriptor)
    assert decode(pa.array([], pa.binary())).values.type == arrow
    assert decode(pa.array([b"\x08\1"], pa.binary())).values.type == arrow
    assert decode(pa.array([b"\xff"], pa.binary())).values.to_pylist() == [None]


def test_a_slice_and_a_large_binary_array_are_decoded_as_any_other():
    decode = protobuf_decoder(modern().descriptor("Line"))
    values = pa.array([b"\xff", b"\x10\1", b"\x10\2", b"\xff"], pa.binary())
    assert [row["count"] for row in decode(values.slice(1, 2)).values.to_pylist()] == [1, 2]
    large = values.slice(1, 2).cast(pa.large_binary())
    assert decode(large).values.equals(decode(values.slice(1, 2)).values)


def test_some_of_the_fields_are_converted_and_the_others_are_not_looked_into():
    descriptor = modern().descriptor("All")
    whole = protobuf_type(descriptor)
    wanted = spark.StructType().add("line", spark.StructType().add("count", spark.IntegerType()))
    wanted = wanted.add(whole["a_int32"])
    line = b"\xa2\x05\7\x0a\3\xff\xff\xff\x10\5"
    decode = protobuf_decoder(descriptor, wanted)
    made = decode(pa.array([line + b"\x28\7", b"\x28\7", b"\x28"], pa.binary()))
    assert made.values.to_pylist() == [
        {"line": {"count": 5}, "a_int32": 7}, {"line": None, "a_int32": 7}, None,
    ]  # fmt: skip
    assert made.first_problem == (2, "it ends within a field")
    assert protobuf_decoder(descriptor)(pa.array([line], pa.binary())).first_problem is not None


def test_no_field_at_all_leaves_what_is_malformed():
    decode = protobuf_decoder(modern().descriptor("Line"), spark.StructType())
    assert decode(pa.array([b"\x10\1", b"\x10"], pa.binary())).values.to_pylist() == [{}, None]


INT, LONG, TEXT = spark.IntegerType(), spark.LongType(), spark.StringType()


@pytest.mark.parametrize(
    ("name", "type_", "message"),
    [
        ("nothing", INT, r"nothing is not in the message shop\.All; its fields: a_double"),
        ("A_INT32", INT, "A_INT32 is not in the message"),
        ("a_int32", LONG, "a_int32 is of the Protobuf type int32, .* read as bigint"),
        ("line", TEXT, r"line is of the Protobuf type shop\.Line, .* as string"),
        ("line", spark.StructType().add("skus", TEXT), r"line\.skus is not in .* shop\.Line"),
        ("lines", spark.StructType().add("sku", TEXT), "lines is of the Protobuf type repeated"),
        ("at", LONG, r"at is of the Protobuf type google\.protobuf\.Timestamp"),
        ("m_int", spark.ArrayType(INT), "m_int is of the Protobuf type map"),
        ("status", INT, "status is of the Protobuf type enum"),
    ],
    ids=str,
)
def test_a_type_that_is_not_the_messages_is_refused_before_any_value(name, type_, message):
    with pytest.raises(ProtobufSchemaError, match=f"the field {message}"):
        protobuf_decoder(modern().descriptor("All"), spark.StructType().add(name, type_))


# Long and odd messages ------------------------------------------------------------------------


@pytest.mark.parametrize("others", [0, 100])
def test_one_long_message_among_others_is_read_to_its_end(others):
    decoded = small("proto3", "repeated unpacked int32 a = 1", "string s = 2", "int32 b = 3")
    long = b"".join(b"\x08" + varint(n) + b"\x18" + varint(n) for n in range(3000)) + b"\x12\1z"
    rows, _ = decoded(*[b"\x08\1"] * others, long, *[b"\x08\1"] * others)
    assert rows[others] == {"a": list(range(3000)), "s": "z", "b": 2999}
    assert rows[:others] == rows[others + 1 :] == [{"a": [1], "s": None, "b": None}] * others


@pytest.mark.parametrize("end", [b"\x08", b"\0", b"\x0d\0\0\0\0", b"\x12\1\xff", b"\x14", b"\x53"])
def test_what_is_wrong_at_the_end_of_one_long_message_is_found(end):
    decoded = small("proto3", "repeated unpacked int32 a = 3", "string s = 2", "int32 b = 1")
    long = b"".join(b"\x18" + varint(n) + b"\x08" + varint(n) for n in range(300))
    rows, problems = decoded(b"\x18\1", long + end, long, b"\x18\1")
    assert [problem is None for problem in problems] == [True, False, True, True]
    assert len(rows[2]["a"]) == 300
