"""Which PySpark is needed. pip asks for it, but a cluster's PySpark is often not pip's."""

from __future__ import annotations

import re

import pyspark

PYSPARK_MIN = (4, 2)
"""The first with admission control and Arrow writers for Python's streaming data sources."""


def is_supported() -> bool:
    """Whether this PySpark is new enough. A version that cannot be read is taken for new."""
    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    return found is None or (int(found[1]), int(found[2])) >= PYSPARK_MIN


def require_pyspark() -> None:
    """Raise ImportError for a PySpark that lacks what the data source is made of."""
    if not is_supported():
        needed = ".".join(map(str, PYSPARK_MIN))
        raise ImportError(f"PySpark {needed} or newer is needed, this is {pyspark.__version__}")
