"""JSON texts for tests: of given Spark types, odd, hostile and damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark

SCHEMAS = (
    "struct<a:int,b:string,c:double,d:boolean,e:bigint>",
    "struct<a:tinyint,b:smallint,c:float,d:double>",
    "struct<a:decimal(5,2),b:decimal(38,18),c:decimal(18,0),d:decimal(20,20)>",
    "struct<a:date,b:timestamp,c:timestamp_ntz>",
    "struct<a:binary,b:string>",
    "struct<a:struct<a:int,b:string>,b:array<int>,c:array<struct<a:double>>>",
    "struct<a:map<string,int>,b:map<string,struct<a:string>>,c:map<string,array<float>>>",
    "struct<a:string,b:array<string>,c:struct<a:string>>",
    "array<int>",
    "array<struct<a:int,b:string>>",
    "array<array<string>>",
    "map<string,double>",
    "map<string,map<string,timestamp>>",
    "struct<a:array<array<decimal(10,3)>>,b:array<date>,c:array<binary>,d:array<boolean>>",
    "struct<a:struct<>,b:int>",
    "struct<a:map<string,timestamp_ntz>,b:map<string,decimal(9,2)>,c:map<string,binary>,d:date>",
    "struct<a:timestamp,A:string,b:struct<c:struct<d:float,e:array<bigint>>,f:string>>",
)
"""Spark types of whole values. Fields have the same names everywhere, so texts of one nearly fit
another."""

NUMBERS = (
    "0", "-0", "1", "-1", "127", "128", "-128", "-129", "255", "256", "32767", "32768", "-32769",
    "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "1.0", "-0.0", "1e2",
    "1E+2", "1.5e-3", "0.1", "1.005", "-1.005", "999.995", "1e400", "-1e400", "1e-400", "00", "01",
    "1.", ".5", "-", "+1", "1e", "0x1", "123456789012345678901234567890", "16777217",
    "9007199254740993", "1.00000017881393432617187499", "3.4028236e38", "3.4028235677973366e38",
    "12345678.5", "1234567.5", "0.001", "0.0001", "1e1000000000", "1e20", "12345678901234567890.5",
    "0.123456789012345678901234567890", "1577934245", "9223372036855", "NaN", "Infinity",
    "-Infinity", "1" * 39, "1e38", "1e77", "0.1e40", "12e-40", "1" * 28, "1" * 29 + ".5",
    "+Infinity", "INF", "+INF", "-INF", "Inf", "-Inf", "-NaN", "nan", "2.0E-3", "1e23", "4.9e-324",
)  # fmt: skip
WORDS = (
    "", "x", "é", "😀", "null", "true", "NaN", "INF", "+INF", "-INF", "Infinity", "-Infinity",
    "+Infinity", "1", "1.5", "1,000.5", ",1", "1.", ".5", " 1", "1e2", "0e99999", "1E400", "$1",
    "aGVsbG8=", "aGVsbG8", "aGVsbG9=", "aGVs bG8=", " aGVs", "a GVs", "aGV=", "aG==", "aG==aG==",
    "aG==x", "-_-_", "+/+/", "=", "a", "aa", "****",
    "2020-01-02", "2020-1-2", "2020", "2020-01", "2020-02-30", "2020-02-29", "2019-02-29",
    "2020-01-02T10", "2020-01-02 x", " 2020-01-02 ", "+10000-01-01", "-0001-01-01", "0000-01-01",
    "5000000-01-01", "9999999-01-01", "2020-01-02GMT", "10", "-5", "+10", "12345678", "-99999999",
    "2147483648", "1582-10-10", "0001-01-01", "9999-12-31", "2020-13-01", "2020-00-01",
    "2020-01-02T03:04:05Z", "2020-01-02 03:04:05", "2020-01-02T03:04:05.123456789Z",
    "2020-01-02T03:04:05.1", "2020-01-02T03:04", "2020-01-02T03", "2020-01-02T03:04Z",
    "2020-01-02T03:04:05+01:00", "2020-01-02T03:04:05-05:30", "2020-01-02T03:04:05+0100",
    "2020-01-02T03:04:05+18:00", "2020-01-02T03:04:05+18:01", "2020-01-02T03:04:05+00:60",
    "2020-01-02T03:04:05 Europe/Paris", "2020-01-02T03:04:05PST", "2020-01-02T03:04:05GMT+1",
    "2020-01-02T03:04:05America/new_york", "2020-01-02T03:04:05EST", "2020-01-02T3:4:5.000001+1:2",
    "2020-03-08 02:30:00", "2020-11-01 01:30:00", "2020-11-01T01:30:00.5", "1883-11-18 12:00:00",
    "2020-01-02T24:00:00", "2020-01-02T23:59:60", "9999-12-31T23:59:59.999999Z",
    "10000-01-01T00:00:00Z", "300000-01-01T00:00:00Z", "-0044-03-15 00:00:00",
    "2500-07-01 00:00:00",
    "2020-01-02T03:04:05.Z", "2020-01-02T03:04:05.", "2020-01-02t03:04:05Z", "2020-01-02T03:04:05z",
    "2020-01-02T", "2020-01-02T03:", "2020-01-02T03:04:", "+20:10", "2020-01-02T03:04:05.1.2",
    "2020-01-02T03:04:05.1234567890123456789012345678Z", "2020-01-02T03:04:05UTC+01:30",
    "2020-01-02  03:04:05", "2020-01-02T03:04:05 Z", "2020-01-02T003:04:05",
)  # fmt: skip
ESCAPES = (
    "\\n", "\\\"", "\\\\", "\\/", "\\u0000", "\\u00e9", "\\ud83d\\ude00", "\\ud800", "\\ude00",
    "\\ude00\\ud83d", "\\x", "\\u12g4", "\\'", "\\u001f", "\\b\\f\\t\\r", "\\", "\t", "\x7f", "'",
)  # fmt: skip
WHOLE = (
    b"", b" ", b"\n", b"\x00", b"null", b"1", b'"x"', b"{}", b"[]", b"{ }", b"[ ]", b"{,}", b"[,]",
    b"{", b"[", b"}", b"]", b"nullx", b"true", b"{}x", b"{}{", b'{"a":1}{"a":2}', b'{"a":1}null{}',
    b'{"a":1} {"b":', b'{"a":1}}', b'{"a":{"b":1}', b"[{}]", b"[null]", b"[[]]", b"[1] x",
    b'\xef\xbb\xbf{"a":1}', b"/**/{}", b"{}//", b'{"a":1#}\n}', b"{a:1}", b"{'a':1}", b"{'a\\'':1}",
    b'{"a":1,}', b'{"a" 1}', b'{"a"=1}', b'{"a":1;}', b'{"a":1 "b":2}', b"[1 2]", b"[1,]", b"[,1]",
    b'{"a":\x0b1}', b'{"a":1\xc2\xa0}', b'{"a":1\x00}', b'{"a":1}\x00', b'{"\\u0061":1}',
    b'{"\\ud800":1}', b'{"a\n":1}', b'{"":1}', b"[{},{}", b"  {}", b"\t\r\n []", b'{"a":1,"a":"x"}',
    b'{"z":' + b"[" * 999 + b"]" * 999 + b"}", b'{"z":' + b"[" * 1000 + b"]" * 1000 + b"}",
    b'{"a":' + b"[" * 999 + b"]" * 999 + b"}", b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}",
    b"[" * 1000 + b"]" * 1000, b"[" * 1001 + b"]" * 1001, b'{"a":' * 1001 + b"1" + b"}" * 1001,
    b'{"z":' + b"1" * 1000 + b"}", b'{"z":0.' + b"1" * 1000 + b"}", b'{"z":1.' + b"1" * 999 + b"}",
    b'{"' + b"z" * 50_000 + b'":1}',
    b'{"z":"' + b"z" * 60_000 + b'"}', b'{"a":1,"b":"' + b"\\\"" * 30_000 + b'"}',
)  # fmt: skip


def texts(type_: spark.DataType, count: int, seed: int) -> list[bytes]:
    """Texts of a type, most of them right, and `WHOLE`."""
    made = Texts(random.Random(seed))
    return [*WHOLE, *(made.text(type_) for _ in range(count - len(WHOLE)))]


class Texts:
    """Writer of texts; `odd` is the share of values that do not fit their type."""

    def __init__(self, rng: random.Random, odd: float = 0.04, damaged: float = 0.1) -> None:
        self._rng, self._odd, self._damaged = rng, odd, damaged

    def text(self, type_: spark.DataType) -> bytes:
        written = self.value(type_).encode("utf-8", "surrogatepass")
        if self._rng.random() < 0.03:
            written = self._rng.choice([b" ", b"\n\t"]) + written + b" "
        return self.damage(written) if self._rng.random() < self._damaged else written

    def damage(self, text: bytes) -> bytes:
        """Change bytes in one to three places."""
        made = bytearray(text)
        for _ in range(self._rng.randint(1, 3)):
            at = self._rng.randint(0, len(made))
            if self._rng.random() < 0.5:
                del made[at : at + self._rng.randint(1, 3)]
            else:
                made[at:at] = self._rng.choice(_DAMAGE)
        return bytes(made)

    def value(self, type_: spark.DataType) -> str:
        rng = self._rng
        if rng.random() < self._odd:
            return rng.choice([self.number, self.word, self.any_value])()
        if rng.random() < 0.06:
            return "null"
        if isinstance(type_, spark.StructType):
            return self._struct(type_)
        if isinstance(type_, spark.ArrayType):
            items = [self.value(type_.elementType) for _ in range(rng.randint(0, 3))]
            return f"[{self._comma().join(items)}]"
        if isinstance(type_, spark.MapType):
            members = [
                f"{self.word()}:{self.value(type_.valueType)}" for _ in range(rng.randint(0, 3))
            ]
            return f"{{{','.join(members)}}}"
        return self._of_type(type_)()

    def _struct(self, type_: spark.StructType) -> str:
        rng = self._rng
        members = [
            f'"{field.name}"{self._colon()}{self.value(field.dataType)}'
            for field in type_
            if rng.random() < 0.9
        ]
        if rng.random() < 0.15:
            members.append(f'"z":{self.any_value()}')
        if rng.random() < 0.02 and members:
            members.append(rng.choice(members))
        rng.shuffle(members)
        return f"{{{self._comma().join(members)}}}"

    def _of_type(self, type_: spark.DataType) -> Callable[[], str]:
        rng = self._rng
        if isinstance(type_, spark.BooleanType):
            return lambda: rng.choice(["true", "false"])
        if isinstance(type_, spark.IntegralType):
            bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}[type_.simpleString()]
            return lambda: str(rng.getrandbits(rng.randint(0, bits - 1)) * rng.choice([1, -1]))
        if isinstance(type_, spark.DecimalType):
            whole = type_.precision - type_.scale
            return lambda: self._decimal(rng.randint(0, whole), rng.randint(0, type_.scale + 2))
        if isinstance(type_, spark.FractionalType):
            return rng.choice([self.number, lambda: repr(rng.uniform(-1e3, 1e3))])
        if isinstance(type_, spark.BinaryType):
            return lambda: f'"{rng.randbytes(8).hex()[: 4 * rng.randint(0, 3)]}"'
        if isinstance(type_, spark.StringType):
            return self.word
        return self._moment(type_)

    def _moment(self, type_: spark.DataType) -> Callable[[], str]:
        rng = self._rng
        day = f"{rng.randint(1900, 2100)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        if isinstance(type_, spark.DateType):
            return lambda: f'"{day}"'
        time = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"
        fraction = rng.choice(["", f".{rng.getrandbits(rng.randint(1, 30))}"])
        zone = rng.choice(["", "Z", "+01:00", "-09:30"])
        zone = zone if isinstance(type_, spark.TimestampType) else ""
        return lambda: f'"{day}{rng.choice("T ")}{time}{fraction}{zone}"'

    def _decimal(self, whole: int, places: int) -> str:
        rng = self._rng
        made = str(rng.randrange(10**whole)) if whole else "0"
        if places:
            made += "." + str(rng.randrange(10**places)).rjust(places, "0")
        return rng.choice([made, "-" + made, f'"{made}"'])

    def _comma(self) -> str:
        return self._rng.choice([",", ",", ",", " , ", ",\n"])

    def _colon(self) -> str:
        return self._rng.choice([":", ":", ":", " : "])

    def number(self) -> str:
        return self._rng.choice(NUMBERS)

    def word(self) -> str:
        rng = self._rng
        if rng.random() < 0.1:
            return f'"{rng.choice(ESCAPES)}{rng.choice(["", "y"])}"'
        if rng.random() < 0.03:
            return f"'{rng.choice(WORDS)}'"
        return f'"{rng.choice(WORDS)}"'

    def any_value(self, depth: int = 2) -> str:
        """Return any JSON value, or nearly one."""
        rng = self._rng
        kind = rng.choice(["word", "number", "literal", "array", "object"][: 3 + depth])
        if kind == "array":
            items = [self.any_value(depth - 1) for _ in range(rng.randint(0, 3))]
            return f"[{self._comma().join(items)}]"
        if kind == "object":
            members = [
                f"{self.word()}{self._colon()}{self.any_value(depth - 1)}"
                for _ in range(rng.randint(0, 3))
            ]
            return f"{{{self._comma().join(members)}}}"
        if kind == "literal":
            return rng.choice(["true", "false", "null", "tru", "NULL", "{}", "[]"])
        return self.word() if kind == "word" else self.number()


_DAMAGE = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"'", b"\\", b" ", b"\n", b"\x00", b"\xff", b"1",
    b"-",
    b".", b"e", b"null", b"}null{", b"}{", b"}\n{", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x98",
    b"true", b"NaN", b"Inf", b"\\u", b"\xc3\xa9", b"/", b"#", b"\xef\xbb\xbf", b"0",
)  # fmt: skip


def plain(array: Any) -> list[Any]:
    """Values that can be compared: dates and timestamps as numbers, numbers as Python shows them,
    which tells the two zeros apart."""
    type_ = array.type
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(type_):
        children = [plain(array.field(at)) for at in range(type_.num_fields)]
        rows = [list(row) for row in zip(*children, strict=True)] or [[] for _ in valid]
        return [row if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]
    if pa.types.is_map(type_) or pa.types.is_list(type_):
        bounds = array.offsets.to_pylist()
        if pa.types.is_map(type_):
            items = list(zip(plain(array.keys), plain(array.items), strict=True))
        else:
            items = plain(array.values)
        found = [items[start:end] for start, end in pairwise(bounds)]
        return [row if is_valid else None for row, is_valid in zip(found, valid, strict=True)]
    if pa.types.is_date32(type_):
        return array.view(pa.int32()).to_pylist()
    if pa.types.is_timestamp(type_):
        return array.view(pa.int64()).to_pylist()
    if pa.types.is_floating(type_):
        return [None if value is None else repr(value) for value in array.to_pylist()]
    return array.to_pylist()
