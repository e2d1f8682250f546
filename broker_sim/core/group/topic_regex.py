"""Regular expressions of topic names, with the meaning of RE2, as Kafka's RE2J has it.

An expression must match the whole name.
"""

from __future__ import annotations

from collections.abc import Iterable

import re2

_QUIET = re2.Options()
_QUIET.log_errors = False
"""RE2 would write each invalid expression to stderr as well."""


def is_valid(regex: str) -> bool:
    """True if RE2 accepts the expression."""
    try:
        re2.compile(regex, _QUIET)
    except re2.error:
        return False
    return True


def matching(regexes: Iterable[str], names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the names that each expression matches; an invalid expression matches no name."""
    listed = list(names)
    found: dict[str, frozenset[str]] = {}
    for regex in regexes:
        topics: list[str] = []
        if is_valid(regex):
            pattern = re2.compile(regex, _QUIET)
            topics = [name for name in listed if pattern.fullmatch(name)]
        found[regex] = frozenset(topics)
    return found
