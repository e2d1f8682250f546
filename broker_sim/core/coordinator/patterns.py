"""Regular expressions of clients, with the meaning of RE2; Kafka uses its port to Java.

A client must not keep the broker from the others: RE2 matches in time linear in the text.
"""

from __future__ import annotations

from typing import Any

import re2

_QUIET = re2.Options()
_QUIET.log_errors = False
"""RE2 would write each invalid expression to stderr as well."""


def compiled(expression: str) -> Any:
    """The compiled expression; None for one that RE2 does not accept."""
    try:
        return re2.compile(expression, _QUIET)
    except re2.error:
        return None
