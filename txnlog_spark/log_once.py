"""Warnings that come again with every batch, and are logged once by a process."""

from __future__ import annotations

import logging
from collections.abc import Hashable

_logged: set[Hashable] = set()


def warn_once(logger: logging.Logger, what: Hashable, text: str, *values: object) -> None:
    """Log a warning, unless this process has logged one of `what` before."""
    if what not in _logged:
        _logged.add(what)
        logger.warning(text, *values)
