"""Schemas in DDL, without Spark's JVM."""

from __future__ import annotations

import re

import pytest
from support.spark.format_cases import DDL_TEXTS

from txnlog_spark.formats.ddl import parse_ddl


@pytest.mark.parametrize(("text", "type_"), DDL_TEXTS)
def test_columns_or_one_type_are_taken(text: str, type_: str) -> None:
    assert parse_ddl(text).simpleString() == type_


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a column's name at the end"),
        ("id", "a type at the end"),
        ("id int,", "another column's name at the end"),
        ("id int item string", "a comma in place of 'item'"),
        ("id int, id long", "another column's name in place of 'id'"),
        ("id interval", "a type in place of 'interval'"),
        ("array<int", "> at the end"),
        ("map<string>", ", in place of '>'"),
        ("array<int>, x", "nothing more in place of ','"),
        ("a decimal(39)", "at most 38 digits"),
        ("a decimal(2,3)", "not fewer than scale"),
        ("a decimal(x)", "a number in place of 'x'"),
        ("a int comment b", "a comment in quotes in place of 'b'"),
        ("a int not 1", "null in place of '1'"),
        ("a int comment 'b' not null", "a comma in place of 'not'"),
        ("struct<a:int,>", "another column's name in place of '>'"),
        ("array<struct<a:int,>>", "another column's name in place of '>'"),
        ("a: int", "a type in place of ':'"),
        ("1 int", "a column's name in place of '1'"),
        ("1e5 int", "a column's name in place of '1e5'"),
        ("a int, 2d int", "another column's name in place of '2d'"),
        ("a int /* b */", "a comma in place of '/'"),
        ("/* b */ a int", "a column's name in place of '/'"),
        ("a string collate UTF8_LCASE", "a comma in place of 'collate'"),
        ("a int collate UNICODE", "a comma in place of 'collate'"),
        ("a timestamp without time zone", "a comma in place of 'without'"),
        ("a timestamp with local time zone", "a comma in place of 'with'"),
        ("a variant", "a type in place of 'variant'"),
        ("aé int", "a type in place of 'é'"),
    ],
)
def test_what_is_not_ddl_is_named_with_what_would_be(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_ddl(text)
