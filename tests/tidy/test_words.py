"""The prose of the code, the documents and the commits keeps the rules of `words.py`."""

from __future__ import annotations

import subprocess

import pytest
from tidy import rules, words
from tidy.tree import PRODUCT, ROOT, read_documents, read_tree, refuse

DOCUMENTS = {p: text for p, text in read_documents().items() if not (ROOT / p).is_symlink()}
SHOWN = {**read_tree(*PRODUCT), **DOCUMENTS}
TITLES_SINCE = "2026-11-28T12:11:00Z"
"""Time from which on titles are short; half of the older titles are longer."""


def test_the_product_and_its_documents_use_plain_words() -> None:
    refuse([v for path, text in sorted(SHOWN.items()) for v in words.check_words(path, text)])


def test_documents_and_shown_strings_repeat_the_noun() -> None:
    refuse([v for path, text in sorted(SHOWN.items()) for v in words.check_grammar(path, text)])


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    sources = read_tree(*PRODUCT, "tests", "examples", "docs/pictures")
    refuse([v for path, text in sources.items() for v in words.check_docstrings(path, text)])


def test_titles_of_new_commits_are_short() -> None:
    asked = ["git", "log", "--no-merges", f"--since={TITLES_SINCE}", "--format=%h %s"]
    # A copy of the sources without their history has no titles, and git fails there.
    log = subprocess.run(asked, cwd=ROOT, check=False, capture_output=True, text=True).stdout
    refuse([*words.check_titles(dict(line.split(" ", 1) for line in log.splitlines()))])


def lines(found: list[rules.Violation]) -> list[int]:
    return [violation.line for violation in found]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.md", "x\nIt is parked there.", [2]),
        ("a.md", "it is no number", [1]),
        ("a.md", "there is no number, and it is no longer one", []),
        ("a.md", "no free space, and nothing is delayed", []),
        ("a.py", '"""A.\n\nMade anew."""\n', [3]),
        ("a.py", 'x = f"no room for {y}"\n# told\n', [2, 1]),
        ("a.md", "It waits. Who comes\nlate is refused. Who leads?", [1]),
        ("a.md", "A client who comes late; the broker says who leads.", []),
        ("a.py", "parked = verdict.story\nparking = isToldNow\n", [1, 1, 1, 2, 2]),
    ],
)
def test_a_planted_word_is_found(path: str, text: str, expected: list[int]) -> None:
    assert lines(list(words.check_words(path, text))) == expected


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.md", "x\nAn attempt without an index is none.", [2]),
        ("a.md", "Brokers, three of which\nlead; those of the\ncluster. Nobody reads.", [1, 2, 3]),
        ("a.md", "that which is asked", [1]),
        ("a.md", "those brokers, which lead", []),
        ("a.py", 'x = f"{y} of whom"\n', [1]),
        ("a.py", '"""Sum of those of a."""\n# of those that are none\n', []),
    ],
)
def test_a_planted_pronoun_is_found(path: str, text: str, expected: list[int]) -> None:
    assert sorted(lines(list(words.check_grammar(path, text)))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""What it is."""\n', [1]),
        ('"""(None: no limit.)"""\n', [1]),
        ('class A:\n    """A."""\n\n    b: int\n    """How many."""\n', [5]),
        ('def a():\n    """`So` it is."""\n', [2]),
        ('"""Ones and whatever."""\nx = "What"\n', []),
    ],
)
def test_a_planted_docstring_is_found(text: str, expected: list[int]) -> None:
    assert lines(list(words.check_docstrings("a.py", text))) == expected


def test_a_planted_title_is_found() -> None:
    titles = {"1": "a" * words.TITLE_MAX, "2": "a" * (words.TITLE_MAX + 1)}
    assert [violation.path for violation in words.check_titles(titles)] == ["2"]
