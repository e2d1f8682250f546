"""Descriptors from a descriptor file, and the Spark types of messages."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql import types as spark
from support.spark.protobuf_cases import SCALARS, FileOfMessages, modern, old

from txnlog_spark.formats.errors import ProtobufSchemaError
from txnlog_spark.formats.protobuf.types import message_descriptor, protobuf_type

SPARK_NAMES = {
    "double": "double", "float": "float", "int64": "bigint", "uint64": "bigint", "int32": "int",
    "fixed64": "bigint", "fixed32": "int", "bool": "boolean", "string": "string", "bytes": "binary",
    "uint32": "int", "sfixed32": "int", "sfixed64": "bigint", "sint32": "int", "sint64": "bigint",
}  # fmt: skip


@pytest.mark.parametrize("scalar", SCALARS)
def test_each_scalar_has_sparks_type_and_a_list_has_no_null(scalar):
    type_ = protobuf_type(modern().descriptor("All"))
    assert type_[f"a_{scalar}"].dataType.simpleString() == SPARK_NAMES[scalar]
    assert type_[f"o_{scalar}"].nullable
    list_ = type_[f"l_{scalar}"].dataType
    assert list_ == spark.ArrayType(type_[f"a_{scalar}"].dataType, containsNull=False)


def test_enums_times_wrappers_maps_and_messages():
    type_ = protobuf_type(modern().descriptor("All"))
    line = "struct<sku:string,count:int,price:double,tags:array<string>>"
    expected = {
        "status": "string", "l_status": "array<string>", "line": line, "lines": f"array<{line}>",
        "at": "timestamp", "took": "interval day to second", "l_at": "array<timestamp>",
        "m_int": "map<string,int>", "m_line": f"map<bigint,{line}>",
        "m_at": "map<string,timestamp>",
        "c_int": "int", "c_line": line, "w_text": "struct<value:string>",
        "w_bool": "struct<value:boolean>",
    }  # fmt: skip
    assert {name: type_[name].dataType.simpleString() for name in expected} == expected
    assert type_["m_int"].dataType.valueContainsNull is False


def test_only_a_required_field_cannot_be_null():
    type_ = protobuf_type(old().descriptor("All"))
    assert [field.name for field in type_ if not field.nullable] == ["id"]
    assert not type_["line"].dataType["sku"].nullable
    assert type_["pair"].dataType.simpleString() == (
        "struct<left:int,right:struct<sku:string,count:int>>"
    )


def test_a_message_named_like_a_time_is_one_in_any_package():
    file = FileOfMessages("proto3")
    file.message("Timestamp", "int64 seconds = 1", "int32 nanos = 2")
    file.message("Duration", "int64 seconds = 1", "int32 nano = 2")
    file.message("All", "Timestamp at = 1", "Duration took = 2")
    type_ = protobuf_type(file.descriptor("All"))
    assert type_.simpleString() == "struct<at:timestamp,took:struct<seconds:bigint,nano:int>>"


def test_a_message_without_fields_has_no_column():
    file = FileOfMessages("proto3")
    file.message("Empty")
    file.message("Outer", "Empty nothing = 1")
    file.message("All", "int32 a = 1", "Empty e = 2", "repeated Empty l = 3", "Outer o = 4",
                 "map<string,Empty> m = 5")  # fmt: skip
    assert protobuf_type(file.descriptor("All")).simpleString() == "struct<a:int>"
    assert protobuf_type(file.descriptor("Empty")) == spark.StructType()


def test_a_message_that_contains_itself_is_refused_by_the_name_of_the_field():
    file = FileOfMessages("proto3")
    file.message("Node", "int32 id = 1", "repeated Edge edges = 2")
    file.message("Edge", "map<string,Node> to = 1")
    with pytest.raises(ProtobufSchemaError, match=r"shop\.Edge\.ToEntry\.value makes .*shop\.Node"):
        protobuf_type(file.descriptor("Node"))


def test_twice_the_same_message_beside_each_other_is_not_recursion():
    file = FileOfMessages("proto3")
    file.message("Side", "int32 id = 1")
    file.message("All", "Side left = 1", "Side right = 2")
    assert protobuf_type(file.descriptor("All")).simpleString() == (
        "struct<left:struct<id:int>,right:struct<id:int>>"
    )


# The descriptor file --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["All", "shop.All"])
def test_a_message_is_found_with_and_without_its_package(name):
    assert message_descriptor(modern().descriptor_set(), name).full_name == "shop.All"


def test_a_message_within_a_message_is_found_by_its_full_name():
    file = FileOfMessages("proto3")
    file.message("Outer", "int32 id = 1")
    file.proto.message_type[0].nested_type.add(name="Inner").field.add(
        name="x", number=1, type=5, label=1
    )
    assert message_descriptor(file.descriptor_set(), "shop.Outer.Inner").name == "Inner"
    with pytest.raises(ProtobufSchemaError, match="no message Inner"):
        message_descriptor(file.descriptor_set(), "Inner")


def test_two_descriptor_files_may_have_different_messages_of_one_name():
    first, second = FileOfMessages("proto3"), FileOfMessages("proto3")
    first.message("All", "int32 a = 1")
    second.message("All", "string b = 1")
    assert first.descriptor("All").fields[0].name == "a"
    assert second.descriptor("All").fields[0].name == "b"


@pytest.mark.parametrize("data", [b"\xff\xff", b"", b"\x0a\x00", b"no descriptor file at all"])
def test_bytes_that_are_no_descriptor_file_are_refused_with_the_way_to_make_one(data):
    with pytest.raises(ProtobufSchemaError, match="not a FileDescriptorSet"):
        message_descriptor(data, "All")


def test_an_import_that_is_missing_is_named_with_the_option_that_adds_it():
    file = FileOfMessages("proto3")
    file.message("All", "int32 a = 1")
    file.proto.dependency.append("shop/money.proto")
    message = r"shop/money\.proto, which shop\.proto imports, .*--include_imports"
    with pytest.raises(ProtobufSchemaError, match=message):
        file.descriptor("All")


def test_files_that_import_each_other_are_refused():
    files = [descriptor_pb2.FileDescriptorProto(name=name, syntax="proto3") for name in "ab"]
    files[0].dependency.append("b")
    files[1].dependency.append("a")
    data = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    with pytest.raises(ProtobufSchemaError, match="the file a imports itself"):
        message_descriptor(data, "All")


def test_a_type_that_is_missing_is_named():
    file = FileOfMessages("proto3")
    file.message("All", "Money price = 1")
    with pytest.raises(ProtobufSchemaError, match=r"shop\.proto is not a valid descriptor.*Money"):
        file.descriptor("All")


def test_a_message_that_is_missing_is_refused_with_the_names_of_those_there_are():
    with pytest.raises(ProtobufSchemaError, match=r"no message Al .*: shop\.All, shop\.Line"):
        message_descriptor(modern().descriptor_set(), "Al")
    file = FileOfMessages("proto3")
    for number in range(30):
        file.message(f"M{number:02}", "int32 a = 1")
    with pytest.raises(ProtobufSchemaError, match=r"shop\.M19 and 10 more"):
        file.descriptor("Al")
