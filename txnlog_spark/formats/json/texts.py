"""Texts in JSON as Jackson writes them: strings and numbers, of one value and of arrays."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from txnlog_spark.codec import compute as pc

_SURROGATES = re.compile(b"\xed[\xa0-\xbf][\x80-\xbf]?")
_ALONE = re.compile("[\ud800-\udfff]")
ESCAPES = {chr(code): f"\\u{code:04X}" for code in range(32)} | {
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    '"': '\\"',
    "\\": "\\\\",
}
"""Escapes that Jackson writes for characters of a string."""

_TO_ESCAPE = re.compile(r'["\\\x00-\x1f]')


def java_text(value: bytes) -> str:
    """Return the text that Java's decoder of UTF-8 makes of any bytes."""
    return _SURROGATES.sub(b"\xef\xbf\xbd", value).decode("utf-8", "replace")


def java_string(text: str) -> str:
    """Return a string as Java encodes it, with a question mark for each lone surrogate."""
    return _ALONE.sub("?", text) if not text.isascii() else text


def escaped(text: str) -> str:
    """Return the characters of a string as Jackson writes them between quotes."""
    return _TO_ESCAPE.sub(lambda found: ESCAPES[found[0]], text)


_WIDE = re.compile("[\ud800-\udfff\U00010000-\U0010ffff]")


def escaped_ascii(text: str) -> str:
    """Return a string as Jackson writes it to bytes: two escapes for what Java has as a pair."""
    made = escaped(text)
    return made if made.isascii() else _WIDE.sub(_utf16_escapes, made)


def _utf16_escapes(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex().upper()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def java_double(value: float) -> str:
    """Return the `Double.toString` of Java 19 or later: the shortest text of the same number.

    The text has at least two digits, the nearest to the number. Java 17 writes more digits than
    necessary for some numbers (JDK-4511638).
    """
    two = f"{value:.1e}"
    return java_number(two if float(two) == value else repr(value))


def java_number(text: str) -> str:
    """Return the same number in Java's notation, from a text such as 1e-05, 0.1, 12 or -inf."""
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


# Arrays ---------------------------------------------------------------------------------------


def escape(array: pa.Array) -> pa.Array:
    """Return the characters of strings without null as they are between quotes."""
    try:
        array = array.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        # Spark's strings are any bytes; Java replaces what is not UTF-8.
        array = pa.array(map(java_text, array.cast(pa.binary()).to_pylist()), pa.string())
    special = pc.match_substring_regex(array, _TO_ESCAPE.pattern)
    if not special.true_count:
        return array
    made = [escaped(text) for text in array.filter(special).to_pylist()]
    return pc.replace_with_mask(array, special, pa.array(made, pa.string()))


def float_texts(array: pa.Array) -> pa.Array:
    """Return the texts of numbers without null, as `java_double`; NaN and Infinity are words.

    Arrow has the digits of most numbers; it takes no exponent where Java takes one.
    """
    numbers = array.to_numpy()
    sizes = np.abs(numbers)
    texts = array.cast(pa.string())
    whole = pc.invert(pc.match_substring(texts, "."))
    texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    scientific = ~(((sizes >= 1e-3) & (sizes < 1e7)) | (sizes == 0))
    if not scientific.any():
        return texts
    mask = pa.array(scientific)
    shortest = array.filter(mask).cast(pa.string()).to_pylist()
    made = [
        java_number(_two_digits(number) or text)
        for number, text in zip(numbers[scientific], shortest, strict=True)
    ]
    return pc.replace_with_mask(texts, mask, pa.array(made, pa.string()))


def _two_digits(number: np.floating[Any]) -> str:
    """Return the two digits that Java writes where one would do, "" for a number of more."""
    two = f"{number:.1e}"
    return two if type(number)(two) == number else ""
