"""Rules of our prose that a machine can check: words, grammar, docstrings and commit titles.

People read documents, strings, docstrings, comments and names. A sentence names the thing that acts
and repeats the noun, instead of a pronoun or a question word that stands for it.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator, Mapping

from tidy import rules

WORDS = {
    "parks?|parked|parking": "delayed, waiting",
    "errands?": "background call",
    "heirs?": "successor",
    "room": "space, free space",
    "story": "scenario, run",
    "strangers?": "peer",
    "told": "reported, answered, distinguished",
    "verdict": "result, decision",
}
"""Words of ours that have a plainer one in Kafka's or Spark's documentation."""
PHRASES = {
    "anew": "again, recreated",
    r"(?<!there )(is|are|was|were) no (?!(longer|more|other|such)\b)": "is not a valid, is not a",
    r"whoever|whomever": "the client, the driver, the reader: name the one that acts",
}
"""Phrases that no document, string, docstring or comment has, but names may."""
PRONOUNS = {
    r"(is|are) none": "say what happens, or `is not a`",
    r"of (which|whom)": "begin another sentence with the noun",
    r"those (that|of)": "repeat the noun",
    r"that which": "repeat the noun",
    r"nobody": "name the one that does not act: no client, no driver",
}
"""Grammar of the documents, and of the strings that the product shows."""
_WHO_AS_A_NOUN = re.compile(r"(?:\A|\n\n|[.:;]\s+)[Ww]ho\s[^?.:;]*?[.:;]", re.M)
"""A clause that begins with "who" and asks nothing: its subject has no name."""
FIRST_WORDS = "What|Of|Whether|Which|Where|How|Those|One|None|Others|It|So|As|All|Behind"
"""Words that begin no docstring: "Return the ...", "Rows of ...", "True if ..." do."""
TITLE_MAX = 72
_NAMES = {re.compile(pattern): plain for pattern, plain in WORDS.items()}
_FIRST = re.compile(rf"\W*(?:{FIRST_WORDS})\b")
_MAY_BEGIN_SO = re.compile(rf"^\W*\"+\W*(?:{FIRST_WORDS})\b", re.M)
"""Line of a docstring, or of another string: the few files that have any are parsed."""
_TEXTS = [
    (re.compile(rf"\b(?:{pattern})\b", re.I), f"say {plain}")
    for pattern, plain in {**WORDS, **PHRASES}.items()
] + [(_WHO_AS_A_NOUN, "name the one that acts")]
_SHOWN = [(re.compile(rf"\b(?:{pattern})\b", re.I), plain) for pattern, plain in PRONOUNS.items()]


def check_words(path: str, source: str) -> Iterator[rules.Violation]:
    """Yield every word of WORDS and sentence of PHRASES in a document or in the product's code."""
    if not path.endswith(".py"):
        yield from _found(_TEXTS, path, 1, source)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _found(_TEXTS, path, token.start[0], token.string)
        elif token.type == tokenize.NAME:
            for plain in _advice_of(token.string):
                text = f"{token.string}: say {plain}"
                yield rules.Violation("name", path, token.start[0], text)
    for line, text, _ in _strings(source):
        yield from _found(_TEXTS, path, line, text)


def check_grammar(path: str, source: str) -> Iterator[rules.Violation]:
    """Yield every phrase of PRONOUNS in a document, or in a string that the product shows."""
    if not path.endswith(".py"):
        yield from _found(_SHOWN, path, 1, source)
        return
    for line, text, is_docstring in _strings(source):
        if not is_docstring:
            yield from _found(_SHOWN, path, line, text)


def check_docstrings(path: str, source: str) -> Iterator[rules.Violation]:
    """Yield every docstring, of fields and constants too, that begins with one of FIRST_WORDS."""
    if not _MAY_BEGIN_SO.search(source):
        return
    for line, text, is_docstring in _strings(source):
        if is_docstring and _FIRST.match(text):
            shown = text.strip().partition("\n")[0]
            advice = f"{shown[:60]!r}: begin with a verb or a noun"
            yield rules.Violation("docstring", path, line, advice)


def check_titles(titles: Mapping[str, str]) -> Iterator[rules.Violation]:
    """Yield every title, by commit, that `git log --oneline` would not show whole."""
    for commit, title in titles.items():
        if len(title) > TITLE_MAX:
            text = f"{title!r} has {len(title)} characters, at most {TITLE_MAX}"
            yield rules.Violation("title", commit, 1, text)


@functools.cache
def _advice_of(name: str) -> list[str]:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
    return [plain for pattern, plain in _NAMES.items() if any(map(pattern.fullmatch, words))]


def _found(
    patterns: list[tuple[re.Pattern[str], str]], path: str, line: int, text: str
) -> Iterator[rules.Violation]:
    for pattern, advice in patterns:
        for found in pattern.finditer(text):
            at = line + text.count("\n", 0, found.start())
            yield rules.Violation("words", path, at, f"{found.group()!r}: {advice}")


@functools.cache
def _strings(source: str) -> tuple[tuple[int, str, bool], ...]:
    """Return the line and the text of every string, and True if the string is a docstring."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return tuple(
        (node.lineno, node.value, id(node) in docstrings)
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
