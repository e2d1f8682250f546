"""Numbers and bytes in the texts that JSON has for them, as Java reads them."""

from __future__ import annotations

import binascii
import re
from fractions import Fraction

import numpy as np

_BASE64 = re.compile(r"[A-Za-z0-9+/=]*")
_BASE64_GROUP = re.compile(r"[A-Za-z0-9+/]{2}(?:[A-Za-z0-9+/]{2}|[A-Za-z0-9+/]=|==)")
_CONTROLS = re.compile(r"[\x00-\x20]+")
_DECIMAL = re.compile(r"([+-]?)(?:(\d+)(?:\.(\d*))?|\.(\d+))(?:[eE]([+-]?\d+))?")
_SCALE_MAX = 2**31 - 1
_DIGITS_DROPPED_MAX = 646_456_993
"""Java's BigInteger has no higher power of ten."""


def float32_of(text: str) -> float:
    """The nearest number of 32 bits; to round a double again could give the one beside it."""
    wide = float(text)
    with np.errstate(over="ignore", under="ignore"):
        near = np.float32(wide)
        if float(near) == wide:
            return wide
        other = np.nextafter(near, np.float32(np.inf if wide > float(near) else -np.inf))
    low, high = _fraction(near), _fraction(other)
    if not np.isfinite(wide) or 2 * Fraction(wide) != low + high:
        return float(near)
    twice = 2 * Fraction(text)
    is_nearer = abs(twice - 2 * low) <= abs(twice - 2 * high)
    return float(near if is_nearer else other)


def _fraction(value: np.float32) -> Fraction:
    """Infinity as the number after the greatest one."""
    if np.isinf(value):
        return Fraction(2**128 if value > 0 else -(2**128))
    return Fraction(float(value))


def base64_of(text: str) -> bytes:
    """The bytes of a base64 text; blanks and control characters may be between its groups."""
    pieces = _CONTROLS.split(text)
    if not all(_is_base64(piece) for piece in pieces):
        raise ValueError("no base64")
    groups = re.findall(r"[^=]+=*", "".join(pieces))
    return b"".join(binascii.a2b_base64(group) for group in groups)


def _is_base64(piece: str) -> bool:
    if len(piece) % 4 or not _BASE64.fullmatch(piece):
        return False
    if "=" not in piece:
        return True
    return all(_BASE64_GROUP.fullmatch(piece, at, at + 4) for at in range(0, len(piece), 4))


def unscaled(text: str, precision: int, scale: int) -> int:
    """The digits of Java's `new BigDecimal(text)`, rounded half up to a scale."""
    found = _DECIMAL.fullmatch(text)
    if not found or max(text) > "\uffff":
        raise ValueError(text)
    sign, whole, part, only_part, exponent = found.groups(default="")
    fraction = part or only_part
    power = int(exponent or 0)
    if abs(power) > _SCALE_MAX or abs(len(fraction) - power) > _SCALE_MAX:
        raise ValueError(text)
    dropped = len(fraction) - power - scale
    if dropped > _DIGITS_DROPPED_MAX:
        raise ValueError(text)
    made = _rounded((whole + fraction).lstrip("0"), dropped, precision)
    if made >= 10**precision:
        raise ValueError(text)
    return -made if sign == "-" else made


def _rounded(digits: str, dropped: int, precision: int) -> int:
    """Without so many of the last digits, or with zeros after them where that is below zero."""
    if dropped <= 0:
        power: int = 10 ** min(-dropped, precision)
        return int(digits or "0") * power
    if dropped > len(digits):
        return 0
    kept = len(digits) - dropped
    return int(digits[:kept] or "0") + (int(digits[kept]) >= 5)
