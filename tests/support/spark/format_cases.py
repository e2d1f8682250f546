"""Orders in each format: the options of a read and of a write, and the schemas behind them."""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

ORDER_DDL = "id BIGINT, item STRING, amount DOUBLE, tags ARRAY<STRING>"
KEY_DDL = "id BIGINT"


def _nullable(name: str, avro: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", avro], "default": None}


def _record(name: str, *fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


ORDER_AVRO = _record(
    "shop.Order",
    _nullable("id", "long"),
    _nullable("item", "string"),
    _nullable("amount", "double"),
    _nullable("tags", {"type": "array", "items": ["null", "string"]}),
)
KEY_AVRO = _record("shop.Key", _nullable("id", "long"))


def order_file() -> Any:
    """A FileDescriptorProto with an order, whose fields have presence, and its key."""
    from support.spark.protobuf_cases import FileOfMessages

    file = FileOfMessages("proto2")
    fields = ("int64 id = 1", "string item = 2", "double amount = 3", "repeated string tags = 4")
    file.message("Order", *fields)
    file.message("Key", fields[0])
    del file.proto.dependency[:]  # it names no file of Google's
    return file.proto


@lru_cache(maxsize=1)
def descriptor_path() -> str:
    """A file with the descriptor set of `order_file`, for as long as the process lives."""
    from google.protobuf import descriptor_pb2

    made = descriptor_pb2.FileDescriptorSet(file=[order_file()])
    with tempfile.NamedTemporaryFile(suffix=".desc", delete=False) as file:
        file.write(made.SerializeToString())
    atexit.register(os.remove, file.name)
    return file.name


@dataclass(frozen=True)
class FormatCase:
    """A format with the schemas of an order and of its key; `malformed` is not a value of it."""

    name: str
    malformed: bytes
    problem: str
    value: str | None = None
    key: str | None = None
    null_lists: bool = True
    """True if the format tells a list that is null from an empty list."""

    def of_value(self, **more: str) -> dict[str, str]:
        """The options of values."""
        return self._of("value", self.value, more)

    def of_key(self, **more: str) -> dict[str, str]:
        """The options of keys."""
        if self.name == "protobuf":
            more |= {"message.name": "shop.Key"}
        return self._of("key", self.key, more)

    def _of(self, side: str, schema: str | None, more: dict[str, str]) -> dict[str, str]:
        if self.name == "protobuf":
            schema = descriptor_path()
        given = {"format": self.name} | ({} if schema is None else {"schema": schema}) | more
        return {f"{side}.{name}": value for name, value in given.items()}


TEXT = FormatCase("string", b"a\xff", "it is not UTF-8: invalid start byte at byte 1")
AVRO = FormatCase("avro", b"\x02\xff", "not a datum of the schema", ORDER_AVRO, KEY_AVRO)
JSON = FormatCase("json", b'{"id": 1, "amount": tr}', "", ORDER_DDL, KEY_DDL)
PROTOBUF = FormatCase("protobuf", b"\x12\x7fx", "", null_lists=False)
CASES = [JSON, AVRO, PROTOBUF]


DDL_TEXTS = [
    ("id BIGINT, item STRING", "struct<id:bigint,item:string>"),
    ("struct<a:int,b:array<string>>", "struct<a:int,b:array<string>>"),
    ("STRUCT<a int, b: decimal(10, 2)>", "struct<a:int,b:decimal(10,2)>"),
    ("array<struct<x double>>", "array<struct<x:double>>"),
    ("map<string,map<string,timestamp>>", "map<string,map<string,timestamp>>"),
    ("`a b` int, `c``d` long", "struct<a b:int,c`d:bigint>"),
    ("a int NOT NULL COMMENT 'x, y', b date comment \"z\"", "struct<a:int,b:date>"),
    ("date date, struct struct<map:int>", "struct<date:date,struct:struct<map:int>>"),
    ("a decimal, b dec(5)", "struct<a:decimal(10,0),b:decimal(5,0)>"),
    ("c numeric(9,9)", "struct<c:decimal(9,9)>"),
    ("timestamp_ntz", "timestamp_ntz"),
    ("a tinyint, b smallint, c float, d boolean, e binary, f timestamp_ltz",
     "struct<a:tinyint,b:smallint,c:float,d:boolean,e:binary,f:timestamp>"),
    ("a int -- d\n, b int", "struct<a:int,b:int>"),
    ("-- c \\\n d\na int", "struct<a:int>"),
    ("a int comment 'it''s', b int comment r'\\' \"b\"\"c\"", "struct<a:int,b:int>"),
    ("10x int, 5e int, s struct<>", "struct<10x:int,5e:int,s:struct<>>"),
]  # fmt: skip
"""Schemas in DDL, and the types that they are."""


def orders(count: int, *, null_lists: bool = True) -> list[tuple[Any, ...]]:
    """Rows of ORDER_DDL: an order in ten is null as a whole, others have fields that are."""
    made: list[tuple[Any, ...]] = []
    for n in range(count):
        tags = None if n % 4 == 0 and null_lists else [f"t{n}", "", 'é"x'][: n % 4]
        row = (n, None if n % 5 == 0 else f"item {n}", n / 8, tags)
        made.append((None,) if n % 10 == 9 else (row,))
    return made
