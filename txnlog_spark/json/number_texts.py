"""Texts of floats and doubles as Java writes them, for arrays.

They are `Double.toString` and `Float.toString` of Java 19 and later: the shortest text that is read
as the same number. Arrow has the same digits and puts the point elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from txnlog_spark.codec import compute as pc
from txnlog_spark.json.text import java_number

_TINY = {8: 1e-300, 4: 1e-42}
"""Below these, by bytes of the type, some texts need two digits where one would do."""
_WHOLE_DIGITS_MAX = 16
_ZEROS_MAX = 6


def float_texts(array: pa.Array) -> pa.Array:
    """Texts of numbers without null; NaN and Infinity are words."""
    numbers = array.to_numpy()
    sizes = np.abs(numbers)
    texts = array.cast(pa.string())
    usual = ((sizes >= 1e-3) & (sizes < 1e7)) | (sizes == 0)
    if usual.all():
        return _with_point(texts)
    mask = pa.array(~usual)
    texts = _with_point(texts)
    return pc.replace_with_mask(texts, mask, _scientific(array.filter(mask)))


def _with_point(texts: pa.Array) -> pa.Array:
    whole = pc.invert(pc.match_substring(texts, "."))
    if not whole.true_count:
        return texts
    return pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)


def _scientific(array: pa.Array) -> pa.Array:
    """Texts of numbers below 0.001 or from ten million on, and of those that are not finite."""
    numbers = array.to_numpy()
    tiny = np.abs(numbers) < _TINY[numbers.itemsize]
    if tiny.any():
        mask = pa.array(tiny)
        few = [_two_digits(each) for each in numbers[tiny]]
        rest = array.filter(pc.invert(mask))
        made = pa.nulls(len(array), pa.string())
        made = pc.replace_with_mask(made, mask, pa.array(few, pa.string()))
        return pc.replace_with_mask(made, pc.invert(mask), _scientific(rest)) if len(rest) else made
    texts = array.cast(pa.string())
    sizes = np.where(np.isfinite(numbers), np.abs(numbers), 1).astype(np.float64)
    longest, least = int(np.log10(sizes.max())) + 2, int(np.log10(1 / sizes.min())) + 1
    for digits in range(8, min(longest, _WHOLE_DIGITS_MAX) + 1):
        pattern = rf"^(-?\d)(\d{{{digits - 1}}})(?:\.(\d+))?$"
        texts = pc.replace_substring_regex(texts, pattern, rf"\1.\2\3E{digits - 1}")
    for zeros in range(3, min(least, _ZEROS_MAX) + 1):
        pattern = rf"^(-?)0\.0{{{zeros}}}([1-9])(\d*)$"
        texts = pc.replace_substring_regex(texts, pattern, rf"\1\2.\3E-{zeros + 1}")
    texts = pc.replace_substring_regex(texts, r"^(-?\d)(?:\.(\d+))?e\+?0*(-?)0*", r"\1.\2E\3")
    texts = pc.replace_substring_regex(texts, r"0*E", "E")
    texts = pc.replace_substring_regex(texts, r"\.E", ".0E")
    texts = pc.replace_substring_regex(texts, "^nan$", "NaN")
    return pc.replace_substring_regex(texts, "^(-?)inf$", r"\1Infinity")


def _two_digits(number: np.floating[Any]) -> str:
    two = f"{number:.1e}"
    shortest = pa.scalar(number).cast(pa.string()).as_py()
    return java_number(two if type(number)(two) == number else shortest)
