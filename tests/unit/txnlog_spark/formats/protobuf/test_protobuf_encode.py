"""Bytes of Spark values as Protobuf messages, case by case.

The expected bytes are the output of Spark's to_protobuf. Its ProtobufSerializer sets the fields of
a DynamicMessage of protobuf-java, with which the bytes were looked up.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type
from support.spark.protobuf_cases import FileOfMessages, modern, old

from txnlog_spark.formats.errors import ProtobufSchemaError, UnencodableMessage
from txnlog_spark.formats.protobuf.encode import protobuf_encoder
from txnlog_spark.formats.protobuf.types import protobuf_type

INT, LONG, TEXT, BINARY = (
    spark.IntegerType(), spark.LongType(), spark.StringType(), spark.BinaryType(),
)  # fmt: skip
WRAPPED = "google.protobuf.{}Value"


def file_of(syntax: str, *fields: str, **others: tuple[str, ...]) -> FileOfMessages:
    file = FileOfMessages(syntax)
    file.enum("Status", NEW=0, PAID=1, SENT=-2)
    for name, its in others.items():
        file.message(name, *its)
    file.message("All", *fields)
    return file


def encode(file: FileOfMessages, columns: dict[str, spark.DataType], *rows: tuple[Any, ...]) -> Any:
    """The bytes of rows of these columns."""
    type_ = spark.StructType()
    for name, each in columns.items():
        type_ = type_.add(name, each)
    encoder = protobuf_encoder(file.descriptor("All"), type_)
    values = [dict(zip(columns, row, strict=True)) for row in rows]
    made = encoder(pa.array(values, to_arrow_type(type_, timezone="UTC")))
    made.validate(full=True)
    return made.to_pylist()


def one(syntax: str, field: str, type_: spark.DataType, *values: Any, **others: Any) -> Any:
    """The bytes of values of the one field `a`."""
    return encode(file_of(syntax, field, **others), {"a": type_}, *((value,) for value in values))


# What is written ------------------------------------------------------------------------------


def test_null_is_absent_and_so_is_the_default_of_a_field_without_presence():
    assert one("proto3", "int32 a = 1", INT, None, 0, 5) == [b"", b"", b"\x08\5"]
    assert one("proto3", "string a = 1", TEXT, None, "", "x") == [b"", b"", b"\x0a\1x"]
    assert one("proto3", "enum:Status a = 1", TEXT, None, "NEW", "PAID") == [b"", b"", b"\x08\1"]
    assert one("proto3", "float a = 1", spark.FloatType(), 0.0, -0.0) == [b"", b"\x0d\0\0\0\x80"]
    assert one("proto3", "optional int32 a = 1", INT, None, 0) == [b"", b"\x08\0"]
    assert one("proto2", "string a = 1 default x", TEXT, None, "", "x") == [
        b"", b"\x0a\0", b"\x0a\1x",
    ]  # fmt: skip


def test_empty_bytes_are_written_as_spark_writes_them():
    assert one("proto3", "bytes a = 1", BINARY, None, b"", b"x") == [b"", b"\x0a\0", b"\x0a\1x"]


def test_null_in_a_required_field_is_an_error():
    inner, fields = spark.StructType().add("x", INT), {"In": ("int32 x = 1",)}
    for type_name, type_, value in (
        ("int32", INT, 0), ("string", TEXT, ""), ("enum:Status", TEXT, "NEW"), ("In", inner, {}),
    ):  # fmt: skip
        field = f"required {type_name} a = 1"
        assert len(one("proto2", field, type_, value, **fields)[0]) == 2
        with pytest.raises(UnencodableMessage, match="column a is null, and its field is required"):
            one("proto2", field, type_, value, None, **fields)


@pytest.mark.parametrize(
    ("field", "type_", "value", "bytes_"),
    [
        ("int32", INT, -1, b"\x08" + b"\xff" * 9 + b"\1"),
        ("int32", spark.ByteType(), -1, b"\x08" + b"\xff" * 9 + b"\1"),
        ("uint32", INT, -1, b"\x08\xff\xff\xff\xff\x0f"),
        ("uint32", LONG, 2**32 - 1, b"\x08\xff\xff\xff\xff\x0f"),
        ("uint32", spark.ShortType(), 300, b"\x08\xac\2"),
        ("sint32", INT, -(2**31), b"\x08\xff\xff\xff\xff\x0f"),
        ("fixed32", INT, -2, b"\x0d\xfe\xff\xff\xff"),
        ("sfixed32", INT, -2, b"\x0d\xfe\xff\xff\xff"),
        ("int64", LONG, -(2**63), b"\x08" + b"\x80" * 9 + b"\1"),
        ("uint64", LONG, -1, b"\x08" + b"\xff" * 9 + b"\1"),
        ("sint64", LONG, -1, b"\x08\1"),
        ("fixed64", LONG, 1, b"\x09\1" + bytes(7)),
        ("sfixed64", LONG, -1, b"\x09" + b"\xff" * 8),
        ("bool", spark.BooleanType(), True, b"\x08\1"),
        ("float", spark.FloatType(), 1.5, b"\x0d\0\0\xc0\x3f"),
        ("double", spark.DoubleType(), 1.5, b"\x09\0\0\0\0\0\0\xf8\x3f"),
        ("string", TEXT, "é", b"\x0a\2\xc3\xa9"),
        ("enum:Status", TEXT, "SENT", b"\x08\xfe" + b"\xff" * 8 + b"\1"),
    ],
)
def test_a_value_has_the_bytes_of_its_field(field, type_, value, bytes_):
    assert one("proto3", f"{field} a = 1", type_, value, None, value) == [bytes_, b"", bytes_]
    packs = bytes_[0] & 7 != 2
    tail = bytes_[1:]
    listed = b"\x0a" + bytes([2 * len(tail)]) + tail * 2 if packs else bytes_ * 2
    assert one("proto3", f"repeated {field} a = 1", spark.ArrayType(type_), [value] * 2) == [listed]
    loose = one("proto2", f"repeated {field} a = 1", spark.ArrayType(type_), [value] * 2)
    assert loose == [bytes_ * 2]


def test_an_empty_list_a_null_list_and_a_slice_of_lists():
    ints = spark.ArrayType(INT)
    assert one("proto3", "repeated int32 a = 1", ints, None, [], [0]) == [b"", b"", b"\x0a\1\0"]
    type_ = spark.StructType().add("a", ints).add("m", spark.MapType(TEXT, INT))
    file = file_of("proto3", "repeated int32 a = 1", "map<string,int32> m = 2")
    rows = [{"a": [n] * n, "m": {"k": n}} for n in range(4)]
    array = pa.array(rows, to_arrow_type(type_))
    encoder = protobuf_encoder(file.descriptor("All"), type_)
    assert encoder(array.slice(1, 2)).equals(encoder(pa.array(rows[1:3], array.type)))


@pytest.mark.parametrize(
    ("micros", "bytes_"),
    [
        (0, b""),
        (1_500_999, b"\x08\1\x10\x80\xca\xb5\xee\1"),
        (-1_500_000, b"\x08" + b"\xff" * 9 + b"\1\x10\x80\xb6\xca\x91\xfe" + b"\xff" * 4 + b"\1"),
    ],
)
def test_a_time_has_milliseconds_as_in_spark(micros, bytes_):
    expected = b"\x0a" + bytes([len(bytes_)]) + bytes_
    delta = timedelta(microseconds=micros)
    at = datetime(1970, 1, 1, tzinfo=UTC) + delta
    made = one("proto3", "google.protobuf.Timestamp a = 1", spark.TimestampType(), at, None)
    assert made == [expected, b""]
    made = one("proto3", "google.protobuf.Duration a = 1", spark.DayTimeIntervalType(), delta)
    assert made == [expected]


@pytest.mark.parametrize(
    ("name", "type_", "value", "bytes_"),
    [
        ("Bool", spark.BooleanType(), True, b"\x08\1"),
        ("Int32", INT, -1, b"\x08" + b"\xff" * 9 + b"\1"),
        ("UInt32", INT, -1, b"\x08\xff\xff\xff\xff\x0f"), ("Int64", LONG, 5, b"\x08\5"),
        ("UInt64", LONG, 5, b"\x08\5"), ("Float", spark.FloatType(), 1.5, b"\x0d\0\0\xc0\x3f"),
        ("Double", spark.DoubleType(), 1.5, b"\x09\0\0\0\0\0\0\xf8\x3f"),
        ("String", TEXT, "x", b"\x0a\1x"), ("Bytes", BINARY, b"x", b"\x0a\1x"),
    ],
)  # fmt: skip
def test_a_wrapper_is_written_as_a_struct_and_no_value_by_itself_is(name, type_, value, bytes_):
    framed, field = b"\x0a" + bytes([len(bytes_)]) + bytes_, f"{WRAPPED.format(name)} a = 1"
    struct = spark.StructType().add("value", type_)
    assert one("proto3", field, struct, {"value": value}, None) == [framed, b""]
    with pytest.raises(ProtobufSchemaError, match=f"{name}Value"):
        one("proto3", field, type_, value)


def test_a_map_has_all_keys_and_values_and_no_null():
    of_ints = spark.MapType(TEXT, INT)
    assert one("proto3", "map<string,int32> a = 1", of_ints, None, {}, {"": 0}) == [
        b"", b"", b"\x0a\4\x0a\0\x10\0",
    ]  # fmt: skip
    with pytest.raises(UnencodableMessage, match=r"column a\.value is null"):
        one("proto3", "map<string,int32> a = 1", of_ints, {"k": None})
    assert one("proto3", "map<int32,string> a = 1", spark.MapType(INT, TEXT), {1: "x", 2: ""}) == [
        b"\x0a\5\x08\1\x12\1x\x0a\4\x08\2\x12\0"
    ]
    inner = spark.StructType().add("x", INT)
    of_messages, fields = spark.MapType(INT, inner), {"In": ("int32 x = 1",)}
    assert one(
        "proto3", "map<int32,In> a = 1", of_messages, {1: {"x": 5}, 0: {"x": 0}}, **fields
    ) == [b"\x0a\6\x08\1\x12\2\x08\5\x0a\4\x08\0\x12\0"]
    with pytest.raises(UnencodableMessage, match=r"column a\.value is null"):
        one("proto3", "map<int32,In> a = 1", of_messages, {1: None}, **fields)


def test_messages_and_no_groups_within_a_message():
    inner = spark.StructType().add("x", INT)
    fields = {"In": ("int32 x = 1",)}
    assert one("proto3", "In a = 1", inner, {"x": 5}, None, {"x": None}, **fields) == [
        b"\x0a\2\x08\5", b"", b"\x0a\0",
    ]  # fmt: skip
    listed = one(
        "proto3", "repeated In a = 1", spark.ArrayType(inner), [{"x": 1}, {"x": 0}], **fields
    )
    assert listed == [b"\x0a\2\x08\1\x0a\0"]
    with pytest.raises(ProtobufSchemaError, match="cannot be written as Protobuf group"):
        one("proto2", "group:In a = 1", inner, {"x": 5}, None, **fields)


def test_fields_are_in_the_order_of_their_numbers_and_found_in_any_case():
    file = file_of("proto3", "int32 second = 2", "int32 First = 1", "int32 far = 2000")
    made = encode(file, {"FAR": INT, "SECOND": INT, "first": INT}, (3, 2, 1), (None, None, 4))
    assert made == [b"\x08\1\x10\2\x80\x7d\3", b"\x08\4"]


def test_several_members_of_a_oneof_are_refused():
    file = file_of("proto3", "oneof c int32 x = 1", "oneof c string y = 2", "oneof c int64 z = 3")
    columns = {"z": LONG, "y": TEXT, "x": INT}
    made = encode(file, columns, (None, None, 0), (1, None, None), (None, None, None))
    assert made == [b"\x08\0", b"\x18\1", b""]
    with pytest.raises(UnencodableMessage, match="several members of the oneof c"):
        encode(file, columns, (None, None, 0), (1, "a", None))


def test_no_rows_and_no_columns():
    file = file_of("proto3", "int32 a = 1")
    assert encode(file, {"a": INT}) == []
    encoder = protobuf_encoder(file.descriptor("All"), spark.StructType())
    assert encoder(pa.array([{}, {}], pa.struct([]))).to_pylist() == [b"", b""]


@pytest.mark.parametrize("file", [modern(), old()], ids=["modern", "old"])
def test_no_rows_of_every_type(file):
    descriptor = file.descriptor("All")
    type_ = protobuf_type(descriptor)
    encoder = protobuf_encoder(descriptor, type_)
    assert encoder(pa.array([], to_arrow_type(type_, timezone="UTC"))).to_pylist() == []


def test_a_column_of_large_strings_is_written_as_any_other():
    file = file_of("proto3", "string a = 1", "bytes b = 2", "enum:Status c = 3")
    type_ = spark.StructType().add("a", TEXT).add("b", BINARY).add("c", TEXT)
    text = pa.large_string()
    large = pa.struct([("a", text), ("b", pa.large_binary()), ("c", text)])
    encoder = protobuf_encoder(file.descriptor("All"), type_)
    made = encoder(pa.array([{"a": "x", "b": b"y", "c": "PAID"}], large))
    assert made.to_pylist() == [b"\x0a\1x\x12\1y\x18\1"]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_time_of_any_unit_and_zone_is_the_same_time(unit):
    file = file_of("proto3", "google.protobuf.Timestamp a = 1", "google.protobuf.Duration b = 2")
    type_ = spark.StructType().add("a", spark.TimestampType())
    type_ = type_.add("b", spark.DayTimeIntervalType())
    arrow = pa.struct([("a", pa.timestamp(unit, "Asia/Tokyo")), ("b", pa.duration(unit))])
    row = {"a": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), "b": timedelta(seconds=7)}
    made = protobuf_encoder(file.descriptor("All"), type_)(pa.array([row], arrow))
    assert made.to_pylist() == [b"\x0a\2\x08\5\x12\2\x08\7"]


def test_the_official_runtime_reads_what_is_written():
    file = modern()
    type_ = spark.StructType().add("a_string", TEXT).add("lines", protobuf_type(
        file.descriptor("All"))["lines"].dataType)  # fmt: skip
    lines = [{"sku": "s", "count": 2, "price": 0.0, "tags": ["a", ""]}]
    encoder = protobuf_encoder(file.descriptor("All"), type_)
    [value] = encoder(
        pa.array([{"a_string": "x", "lines": lines}], to_arrow_type(type_))
    ).to_pylist()
    message = message_factory.GetMessageClass(file.descriptor("All")).FromString(value)
    assert message.a_string == "x"
    assert message.lines[0].HasField("price")
    assert list(message.lines[0].tags) == ["a", ""]
    assert message.SerializeToString(deterministic=True) == value


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "type_", "message"),
    [
        (("int32 b = 1",), INT, r"column a has no field in the message shop\.All; its fields: b"),
        (("int32 a = 1",), LONG, "column a of type bigint cannot be written as Protobuf int32"),
        (("int64 a = 1",), INT, "column a of type int cannot be written as Protobuf int64"),
        (("string a = 1",), BINARY, "cannot be written as Protobuf string"),
        (("uint64 a = 1",), spark.DecimalType(20, 0), "cannot be written as Protobuf uint64"),
        (("int32 a = 1",), spark.DateType(), "of type date cannot be written as Protobuf int32"),
        (("int32 a = 1",), spark.NullType(), "of type void cannot be written as Protobuf int32"),
        (("In a = 1",), spark.NullType(), "of type void cannot be written as Protobuf message"),
        (("enum:Status a = 1",), INT, "of type int cannot be written as Protobuf enum"),
        (("fixed32 a = 1",), LONG, "cannot be written as Protobuf fixed32"),
        (("int32 a = 1",), spark.ArrayType(INT), "cannot be written as Protobuf int32"),
        (("repeated int32 a = 1",), INT, "cannot be written as Protobuf repeated int32"),
        (("map<string,int32> a = 1",), spark.ArrayType(INT), "cannot be written as Protobuf map"),
        (("map<string,int32> a = 1",), spark.MapType(INT, INT), r"column a\.key of type int"),
        (("In a = 1",), INT, r"cannot be written as Protobuf message shop\.In"),
        (("In a = 1",), spark.StructType().add("y", INT), r"column a\.y has no field"),
        (("repeated In a = 1",), spark.ArrayType(INT), r"column a\.element of type int"),
        (("google.protobuf.Timestamp a = 1",), LONG, r"message google\.protobuf\.Timestamp"),
        (("google.protobuf.Timestamp a = 1",), spark.TimestampNTZType(), "of type timestamp_ntz"),
        (("google.protobuf.StringValue a = 1",), INT, r"message google\.protobuf\.StringValue"),
    ],
    ids=str,
)
def test_a_column_that_does_not_fit_is_refused_before_any_row(fields, type_, message):
    file = file_of("proto3", *fields, In=("int32 x = 1",))
    with pytest.raises(ProtobufSchemaError, match=message):
        protobuf_encoder(file.descriptor("All"), spark.StructType().add("a", type_))


def test_columns_and_fields_whose_names_differ_in_case_alone_are_refused():
    file = file_of("proto3", "int32 aB = 1", "int32 Ab = 2")
    with pytest.raises(ProtobufSchemaError, match=r"column ab has several fields .*: aB, Ab"):
        protobuf_encoder(file.descriptor("All"), spark.StructType().add("ab", INT))
    file = file_of("proto3", "int32 a = 1")
    with pytest.raises(ProtobufSchemaError, match="column A is a second one of the field a"):
        protobuf_encoder(file.descriptor("All"), spark.StructType().add("a", INT).add("A", INT))


def test_a_required_field_without_a_column_is_refused_at_any_depth():
    file = file_of("proto2", "In a = 1", In=("required int32 x = 1", "int32 y = 2"))
    inner = spark.StructType().add("y", INT)
    with pytest.raises(
        ProtobufSchemaError, match=r"field a\.x of the message shop\.In is required"
    ):
        protobuf_encoder(file.descriptor("All"), spark.StructType().add("a", inner))


def test_what_is_not_a_struct_is_refused():
    with pytest.raises(ProtobufSchemaError, match="the value of type int cannot be written"):
        protobuf_encoder(modern().descriptor("All"), INT)


def test_a_value_that_the_enum_lacks_is_named_with_its_column():
    with pytest.raises(UnencodableMessage, match=r"column a has the value 'GONE', .* shop\.Status"):
        one("proto3", "enum:Status a = 1", TEXT, "NEW", None, "GONE")
    with pytest.raises(UnencodableMessage, match=r"column a\.element has the value 'GONE'"):
        one("proto3", "repeated enum:Status a = 1", spark.ArrayType(TEXT), ["GONE"])


def test_null_in_a_list_is_refused():
    with pytest.raises(UnencodableMessage, match=r"column a\.element is null"):
        one("proto3", "repeated int32 a = 1", spark.ArrayType(INT), [1], [2, None])
