"""JSON texts to Spark values one at a time, as Spark's `from_json` reads them with its defaults.

This is the meaning of the format: `decode` reads many texts at once where that gives the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

from txnlog_spark.json.text import escaped, java_double, java_string, unescaped

NESTING_MAX = 1000
NUMBER_MAX = 1000
NAME_MAX = 50_000
"""Jackson's limits (`StreamReadConstraints`)."""

_BLANKS = re.compile(r"[ \t\r\n]*+")
_ESCAPED = r"\\(?:[\"\\/bfnrt']|u[0-9a-fA-F]{4})"
# No possessive repeat of a group: `re` of Python 3.11.4 and before goes on in the middle of one
# (gh-106052).
_QUOTED = {
    '"': re.compile(rf'"([^"\\\x00-\x1f]*(?:{_ESCAPED}[^"\\\x00-\x1f]*)*)"'),
    "'": re.compile(rf"'([^'\\\x00-\x1f]*(?:{_ESCAPED}[^'\\\x00-\x1f]*)*)'"),
}
_PLAIN_NAME = re.compile(r'"([^"\\\x00-\x1f]*+)"[ \t\r\n]*+:[ \t\r\n]*+')
"""Most names; the others are read step by step."""
_BETWEEN = re.compile(r"[ \t\r\n]*+,[ \t\r\n]*+")
_WITH_CONTROLS = re.compile(rf'"([^"\\]*(?:{_ESCAPED}[^"\\]*)*)"')
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE][+-]?([0-9]+))?")
_LITERAL = re.compile(r"true|false|null|NaN|[+-]?Infinity|[+-]INF")
NOT_FINITE = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "+Infinity": float("inf"),
    "+INF": float("inf"),
    "-Infinity": float("-inf"),
    "-INF": float("-inf"),
}
_WORD = re.compile(r"[^\s,:{}\[\]]{0,40}")


class MalformedJson(Exception):
    """A text that `from_json` finds malformed; the argument says why."""


class Cursor:
    """A place in a JSON text, and what can be read there."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def blanks(self) -> None:
        """Go to the next character that is not blank."""
        self.at = _BLANKS.match(self.text, self.at).end()  # type: ignore[union-attr]

    def peek(self) -> str:
        """The character here."""
        if self.at >= len(self.text):
            raise MalformedJson("the text ends too early")
        return self.text[self.at]

    def refuse(self) -> NoReturn:
        """Nothing of JSON begins here."""
        found = _WORD.match(self.text, self.at)
        shown = (found[0] if found else "") or self.text[self.at : self.at + 1]
        raise MalformedJson(f"{shown!r} at character {self.at + 1} is not JSON")

    def string(self, controls: bool = False) -> str:
        """The string here; with `controls` also one with control characters in double quotes."""
        quoted = _WITH_CONTROLS if controls and self.peek() == '"' else _QUOTED.get(self.peek())
        found = quoted.match(self.text, self.at) if quoted else None
        if not found:
            self.refuse()
        self.at = found.end()
        return unescaped(found[1])

    def name(self) -> str:
        """The name of a member, and the colon after it."""
        plain = _PLAIN_NAME.match(self.text, self.at)
        if plain and len(plain[1]) <= NAME_MAX // 2:
            self.at = plain.end()
            return plain[1]
        made = self.string()
        if len(made.encode("utf-16-le", "surrogatepass")) > 2 * NAME_MAX:
            raise MalformedJson(f"a name has more than {NAME_MAX} characters")
        self.blanks()
        if self.peek() != ":":
            self.refuse()
        self.at += 1
        self.blanks()
        return made

    def literal(self) -> str:
        """The literal here, such as true or NaN; none where there is none."""
        found = _LITERAL.match(self.text, self.at)
        if not found:
            return ""
        self.at = found.end()
        return found[0]

    def number(self) -> re.Match[str]:
        """The number here: its groups are the digits before and after the point, and of the
        exponent."""
        found = NUMBER.match(self.text, self.at)
        if not found:
            self.refuse()
        self.at = found.end()
        if len(found[0]) > NUMBER_MAX:
            whole, fraction, exponent = found.groups(default="")
            digits = len(fraction) + len(exponent) + (0 if whole == "0" else len(whole))
            if digits > NUMBER_MAX:
                raise MalformedJson(f"a number has more than {NUMBER_MAX} digits")
        return found

    def opened(self, closing: str, depth: int) -> bool:
        """Go into an array or object; false where it is empty."""
        if depth > NESTING_MAX:
            raise MalformedJson(f"nested more than {NESTING_MAX} deep")
        self.at += 1
        self.blanks()
        if self.peek() == closing:
            self.at += 1
            return False
        return True

    def another(self, closing: str) -> bool:
        """Go to the next element or member; false where this was the last."""
        between = _BETWEEN.match(self.text, self.at)
        if between:
            self.at = between.end()
            return True
        self.blanks()
        if self.peek() != closing:
            self.refuse()
        self.at += 1
        return False

    def scalar(self) -> str:
        """A string, number or literal, as Jackson writes it again."""
        if self.peek() in _QUOTED:
            return f'"{escaped_ascii(self.string())}"'
        literal = self.literal()
        if literal:
            return _quoted_double(NOT_FINITE[literal]) if literal in NOT_FINITE else literal
        found = self.number()
        if found[2] is None and found[3] is None:
            return "0" if found[0] == "-0" else found[0]
        return _quoted_double(float(found[0]))

    def skip(self, depth: int) -> str:
        """Any value, as Jackson writes it again. The value here is `depth` deep."""
        closings: list[str] = []
        made: list[str] = []
        while True:
            found = self.peek()
            if found in _CLOSINGS:
                closing = _CLOSINGS[found]
                made.append(found)
                if self.opened(closing, depth + len(closings)):
                    closings.append(closing)
                    self._name_of(closing, made)
                    continue
                made.append(closing)
            else:
                made.append(self.scalar())
            while closings and not self.another(closings[-1]):
                made.append(closings.pop())
            if not closings:
                return "".join(made)
            made.append(",")
            self._name_of(closings[-1], made)

    def _name_of(self, closing: str, made: list[str]) -> None:
        if closing == "}":
            made.append(f'"{escaped_ascii(self.name())}":')


_CLOSINGS = {"{": "}", "[": "]"}


def escaped_ascii(text: str) -> str:
    """As Jackson writes a string to bytes: what needs two characters in Java as two escapes."""
    made = escaped(text)
    return made if made.isascii() else _WIDE.sub(_utf16_escapes, made)


_WIDE = re.compile("[\ud800-\udfff\U00010000-\U0010ffff]")


def _utf16_escapes(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex().upper()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _quoted_double(value: float) -> str:
    made = java_double(value)
    return made if made[-1].isdigit() else f'"{made}"'


Convert = Callable[[Cursor, int], Any]
"""Reads the value at a cursor, this deep, as one Spark type."""


def read_array(cursor: Cursor, depth: int, element: Convert) -> list[Any]:
    """The elements of the array here."""
    made: list[Any] = []
    more = cursor.opened("]", depth)
    while more:
        made.append(element(cursor, depth + 1))
        more = cursor.another("]")
    return made


def read_map(cursor: Cursor, depth: int, value: Convert) -> list[tuple[str, Any]]:
    """The members of the object here, also those with the same name."""
    made: list[tuple[str, Any]] = []
    more = cursor.opened("}", depth)
    while more:
        name = cursor.name()
        made.append((java_string(name), value(cursor, depth + 1)))
        more = cursor.another("}")
    return made


def read_struct(
    cursor: Cursor, depth: int, places: dict[str, int], fields: list[Convert]
) -> tuple[Any, ...]:
    """The fields of the object here; the last member of a name counts, and others are skipped."""
    made: list[Any] = [None] * len(fields)
    more = cursor.opened("}", depth)
    while more:
        place = places.get(cursor.name())
        if place is None:
            cursor.skip(depth + 1)
        else:
            made[place] = fields[place](cursor, depth + 1)
        more = cursor.another("}")
    return tuple(made)
