"""A schema in Spark's DDL as a type: `id BIGINT, items ARRAY<STRUCT<name: STRING>>`.

Spark parses DDL in its JVM, which the processes of a Python data source cannot reach. The parser
takes what Spark takes for the schema of `from_json`: columns, or one type. NOT NULL is taken and
has no effect, as in Spark: a value may lack any field. COLLATE, block comments and
TIMESTAMP WITH or WITHOUT TIME ZONE are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NoReturn

from pyspark.sql import types as spark

_TOKEN = re.compile(
    r"""(?P<blank>\s+|--(?:\\\n|[^\r\n])*)
    |`(?P<quoted>(?:[^`]|``)*)`
    |(?P<text>[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<name>[A-Za-z0-9_]+)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"\d+(?:[lsy]|(?:e\d+)?(?:f|d|bd)?)", re.IGNORECASE)
"""Names that are numbers to Spark; other names may begin with digits."""
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
    """Return the type of this DDL; everything in it may be null. ValueError says what is wrong."""
    parser = _Parser(text)
    if not parser.is_type:
        return parser.columns("")
    made = parser.type_()
    if not parser.at_end:
        parser.fail("nothing more")
    return made


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Give kinds and texts, without blanks and `--` comments."""
    for found in _TOKEN.finditer(text):
        kind = str(found.lastgroup)
        if kind == "quoted":
            yield kind, found[kind].replace("``", "`")
        elif kind != "blank":
            yield kind, found[kind]


class _Parser:
    """Recursive descent over the tokens (kind, text): name, quoted name, text, sign."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._tokens)

    @property
    def is_type(self) -> bool:
        """True if the text begins as a type; a column has its type after its name."""
        first, *after = [*self._tokens, ("end", "")][:2]
        known = first[0] == "name" and first[1].lower() in _TYPES
        return known and bool(after) and after[0][1] in ("<", "(", "")

    def _peek(self) -> tuple[str, str]:
        return ("end", "") if self.at_end else self._tokens[self._at]

    def _take_token(self, *wanted: str) -> bool:
        """Step over a sign or a word, in any case, if it is the next."""
        kind, text = self._peek()
        if kind not in ("sign", "name") or text.lower() not in wanted:
            return False
        self._at += 1
        return True

    def _expect(self, *wanted: str) -> None:
        if not self._take_token(*wanted):
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
        """Read columns up to the sign `end`, or to the end of the text."""
        made = spark.StructType()
        if end and self._take_token(end):
            return made
        while True:
            made.add(self._name(made.names), self._type_after_name(bool(end)))
            if not self._take_token(","):
                if end:
                    self._expect(end)
                elif not self.at_end:
                    self.fail("a comma")
                return made

    def _name(self, others: list[str]) -> str:
        kind, name = self._peek()
        is_name = kind == "quoted" or (kind == "name" and not _NUMBER.fullmatch(name))
        if not is_name or name in others:
            self.fail("another column's name" if others else "a column's name")
        self._at += 1
        return name

    def _type_after_name(self, within_struct: bool) -> spark.DataType:
        if within_struct:
            self._take_token(":")
        made = self.type_()
        if self._take_token("not"):
            self._expect("null")
        if self._take_token("comment"):
            if self._peek()[0] != "text":
                self.fail("a comment in quotes")
            while self._peek()[0] == "text":
                self._at += 1
        return made

    def type_(self) -> spark.DataType:
        """Read one type."""
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
        if self._take_token("("):
            precision = self._number()
            if self._take_token(","):
                scale = self._number()
            self._expect(")")
        if not scale <= precision <= _PRECISION_MAX:
            raise ValueError(f"a decimal of at most {_PRECISION_MAX} digits, not fewer than scale")
        return spark.DecimalType(precision, scale)
