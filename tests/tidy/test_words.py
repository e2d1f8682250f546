"""The product and its documents say things in Kafka's and Spark's words."""

from __future__ import annotations

import pytest
from tidy import rules
from tidy.tree import PRODUCT, read_documents, read_tree, refuse
from tidy.words import check_words


def test_the_product_and_its_documents_use_plain_words() -> None:
    texts = {**read_tree(*PRODUCT), **read_documents()}
    refuse([found for path, text in sorted(texts.items()) for found in check_words(path, text)])


@pytest.mark.parametrize(
    ("path", "text", "lines"),
    [
        ("a.md", "x\nIt is parked there.", [2]),
        ("a.md", "it is no number", [1]),
        ("a.md", "there is no number, and it is no longer one", []),
        ("a.md", "no free space, and nothing is delayed", []),
        ("a.py", '"""A.\n\nMade anew."""\n', [3]),
        ("a.py", 'x = f"no room for {y}"\n# told\n', [1, 2]),
        ("a.md", "It waits. Who comes\nlate is refused. Who leads?", [1]),
        ("a.md", "A client who comes late; the broker says who leads.", []),
        ("a.py", "parked = verdict.story\nparking = isToldNow\n", [1, 1, 2]),
    ],
)
def test_a_planted_word_is_found(path: str, text: str, lines: list[int]) -> None:
    found: list[rules.Violation] = list(check_words(path, text))
    assert [violation.line for violation in found] == lines
