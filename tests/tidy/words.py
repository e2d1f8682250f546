"""Words that have a plainer one in Kafka's or Spark's documentation, as a function over texts.

Looked at are what people read: strings, docstrings and comments of the product, its documents, and
the names in its code (`NOT_NAMES`).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tidy import rules

PLAIN_WORDS = {
    r"parked|parks?": "delayed, waiting",
    r"anew|(made|makes?|making) again": "again, recreated",
    r"heirs?": "successor",
    r"spoken": "supported",
    r"room": "space, free space",
    r"story": "scenario, run",
    r"told": "reported, answered, distinguished",
    r"verdict": "result",
    r"not there yet": "not supported yet",
    r"cut (off|short)": "truncated, incomplete",
    r"(?<!there )(is|are|was|were) no (?!(longer|more|other|such)\b)": "is not a valid, is not a",
    r"whoever|whomever": "the client, the driver, the reader: name the one that acts",
}
_WHO_AS_A_NOUN = re.compile(r"(?:\A|\n\n|[.:;]\s+)[Ww]ho\s[^?.:;]*?[.:;]", re.M)
"""A clause that begins with "who" and asks nothing: its subject has no name."""
NOT_NAMES = {
    "park": "delay, wait", "parked": "delayed, waiting", "heir": "successor", "room": "space",
    "told": "reported, answered", "verdict": "result, decision", "errand": "background call",
    "stranger": "peer",
}  # fmt: skip
"""Words that are in no name, by what is said instead."""
_PATTERNS = [(re.compile(rf"\b(?:{word})\b", re.I), p) for word, p in PLAIN_WORDS.items()]


def check_words(path: str, source: str) -> Iterator[rules.Violation]:
    """None of PLAIN_WORDS in a document, or in the strings and comments of Python source."""
    if path.endswith(".py"):
        yield from _check_names(path, source)
    for line, text in _texts_of(source) if path.endswith(".py") else [(1, source)]:
        for pattern, plain in _PATTERNS:
            for found in pattern.finditer(text):
                at = line + text.count("\n", 0, found.start())
                yield rules.Violation("word", path, at, f"{found.group()!r}: say {plain}")
        for found in _WHO_AS_A_NOUN.finditer(text):
            at = line + text.count("\n", 0, found.start())
            yield rules.Violation("word", path, at, f"{found.group()!r}: name the one that acts")


def _check_names(path: str, source: str) -> Iterator[rules.Violation]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", token.string).lower().split("_")
            for word in NOT_NAMES.keys() & set(words):
                text = f"{token.string}: say {NOT_NAMES[word]}"
                yield rules.Violation("name", path, token.start[0], text)


def _texts_of(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
