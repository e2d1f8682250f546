"""Warnings that come again with every batch, and are logged once by a process."""

from __future__ import annotations

import logging
from collections.abc import Hashable

from txnlog_spark.process_local import process_local


class Warned(set[Hashable]):
    """Of what this process has warned."""


def warn_once(logger: logging.Logger, what: Hashable, text: str, *values: object) -> None:
    """Log a warning, unless this process has logged one of `what` before."""
    warned = process_local(Warned)
    if what not in warned:
        warned.add(what)
        logger.warning(text, *values)
