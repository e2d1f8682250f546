"""A schema in Spark's DDL as a type: `id BIGINT, items ARRAY<STRUCT<name: STRING>>`.

Spark parses DDL in its JVM, which the processes of a Python data source have no way to. What is
taken is what Spark takes for the schema of `from_json`: columns, or one type. NOT NULL is taken
and has no effect, as there: a value may lack any field.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from pyspark.sql import types as spark

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)*)`|([A-Za-z_0-9]\w*)|('(?:[^'\\]|\\.)*'|\"[^\"]*\")|(.))")
_ATOMS: dict[str, Callable[[], spark.DataType]] = {
    "boolean": spark.BooleanType,
    "tinyint": spark.ByteType,
    "byte": spark.ByteType,
    "smallint": spark.ShortType,
    "short": spark.ShortType,
    "int": spark.IntegerType,
    "integer": spark.IntegerType,
    "bigint": spark.LongType,
    "long": spark.LongType,
    "float": spark.FloatType,
    "real": spark.FloatType,
    "double": spark.DoubleType,
    "date": spark.DateType,
    "timestamp": spark.TimestampType,
    "timestamp_ltz": spark.TimestampType,
    "timestamp_ntz": spark.TimestampNTZType,
    "string": spark.StringType,
    "binary": spark.BinaryType,
}
_DECIMALS = ("decimal", "dec", "numeric")
_TYPES = (*_ATOMS, *_DECIMALS, "array", "map", "struct")
_PRECISION_MAX = 38


def parse_ddl(text: str) -> spark.DataType:
    """The type of this DDL, in which everything may be null. ValueError says what is wrong."""
    parser = _Parser(text)
    if not parser.is_type:
        return parser.columns("")
    made = parser.type_()
    if not parser.at_end:
        parser.fail("nothing more")
    return made


class _Parser:
    """Recursive descent over the tokens (kind, text): name, quoted name, text, sign."""

    def __init__(self, text: str) -> None:
        self._text = text.strip()
        self._tokens = [
            ("quoted", quoted.replace("``", "`")) if quoted is not None
            else ("name", name) if name is not None
            else ("text", string) if string is not None
            else ("sign", sign)
            for quoted, name, string, sign in (
                found.groups() for found in _TOKEN.finditer(self._text)
            )
        ]  # fmt: skip
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._tokens)

    @property
    def is_type(self) -> bool:
        """Whether it begins as a type does: a column has its type after its name."""
        first, *after = [*self._tokens, ("end", "")][:2]
        known = first[0] == "name" and first[1].lower() in _TYPES
        return known and bool(after) and after[0][1] in ("<", "(", "")

    def _peek(self) -> tuple[str, str]:
        return ("end", "") if self.at_end else self._tokens[self._at]

    def _take(self, *wanted: str) -> bool:
        """Step over a sign or a word, in any case, if it is the next."""
        kind, text = self._peek()
        if kind not in ("sign", "name") or text.lower() not in wanted:
            return False
        self._at += 1
        return True

    def _expect(self, *wanted: str) -> None:
        if not self._take(*wanted):
            self.fail(" or ".join(wanted))

    def fail(self, wanted: str) -> NoReturn:
        """Raise ValueError: `wanted` in place of what is next."""
        text = self._peek()[1]
        raise ValueError(f"{wanted} in place of {text!r}" if text else f"{wanted} at the end")

    def _number(self) -> int:
        kind, text = self._peek()
        if kind != "name" or not text.isdecimal():
            self.fail("a number")
        self._at += 1
        return int(text)

    def columns(self, end: str) -> spark.StructType:
        """Columns up to the sign `end`, or to the end of the text."""
        made = spark.StructType()
        while not (end and self._take(end)):
            kind, name = self._peek()
            if kind not in ("name", "quoted") or name in made.names:
                self.fail("another column's name" if made.names else "a column's name")
            self._at += 1
            self._take(":")
            made.add(name, self.type_())
            if self._take("not"):
                self._expect("null")
            if self._take("comment"):
                if self._peek()[0] != "text":
                    self.fail("a comment in quotes")
                self._at += 1
            if not self._take(","):
                if end:
                    self._expect(end)
                elif not self.at_end:
                    self.fail("a comma")
                return made
        return made

    def type_(self) -> spark.DataType:
        """One type."""
        kind, text = self._peek()
        name = text.lower()
        if kind != "name" or name not in _TYPES:
            self.fail("a type")
        self._at += 1
        if name in _ATOMS:
            return _ATOMS[name]()
        if name in _DECIMALS:
            return self._decimal()
        self._expect("<")
        if name == "struct":
            return self.columns(">")
        first = self.type_()
        if name == "array":
            self._expect(">")
            return spark.ArrayType(first)
        self._expect(",")
        second = self.type_()
        self._expect(">")
        return spark.MapType(first, second)

    def _decimal(self) -> spark.DataType:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number()
            if self._take(","):
                scale = self._number()
            self._expect(")")
        if not scale <= precision <= _PRECISION_MAX:
            raise ValueError(f"a decimal of at most {_PRECISION_MAX} digits, not fewer than scale")
        return spark.DecimalType(precision, scale)
