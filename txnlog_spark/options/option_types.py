"""Readers of option values: each function reads a text, or returns a function that reads a text.

A reader raises ValueError with the allowed values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from txnlog_kafka.host.security_options import any_text as any_text
from txnlog_kafka.host.security_options import one_of as one_of
from txnlog_kafka.host.security_options import text as text
from txnlog_spark.errors import OptionError
from txnlog_spark.offsets import OffsetFormatError, parse_offsets
from txnlog_spark.storage.location import read_location

_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?")


def size_in_bytes(text: str | None) -> int | None:
    """Return the bytes of a size such as 512m, 1g, 10MB or 1024, all in binary units; None if it is
    not a size."""
    found = _SIZE.fullmatch((text or "").strip().lower())
    return int(found[1]) << 10 * " kmgtp".index(found[2] or " ") if found else None


def local_directory(given: str) -> str:
    """Read a directory on this machine, in the spellings of Spark's users: a path, or file: and a
    path."""
    wanted = "a directory on this machine: a path, or file: and an absolute path"
    try:
        found = read_location("path", text(given))
    except OptionError:
        raise ValueError(wanted) from None
    if found.local is None:
        raise ValueError(wanted)
    return text(given) if found.is_bare else str(found.local)


def class_name(*allowed: str) -> Callable[[str], str]:
    """Return a reader for the name of one of these classes, with or without its package."""

    def read(text: str) -> str:
        name = text.strip().rpartition(".")[2]
        if name not in allowed:
            raise ValueError(" or ".join(allowed))
        return name

    return read


def boolean(text: str) -> bool:
    """Read true or false."""
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ValueError("true or false")
    return value


def integer(minimum: int, maximum: int = 2**63 - 1) -> Callable[[str], int]:
    """Return a reader for an integer within bounds."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= maximum:
            upper = "" if maximum == 2**63 - 1 else f" and at most {maximum}"
            raise ValueError(f"an integer of at least {minimum}{upper}")
        return value

    return read


def positive_or_off(text: str) -> int:
    """Read a positive integer, or -1, which switches the option off."""
    try:
        return -1 if text.strip() == "-1" else integer(1)(text)
    except ValueError as error:
        raise ValueError(f"{error}, or -1") from None


def size(text: str) -> int:
    """Read a size in Spark's notation; return bytes."""
    size_bytes = size_in_bytes(text)
    if size_bytes is None:
        raise ValueError("a size as Spark writes it, such as 256m or 10g")
    return size_bytes


_MS_BY_UNIT = {
    "us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000
}  # fmt: skip
"""Milliseconds of each unit of time in Spark's options."""


def duration_ms(text: str) -> int:
    """Read a time in Spark's notation, such as 15m, in ms without a unit. Return whole ms."""
    found = re.fullmatch(r"([0-9]+)([a-z]*)", text.strip().lower())
    if found is None or (found[2] or "ms") not in _MS_BY_UNIT:
        raise ValueError("a time such as 500ms, 30s or 15m")
    return int(int(found[1]) * _MS_BY_UNIT[found[2] or "ms"])


_READ_OTHERWISE = r"\\0|\\[1-3][0-7]{2}|\\b\{|\(\?[a-zA-Z]*x|[^\0-\x7f]"
_PARTS = re.compile(rf"(?s)({_READ_OTHERWISE})|(\[\^?\]?(?:\\.|[^\\\]])*)|\\.")
_IN_CLASS = re.compile(r"(?s)\\.|&&|\[")


def pattern(given: str) -> str:
    """Read a regular expression that Python and Java, the language of Spark's own source, read
    alike.

    An expression with a difference is refused: a pattern that means something else would silently
    read no topic.
    """
    expression = text(given)
    kind = "a regular expression of Python's re"
    for other, character_class in _PARTS.findall(expression):
        in_class = _IN_CLASS.findall(character_class[1:])
        if "&&" in in_class or "[" in in_class:
            raise ValueError(
                f"{kind}, which takes && and [ in {character_class}] for characters, and Java for "
                "operators: write (?!x)[a-z] for [a-z&&[^x]], and [a-cd-f] for [a-c[d-f]]"
            )
        if other or r"\0" in in_class:
            raise ValueError(
                f"{kind}, which reads {other or character_class} otherwise than Java: write the "
                "characters that topics' names have, which are a-z, A-Z, 0-9, dot, _ and -"
            )
    try:
        re.compile(expression)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{kind} ({error})") from None
    return expression


def topics(text: str) -> tuple[str, ...]:
    """Read topic names, separated by commas."""
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise ValueError("topic names separated by commas")
    return topics


_NAME = r"(?:`(?:[^`]|``)+`|[^.,`\s](?:[^.,`]*[^.,`\s])?)"
_FIELD_PATH = re.compile(rf"\s*({_NAME}(?:\.{_NAME})*)\s*(?:,|\Z)")


def field_paths(text: str) -> tuple[tuple[str, ...], ...]:
    """Read paths of fields, separated by commas; a name with a dot is in Spark's backticks."""
    paths: list[tuple[str, ...]] = []
    at = 0
    while at < len(text) or not paths:
        found = _FIELD_PATH.match(text, at)
        if found is None:
            raise ValueError("fields such as id,customer.name,`a.b`.c")
        names = re.findall(_NAME, found[1].strip())
        paths.append(tuple(_without_backticks(name) for name in names))
        at = found.end()
    return tuple(dict.fromkeys(paths))


def _without_backticks(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def json_value(read: Callable[[str], Any], example: str) -> Callable[[str], Any]:
    """Return a reader for the JSON that `read` understands; `read` raises OffsetFormatError."""

    def parse(text: str) -> Any:
        try:
            return read(text)
        except OffsetFormatError as error:
            raise ValueError(f"JSON such as {example} ({error})") from None

    return parse


def offsets_or(*words: str) -> Callable[[str], Any]:
    """Return a reader for one of these words, or for offsets by topic and partition as JSON."""

    def read(text: str) -> Any:
        word = {each.lower(): each for each in words}.get(text.strip().lower())
        if word is not None:
            return word
        try:
            return parse_offsets(text)
        except OffsetFormatError as error:
            choice = ", ".join(words)
            raise ValueError(f'{choice} or JSON such as {{"topic":{{"0":23}}}} ({error})') from None

    return read
