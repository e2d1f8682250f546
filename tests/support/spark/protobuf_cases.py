"""Protobuf messages for tests: descriptors made in Python, random messages of them, and the Spark
values that Protobuf's own runtime says they have."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, message_factory, unknown_fields
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.message import DecodeError, Message

from txnlog_spark.formats.protobuf.types import is_map, message_descriptor, of_seconds

SCALARS = (
    "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes",
    "uint32", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
REFUSED = re.compile(
    "^several members of the oneof|^it has a group|are not UTF-8$|not one of the enum Status$"
    "|^a field has another type"
)
"""Problems of values that the official runtimes read."""
TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"


class FileOfMessages:
    """A .proto file, built up message by message."""

    def __init__(self, syntax: str, package: str = "shop") -> None:
        self._prefix = f"{package}." if package else ""
        self.proto = descriptor_pb2.FileDescriptorProto(
            name="shop.proto", package=package or None, syntax=syntax
        )
        self.proto.dependency.extend(
            f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "wrappers")
        )

    def enum(self, name: str, **numbers: int) -> None:
        made = self.proto.enum_type.add(name=name)
        for symbol, number in numbers.items():
            made.value.add(name=symbol, number=number)

    def message(self, name: str, *fields: str) -> None:
        """Fields like "repeated int32 many = 3", "map<string,int32> m = 4", "oneof choice string
        a = 5", "optional", "required", "packed", "unpacked", and " default X" at the end."""
        made = self.proto.message_type.add(name=name)
        for text in fields:
            _add_field(made, text, self._prefix)
        for field in made.field:  # the oneofs of single optional fields are the last ones
            if field.proto3_optional:
                field.oneof_index = len(made.oneof_decl)
                made.oneof_decl.add(name=f"_{field.name}")

    def descriptor(self, name: str) -> Descriptor:
        return message_descriptor(self.descriptor_set(), f"{self._prefix}{name}")

    def descriptor_set(self) -> bytes:
        return descriptor_pb2.FileDescriptorSet(file=[self.proto]).SerializeToString()


def _add_field(message: Any, text: str, prefix: str) -> None:
    text, _, default = text.partition(" default ")
    text, _, number = text.partition(" = ")
    *marks, type_, name = text.split()
    field = message.field.add(name=name, number=int(number), label=1)
    if default:
        field.default_value = default
    if type_.startswith("map<"):
        key, value = type_[4:-1].split(",")
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, f"{key} key = 1", prefix)
        _add_field(entry, f"{value} value = 2", prefix)
        field.label, field.type = 3, FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{prefix}{message.name}.{entry.name}"
        return
    field.label = {"repeated": 3, "required": 2}.get(marks[0] if marks else "", 1)
    if "optional" in marks:
        field.proto3_optional = True
    if "packed" in marks or "unpacked" in marks:
        field.options.packed = "packed" in marks
    if "oneof" in marks:
        oneof = marks[marks.index("oneof") + 1]
        names = [each.name for each in message.oneof_decl]
        if oneof not in names:
            message.oneof_decl.add(name=oneof)
            names.append(oneof)
        field.oneof_index = names.index(oneof)
    if type_ in SCALARS:
        field.type = getattr(FieldDescriptorProto, f"TYPE_{type_.upper()}")
    else:
        kind, _, type_name = type_.rpartition(":")
        field.type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper() or 'MESSAGE'}")
        field.type_name = f".{type_name}" if "." in type_name else f".{prefix}{type_name}"


def modern() -> FileOfMessages:
    """A file of proto3 with a message `All` of all that Spark reads."""
    file = FileOfMessages("proto3")
    file.enum("Status", NEW=0, PAID=1, SENT=-2)
    file.message("Line", "string sku = 1", "int32 count = 2", "optional double price = 3",
                 "repeated string tags = 4")  # fmt: skip
    scalars = [f"{name} a_{name} = {at + 1}" for at, name in enumerate(SCALARS)]
    present = [f"optional {name} o_{name} = {at + 21}" for at, name in enumerate(SCALARS)]
    lists = [f"repeated {name} l_{name} = {at + 41}" for at, name in enumerate(SCALARS)]
    loose = [
        f"repeated unpacked {name} u_{name} = {at + 61}"
        for at, name in enumerate(SCALARS)
        if name not in ("string", "bytes")
    ]
    file.message(
        "All", *scalars, *present, *lists, *loose,
        "enum:Status status = 81", "optional enum:Status o_status = 82",
        "repeated enum:Status l_status = 83",
        "Line line = 84", "repeated Line lines = 85",
        f"{TIMESTAMP} at = 86", f"{DURATION} took = 87", f"repeated {TIMESTAMP} l_at = 88",
        "map<string,int32> m_int = 89", "map<int64,Line> m_line = 90",
        "map<bool,enum:Status> m_status = 91", "map<sint32,string> m_text = 92",
        f"map<string,{TIMESTAMP}> m_at = 93",
        "oneof choice int32 c_int = 94", "oneof choice string c_text = 95",
        "oneof choice Line c_line = 96",
        "google.protobuf.StringValue w_text = 97", "google.protobuf.Int64Value w_long = 98",
        "google.protobuf.BoolValue w_bool = 2000",
    )  # fmt: skip
    return file


def old() -> FileOfMessages:
    """A file of proto2 with a message `All`: required fields, defaults, closed enums."""
    file = FileOfMessages("proto2")
    file.enum("Status", PAID=1, NEW=0, SENT=7)
    file.message("Line", "required string sku = 1", "int32 count = 2 default 7")
    file.message("Pair", "int32 left = 1", "Line right = 2")
    file.message(
        "All", "required int64 id = 1", "string name = 2", "string title = 3 default none",
        "uint32 u32 = 4 default 4294967295", "uint64 u64 = 5 default 18446744073709551615",
        "float f = 6 default 1.5", "bool b = 7 default true", "bytes raw = 8 default ab",
        "enum:Status status = 9", "enum:Status state = 10 default SENT",
        "repeated enum:Status l_status = 11", "repeated packed enum:Status p_status = 12",
        "repeated int32 many = 13", "repeated packed sint64 packed = 14",
        "Line line = 15", "repeated Line lines = 16", "Pair pair = 17",
        "repeated Pair pairs = 18", "map<string,string> m = 19",
        "oneof choice Line c_line = 20", "oneof choice Pair c_pair = 21",
        "oneof choice double c_double = 22",
    )  # fmt: skip
    return file


# Random messages ------------------------------------------------------------------------------


def random_message(descriptor: Descriptor, chosen: random.Random, depth: int = 0) -> Message:
    """A message with a part of its fields, and any that are required."""
    made = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if not field.is_required and chosen.random() < 0.4:
            continue
        target = getattr(made, field.name)
        if is_map(field):
            key, value = field.message_type.fields
            for _ in range(chosen.randrange(4)):
                at = random_value(key, chosen, depth)
                if value.message_type is not None:
                    target[at].CopyFrom(random_value(value, chosen, depth))
                else:
                    target[at] = random_value(value, chosen, depth)
        elif field.is_repeated:
            target.extend([random_value(field, chosen, depth) for _ in range(chosen.randrange(5))])
        elif field.message_type is not None:
            target.CopyFrom(random_value(field, chosen, depth))
            target.SetInParent()
        else:
            setattr(made, field.name, random_value(field, chosen, depth))
    return made


def random_value(field: FieldDescriptor, chosen: random.Random, depth: int) -> Any:
    if field.message_type is not None:
        if of_seconds(field.message_type):
            made = message_factory.GetMessageClass(field.message_type)()
            made.seconds, made.nanos = chosen.randrange(-(10**9), 10**9), chosen.randrange(10**9)
            return made
        return random_message(field.message_type, chosen, depth + 1)
    if chosen.random() < 0.2 and not field.is_repeated:
        return field.enum_type.values[0].number if field.enum_type else field.default_value
    if field.enum_type is not None:
        return chosen.choice([value.number for value in field.enum_type.values])
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = "aß€𝄞"[: chosen.randrange(5)] * chosen.choice((1, 1, 40))
        return text if field.type == FieldDescriptor.TYPE_STRING else text.encode()[:-1]
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return chosen.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        return chosen.choice((chosen.uniform(-1e9, 1e9), -0.0, float("inf"), 1e308))
    if kind == FieldDescriptor.CPPTYPE_FLOAT:
        return struct.unpack("<f", struct.pack("<f", chosen.uniform(-9, 9)))[0]
    wide = kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
    signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    bits = (64 if wide else 32) - signed
    value = chosen.getrandbits(chosen.randrange(1, bits + 1))
    return -value if signed and chosen.random() < 0.5 else value


# What messages mean ---------------------------------------------------------------------------


def parsed(descriptor: Descriptor, value: bytes) -> Message | None:
    """The message, None where Protobuf's runtime refuses it, or Spark: of the outer message a field
    of another wire type, and a time beyond 64 bits."""
    try:
        made = message_factory.GetMessageClass(descriptor).FromString(value)
    except DecodeError:
        return None
    if not made.IsInitialized():
        return None
    if any(is_map(field) and _has_bad_text(made, field) for field in descriptor.fields):
        return None
    if not _times_fit(made):
        return None
    known = {field.number for field in descriptor.fields}
    unknown = {each.field_number for each in unknown_fields.UnknownFieldSet(made)}
    return None if known & unknown else made


def has_odd_entry(descriptor: Descriptor, value: bytes) -> bool:
    """Return whether a map has an entry with unknown fields, False for a value that is refused.

    The whole entry is then unknown to Python's runtime, and not to Java's.
    """
    try:
        made = message_factory.GetMessageClass(descriptor).FromString(value)
    except DecodeError:
        return False
    maps = {field.number for field in descriptor.fields if is_map(field)}
    unknown = unknown_fields.UnknownFieldSet(made)
    return any(each.field_number in maps and each.wire_type == 2 for each in unknown)


def _times_fit(message: Message) -> bool:
    """Return whether each known time in the message has microseconds of 64 bits."""
    if of_seconds(message.DESCRIPTOR):
        return abs(message.seconds) <= 2**63 // 10**6 - 3
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        of_map = is_map(field)
        if of_map and field.message_type.fields_by_name["value"].message_type is None:
            continue
        inner = value.values() if of_map else value if field.is_repeated else [value]
        if not all(_times_fit(each) for each in inner):
            return False
    return True


def _has_bad_text(message: Message, field: FieldDescriptor) -> bool:
    """Return whether a map has text that is not UTF-8: in proto2 only Java looks at it."""
    value = field.message_type.fields_by_name["value"]
    try:
        made = list(getattr(message, field.name).items())
    except UnicodeDecodeError:
        return True
    is_text = value.type == FieldDescriptor.TYPE_STRING
    return is_text and any(isinstance(each, bytes) for _, each in made)


def row_of(message: Message) -> dict[str, Any]:
    """Return the message as Spark has it; a map is a dict, and a time its microseconds."""
    return {field.name: _value_of(message, field) for field in message.DESCRIPTOR.fields}


def _value_of(message: Message, field: FieldDescriptor) -> Any:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        pairs = getattr(message, field.name).items()
        return _by_key({_plain(name, key): _plain(each, value) for name, each in pairs})
    if field.is_repeated:
        return [_plain(each, field) for each in getattr(message, field.name)]
    made = _plain(getattr(message, field.name), field)
    if field.has_presence:
        return made if message.HasField(field.name) or field.has_default_value else None
    default = message_factory.GetMessageClass(message.DESCRIPTOR)()
    same = repr(getattr(message, field.name)) == repr(getattr(default, field.name))
    return None if same else made


def _plain(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return _micros(value) if of_seconds(field.message_type) else row_of(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return named.name if named else f"UNKNOWN_ENUM_VALUE_{field.enum_type.name}_{value}"
    if field.type == FieldDescriptor.TYPE_STRING and isinstance(value, bytes):
        return value.decode(errors="replace")
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT32:
        return value - 2**32 if value >= 2**31 else value
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return value - 2**64 if value >= 2**63 else value
    return value


def _micros(value: Any) -> int:
    sign = 1 if value.nanos > 0 else -1
    return value.seconds * 10**6 + sign * (abs(value.nanos) // 1000)


def python_values(array: pa.Array) -> list[Any]:
    """Return values as `row_of`: a map is a dict, whose last entry counts, a time microseconds."""
    type_, valid = array.type, array.is_valid().to_pylist()
    if pa.types.is_struct(type_):
        columns = {field.name: python_values(array.field(field.name)) for field in type_}
        made = [{name: each[row] for name, each in columns.items()} for row in range(len(array))]
    elif pa.types.is_map(type_):
        keys, items, at = array.keys, python_values(array.items), array.offsets.to_pylist()
        pairs = list(zip(python_values(keys), items, strict=True))
        made = [_by_key(dict(pairs[begin:end])) for begin, end in pairwise(at)]
    elif pa.types.is_list(type_):
        values, at = python_values(array.values), array.offsets.to_pylist()
        made = [values[begin:end] for begin, end in pairwise(at)]
    else:
        temporal = pa.types.is_temporal(type_)
        return (array.view(pa.int64()) if temporal else array).to_pylist()
    return [each if there else None for each, there in zip(made, valid, strict=True)]


def _by_key(entries: dict[Any, Any]) -> dict[Any, Any]:
    return dict(sorted(entries.items(), key=lambda entry: entry[0]))


def same(ours: Any, theirs: Any) -> bool:
    """Equal, where a float that is not a number equals itself and minus zero is not zero."""
    return repr(ours) == repr(theirs)


def shuffled(messages: list[Message], chosen: random.Random) -> bytes:
    """Give all fields of the messages in any order, with unknown fields between them.

    Each element of a list is by itself. Protobuf takes the fields for the messages merged.
    """
    parts = [
        b"\xc2\x80\x7d\x02ab",
        b"\xcd\x80\x7dabcd",
    ]
    for message in messages:
        for field, value in message.ListFields():
            for number in range(len(value) if field.is_repeated and not is_map(field) else 1):
                alone = type(message)()
                target = getattr(alone, field.name)
                if is_map(field):
                    target.MergeFrom(value)
                elif field.is_repeated:
                    target.extend([value[number]])
                elif field.message_type is not None:
                    target.CopyFrom(value)
                    target.SetInParent()
                else:
                    setattr(alone, field.name, value)
                parts.append(alone.SerializePartialToString())
    chosen.shuffle(parts)
    return b"".join(parts)


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def damaged(values: list[bytes], chosen: random.Random) -> Iterator[bytes]:
    """Yield each value with some bytes changed, removed or inserted, or cut at some place."""
    for value in values:
        made = bytearray(value)
        for _ in range(chosen.randrange(4)):
            at = chosen.randrange(len(made) + 1)
            if chosen.random() < 0.5:
                made[at : at + 1] = bytes([chosen.randrange(256)])
            else:
                made[at : at + chosen.randrange(3)] = chosen.randbytes(chosen.randrange(3))
        yield bytes(made[: chosen.randrange(len(made) + 1)] if chosen.random() < 0.3 else made)
