"""Rows with each kind of column whose values have any length, and their schemas by format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, LongType, MapType, StringType, StructType

from txnlog_spark.formats.avro.types import avro_json

HEADER = StructType().add("key", StringType()).add("value", BinaryType())
HEADERS = ArrayType(HEADER)
INNER = StructType().add("b", BinaryType()).add("s", StringType())
FIELDS = (
    StructType()
    .add("id", LongType())
    .add("b", BinaryType())
    .add("s", StringType())
    .add("bs", ArrayType(BinaryType(), False))
    .add("ss", ArrayType(StringType(), False))
    .add("m", MapType(StringType(), BinaryType(), False))
    .add("st", INNER)
    .add("sts", ArrayType(INNER, False))
)
"""Fields of a value that all formats can have."""

BINARIES = [b"", b"ab", b"abc", b"5feceb66ffc8", b"\0\xff\n" * 7, None]
"""Lengths are multiples of three and others, as Base64 fills up the others."""


def rows() -> list[tuple[Any, ...]]:
    """Rows of `FIELDS`, all of them null in some row."""
    made: list[tuple[Any, ...]] = []
    for at, value in enumerate(BINARIES):
        if value is None:
            made.append((at, *[None] * 7))
            continue
        text = f'é"{value.hex()}'
        inner = (value, text)
        items = [each for each in BINARIES[at:] if each is not None]
        texts = [each.hex() for each in items]
        made.append(
            (at, value, text, items, texts, {"k": value, "": b"x" * at}, inner, [inner, (None, "")])
        )
    return made


def avro_schema(type_: StructType = FIELDS) -> str:
    """The schema that Spark makes of this type."""
    return avro_json(type_, False)


def write_descriptors(folder: Path) -> str:
    """Write a descriptor set whose message `Row` has `FIELDS`, and return its path."""
    from support.spark.protobuf_cases import FileOfMessages

    file = FileOfMessages("proto3", package="")
    file.message("Inner", "bytes b = 1", "string s = 2")
    file.message("Row", "int64 id = 1", "bytes b = 2", "string s = 3", "repeated bytes bs = 4",
                 "repeated string ss = 5", "map<string,bytes> m = 6", "Inner st = 7",
                 "repeated Inner sts = 8")  # fmt: skip
    path = folder / "row.desc"
    path.write_bytes(file.descriptor_set())
    return str(path)


def large(type_: Any) -> Any:
    """The Arrow type that Spark has in its place with useLargeVarTypes, and large lists."""
    if pa.types.is_binary(type_):
        return pa.large_binary()
    if pa.types.is_string(type_):
        return pa.large_string()
    if pa.types.is_struct(type_):
        return pa.struct([each.with_type(large(each.type)) for each in type_])
    if pa.types.is_map(type_):
        key, item = type_.key_field, type_.item_field
        return pa.map_(key.with_type(large(key.type)), item.with_type(large(item.type)))
    if pa.types.is_list(type_):
        return pa.large_list(type_.value_field.with_type(large(type_.value_type)))
    return type_
