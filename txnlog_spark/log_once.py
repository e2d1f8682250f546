"""Warnings that would come with every batch; each process logs them once."""

from __future__ import annotations

import logging
from collections.abc import Hashable

from txnlog_spark.process_local import process_local


class Warned(set[Hashable]):
    """Warnings that this process has logged."""


def warn_once(logger: logging.Logger, what: Hashable, text: str, *values: object) -> None:
    """Log a warning, unless this process has logged a warning with the same `what` before."""
    warned = process_local(Warned)
    if what not in warned:
        warned.add(what)
        logger.warning(text, *values)
