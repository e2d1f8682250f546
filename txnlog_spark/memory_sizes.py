"""Sizes as Spark's configuration writes them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?")


def size_in_bytes(text: str | None) -> int | None:
    """512m, 1g, 10MB or plain bytes, all binary units; None for what is not a size."""
    found = _SIZE.fullmatch((text or "").strip().lower())
    return int(found[1]) << 10 * " kmgtp".index(found[2] or " ") if found else None
