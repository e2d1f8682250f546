"""Regular expressions of subscribePattern: Java's syntax is the users', Python reads it."""

from __future__ import annotations

import pytest

from txnlog_spark.errors import OptionError
from txnlog_spark.options.declared import Use
from txnlog_spark.options.parse import parse_options


# Of a comparison of Java's and Python's on 250,000 patterns made of the parts of their grammars,
# and 164 names: beside these, no pattern that both take matches other names.
@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("orders-[a-z&&[^x]]7", "write (?!x)[a-z]"),
        ("orders-[a-c[d-f]]7", "[a-c[d-f]"),
        (r"[\w&&[^_]]", r"[\w&&[^_]"),
        ("(payments|orders-[a-f[0-9]]+)", "[a-f[0-9]"),
        ("[^a&&b]", "[^a&&b]"),
        ("[[:alpha:]]+", "[[:alpha:]"),
        (r"[\\[a]", r"[\\[a]"),
        ("[]&&a]", "[]&&a]"),
        (r"\0101", r"\0"),
        (r"[\0101]", r"[\0101"),
        (r"a\101", r"\101"),
        (r"a\b{g}", r"\b{"),
        ("(?i)\N{KELVIN SIGN}", "\N{KELVIN SIGN}"),
        ("(?ix)[^ ]a", "(?ix"),
        ("(?a)(?u)a", "incompatible"),
        ("a{99999999999}", "too large"),
    ],
)
def test_a_pattern_that_java_reads_differently_is_refused(pattern: str, named: str) -> None:
    with pytest.raises(OptionError, match="a regular expression of Python's re") as caught:
        parse_options({"path": "p", "subscribePattern": pattern}, Use.READ_BATCH)
    assert named in caught.value.text


@pytest.mark.parametrize(
    "pattern",
    [
        r"[a\[b]", "[a&b]", "a&&b", r"\[a[b]\]", r"[\]\[]", "t.*", r"[A\s]", r"(a)\1", "[]^a]?",
        r"\\0",
    ],
)  # fmt: skip
def test_a_pattern_that_both_read_alike_is_taken(pattern: str) -> None:
    given = {"path": "p", "subscribePattern": pattern}
    assert parse_options(given, Use.READ_BATCH)["subscribePattern"] == pattern


@pytest.mark.parametrize("pattern", ["[a", "(", r"\Qa\E", r"\p{Alnum}", r"(?<x>a)", "*", " "])
def test_a_pattern_that_is_none_in_python_is_refused(pattern: str) -> None:
    with pytest.raises(OptionError, match=r"a regular expression|a non-empty string"):
        parse_options({"path": "p", "subscribePattern": pattern}, Use.READ_BATCH)
