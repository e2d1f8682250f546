"""Regular expressions of RE2's syntax: what they match, what they refuse, and that they end."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.core.patterns import InvalidPattern, Pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("", [""], ["a"]),
        ("abc", ["abc"], ["ab", "abcd", "xabc"]),
        ("a|bc|", ["a", "bc", ""], ["b", "abc"]),
        ("app-.*", ["app-", "app-1"], ["app", "my-app-1", "app-\n"]),
        ("(?s)app-.*", ["app-\n"], ["app"]),
        ("(a|b)+c?", ["a", "abba", "abc"], ["", "c", "acc"]),
        ("a{2}b{1,}c{0,2}", ["aab", "aabbcc"], ["ab", "aac", "aabccc"]),
        ("a{,2}", ["a{,2}"], ["a", "aa"]),
        ("x*?y+?z??", ["y", "xxyy", "yz"], ["x"]),
        ("[a-c_.-]+", ["a.b-c_"], ["d", ""]),
        ("[^a-c]", ["d", "\n", "é"], ["a", ""]),
        ("[]a]", ["]", "a"], ["b"]),
        (r"[\d\-x]+", ["1-x"], ["a"]),
        (r"\d\w\s\D\W\S", ["1a ab1"[:4] + "-x"], ["1a a-"]),
        (r"\.\*\\", [".*\\"], ["a*\\"]),
        (r"\x41\x{1F600}\n\0", ["A😀\n\0"], ["A"]),
        (r"\Qa.b*\Ec", ["a.b*c"], ["axbc"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        ("^a$", ["a"], ["b"]),
        (r"\Aa\bb|c\z", ["c"], ["ab"]),
        (r"a\B.\b-", ["ab-"], ["a--"]),
        ("(?m)a$\n^b", ["a\nb"], ["ab"]),
        ("a$\n^b", [], ["a\nb"]),
        ("(?i)Ab[c-d](?-i)E", ["aBCE", "ABDE"], ["ABCe"]),
        ("a(?i:b)c", ["aBc", "abc"], ["Abc", "abC"]),
        ("(?:a)(?P<name>b)(?<other>c)", ["abc"], ["ab"]),
        ("[[:alpha:]]+[[:^digit:]]", ["ab-"], ["ab1"]),
        (r"\pL+\p{Nd}\P{Lu}", ["é1a"], ["é1A"]),
        ("((((a))))", ["a"], [""]),
        ("(a*)*b", ["b", "aab"], ["a"]),
        ("(|a)+", ["", "aa"], ["b"]),
    ],
)
def test_what_matches_as_a_whole(pattern, matching, others) -> None:
    compiled = Pattern(pattern)
    for text in matching:
        assert compiled.matches(text), text
    for text in others:
        assert not compiled.matches(text), text


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "(?", "(?a)", "(?P<1>a)", "(?P<a", "[", "[a", "[b-a]", "[a-\\d]",
        "[[:no:]]", "*", "+a", "a**", "a+*", "a{2}{3}", "{2}", "a{3,2}", "a{1001}", "\\", "\\y",
        "\\8", "\\x4", "\\x{110000}", "\\xzz", "\\pX", "\\p{Greek}", "\\p{L", "(?i", "(" * 300,
        "(a{1000}){1000}", "((a{100}){100}){100}", "a|" * 5000, "a" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(pattern) -> None:
    with pytest.raises(InvalidPattern):
        Pattern(pattern)


def test_a_pattern_that_would_explode_by_backtracking_is_answered() -> None:
    text = "a" * 3000
    for pattern in ("(a*)*b", "(a|aa)+b", "(a|a?)+b", "(.*)(.*)(.*)(.*)b"):
        assert not Pattern(pattern).matches(text)


PIECES = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", "(?:a|b)", "(?:ab|)", "a*", "b+", "a?", "(?:ab)*", "a{1,3}",
     "(?:a|bb){2}", "^", "$", r"\b", r"\w", "(?:a*b)*", "b*?"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=6), st.text("ab-", max_size=8))
def test_common_syntax_means_what_it_means_to_python(pieces, text) -> None:
    pattern = "".join(pieces)
    # Python's $ also stands before a last new line, which these texts have not.
    assert Pattern(pattern).matches(text) == bool(re.fullmatch(pattern, text, re.ASCII))


@given(st.text("ab()[]{}|*+?\\^$.-,2:PQ<>i ", max_size=20))
def test_any_text_is_a_pattern_or_is_refused(text) -> None:
    try:
        compiled = Pattern(text)
    except InvalidPattern:
        return
    compiled.matches("ab2")
