"""Schemas in DDL as Spark itself reads them: what `from_json` takes, and as which type."""

from __future__ import annotations

import random
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from txnlog_spark.formats.ddl import parse_ddl
from txnlog_spark.formats.json.decode import json_decoder

pytestmark = [pytest.mark.slow, pytest.mark.weekly]

TEXTS = 400
REFUSED = "refused"
BLANKS = [" "] * 12 + [
    "\n",
    "\t",
    " -- c, d\n",
    "\u00a0",
]
NAMES = ["a", "B_1", "`a.b`", "`x``y`", "int", "map", "date", "comment", "not", "10x", "_", "5e"]
BAD_NAMES = ["1", "1e5", "2L", "3bd", "a-b", "a.b", "é", "aé", "$a", "'a'", "1.5"]
ATOMS = [
    "boolean",
    "tinyint",
    "byte",
    "smallint",
    "short",
    "int",
    "integer",
    "bigint",
    "long",
    "float",
    "real",
    "double",
    "date",
    "binary",
    "timestamp",
    "timestamp_ltz",
    "timestamp_ntz",
    "string",
    "decimal",
    "dec",
    "numeric",
]
MORE_ATOMS = [
    "decimal(5)",
    "numeric(38, 38)",
    "dec( 7,2 )",
]
BAD_ATOMS = [
    "int(3)",
    "string(3)",
    "decimal()",
    "decimal(39)",
    "decimal(2,3)",
    "decimal(-1)",
    "text",
    "uuid",
    "any",
    "`int`",
    "char",
    "varchar",
    "timestamp(3)",
    "array",
    "map",
    "struct",
    "array<>",
    "map<string>",
]
BAD_ATOMS += ["string collate nope", "int collate UNICODE", "double precision", "bigint unsigned"]
TAILS = ["", "", "", " not null", " comment 'x, >'", " COMMENT 'it''s'", " comment \"b\" r'\\'"]
TAILS += [" NOT NULL COMMENT 'a\\'b'"]
BAD_TAILS = [" null", " comment", " comment x", " comment 'a' not null", " default 5", ":", " not"]


class Grammar:
    """Makes texts of Spark's DDL. A few have one thing in them that is not of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.faults = int(self.random.random() < 0.4)

    def text(self) -> str:
        if self.random.random() < 0.3:
            return self.nested(2)
        return self.columns(2, within_struct=False)

    def either(self, right: list[str], wrong: list[str]) -> str:
        if self.faults and self.random.random() < 0.15:
            self.faults = 0
            return self.random.choice(wrong)
        return self.random.choice(right)

    def blank(self) -> str:
        return self.random.choice(BLANKS)

    def columns(self, depth: int, *, within_struct: bool) -> str:
        names = self.random.sample(NAMES, self.random.randint(1, 3))
        made = [self.column(name, depth, within_struct) for name in names]
        comma = self.either([","], [",,", ";", " ", ", ,"])
        end = self.either([""], [",", ";", ">", "/*", "/*+ x */", "'"])
        return (self.blank() + comma + self.blank()).join(made) + end

    def column(self, name: str, depth: int, within_struct: bool) -> str:
        between = self.random.choice([":", self.blank() + " "]) if within_struct else " "
        between = self.either([between], ["::", "="] + ([] if within_struct else [":"]))
        type_ = self.nested(depth - 1) if depth and self.random.random() < 0.4 else self.atom()
        return self.either([name], BAD_NAMES) + between + type_ + self.either(TAILS, BAD_TAILS)

    def atom(self) -> str:
        made = self.either([*ATOMS, *MORE_ATOMS], BAD_ATOMS)
        return self.random.choice([made, made, made.upper() if "'" not in made else made])

    def type_(self, depth: int) -> str:
        return self.nested(depth - 1) if depth and self.random.random() < 0.3 else self.atom()

    def nested(self, depth: int) -> str:
        word = self.random.choice(["array", "MAP", "Struct"])
        if word == "array":
            inside = self.type_(depth)
        elif word == "MAP":
            inside = self.either(["string", "STRING"], ["int", "binary", "date"])
            inside += "," + self.blank() + self.type_(depth)
        else:
            inside = self.columns(depth, within_struct=True)
        end = self.either([">"], ["", ">>", " > >", ")"])
        return word + "<" + self.blank() + inside + self.blank() + end


def theirs(session: Any, text: str) -> str:
    """The type of `from_json` with this schema."""
    try:
        frame = session.range(0).select(sf.from_json(sf.lit("{}"), text).alias("made"))
        return frame.schema["made"].dataType.simpleString()
    except (PySparkException, Py4JJavaError):  # Spark has no error of its own for some texts
        return REFUSED


def ours(text: str) -> str:
    """The type that a read with this `value.schema` has."""
    try:
        type_ = parse_ddl(text)
        json_decoder(type_, "UTC")
    except ValueError:
        return REFUSED
    return type_.simpleString()


def test_ddl_of_a_grammar_is_taken_and_refused_as_by_from_json(connector_spark) -> None:
    texts = [Grammar(seed).text() for seed in range(TEXTS)]
    found = {text: (ours(text), theirs(connector_spark, text)) for text in texts}
    assert {text: both for text, both in found.items() if both[0] != both[1]} == {}
    refused = sum(both[0] == REFUSED for both in found.values())
    assert TEXTS // 20 < refused < TEXTS // 2, "some of both kinds are compared"


@pytest.mark.parametrize(
    "type_",
    [
        *("variant", "void", "interval day", "time(3)", "geometry(4326)", "decimal(0)"),
        *("timestamp without time zone", "timestamp with local time zone"),
        *("int, a int", "string collate UTF8_LCASE", "int /* a comment */"),
    ],
)
def test_what_the_document_says_is_refused_here_alone(connector_spark, type_: str) -> None:
    assert ours(f"a {type_}") == REFUSED
    assert theirs(connector_spark, f"a {type_}") != REFUSED
