"""PySpark, and which one is needed: the extra `spark` asks pip for it, a platform has its own."""

from __future__ import annotations

import re

PYSPARK_MIN = (4, 2)
"""The first with admission control and Arrow writers for Python's streaming data sources."""
NEEDED = f"PySpark {'.'.join(map(str, PYSPARK_MIN))} or newer is needed"

try:
    import pyspark
except ModuleNotFoundError as error:
    if error.name != "pyspark":  # py4j, of a PySpark that is there
        raise
    raise ModuleNotFoundError(f"{NEEDED}: pip install 'txnlog_spark[spark]'") from None


def is_supported() -> bool:
    """Whether this PySpark is new enough. A version that cannot be read is taken for new."""
    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    return found is None or (int(found[1]), int(found[2])) >= PYSPARK_MIN


def require_pyspark() -> None:
    """Raise ImportError for a PySpark that lacks what the data source is made of."""
    if not is_supported():
        raise ImportError(f"{NEEDED}, this is {pyspark.__version__}")
