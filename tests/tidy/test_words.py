"""The product and its documents say things in Kafka's and Spark's words."""

from __future__ import annotations

import pytest
from tidy import rules
from tidy.tree import PRODUCT, ROOT, read_tree, refuse
from tidy.words import check_words

DOCUMENTS = ("README.md", "docs/*.md", "*/*.md")


def test_the_product_and_its_documents_use_plain_words() -> None:
    paths = {path for pattern in DOCUMENTS for path in ROOT.glob(pattern)}
    documents = {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in paths}
    assert {"README.md", "docs/invariants.md", "broker_sim/DIFFERENCES.md"} <= set(documents)
    texts = {**read_tree(*PRODUCT), **documents}
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
