"""JSON texts as Jackson reads and writes them, one at a time: strings, and numbers of Java."""

from __future__ import annotations

import re

_SURROGATES = re.compile(b"\xed[\xa0-\xbf][\x80-\xbf]?")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_ALONE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_UNESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

ESCAPES = {chr(code): f"\\u{code:04X}" for code in range(32)} | {
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    '"': '\\"',
    "\\": "\\\\",
}
"""What Jackson writes for a character that does not stand for itself in a string."""

_TO_ESCAPE = re.compile(r'["\\\x00-\x1f]')


def java_text(value: bytes) -> str:
    """The text that Java's decoder of UTF-8 makes of these bytes, whatever they are."""
    return _SURROGATES.sub(b"\xef\xbf\xbd", value).decode("utf-8", "replace")


def unescaped(text: str) -> str:
    """The characters of a JSON string, given without quotes; a lone surrogate stays one."""
    if "\\" not in text:
        return text
    made = _ESCAPE.sub(_character, text)
    return _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), made)


def _character(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return _UNESCAPED.get(found[2], found[2])


def java_string(text: str) -> str:
    """As Java encodes a string: a question mark for each lone surrogate."""
    return _ALONE.sub("?", text) if not text.isascii() else text


def escaped(text: str) -> str:
    """The characters of a string as Jackson writes them between quotes."""
    return _TO_ESCAPE.sub(lambda found: ESCAPES[found[0]], text)


def java_double(value: float) -> str:
    """`Double.toString` of Java 19 or later: the shortest text that is read as the same number.

    It has two digits at least, those nearest to the number. Java 17 writes more digits than it
    takes for some numbers (JDK-4511638).
    """
    two = f"{value:.1e}"
    return java_number(two if float(two) == value else repr(value))


def java_number(text: str) -> str:
    """The same number in Java's notation, from a text such as 1e-05, 0.1, 12, nan or -inf."""
    if text in _NOT_FINITE:
        return _NOT_FINITE[text]
    sign, digits = ("-", text[1:]) if text[0] == "-" else ("", text)
    mantissa, _, exponent = digits.partition("e")
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(exponent or 0)
    figures = (whole + fraction).rstrip("0")
    significant = figures.lstrip("0")
    point -= len(figures) - len(significant)
    if not significant:
        return f"{sign}0.0"
    if -3 < point <= 7:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{significant}"
        padded = significant.ljust(point, "0")
        return f"{sign}{padded[:point]}.{padded[point:] or '0'}"
    return f"{sign}{significant[0]}.{significant[1:] or '0'}E{point - 1}"


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
