"""PySpark, and its required version: the extra `spark` installs it, a platform brings its own."""

from __future__ import annotations

import re

PYSPARK_MIN = (4, 2)
"""First version with admission control and Arrow writers for Python's streaming data sources."""
NEEDED = f"PySpark {'.'.join(map(str, PYSPARK_MIN))} or newer is needed"

try:
    import pyspark
except ModuleNotFoundError as error:
    if error.name != "pyspark":  # PySpark is there, but its py4j is missing
        raise
    raise ModuleNotFoundError(f"{NEEDED}: pip install 'txnlog_spark[spark]'") from None


def is_supported() -> bool:
    """True if this PySpark is new enough. A version that cannot be parsed counts as new."""
    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    return found is None or (int(found[1]), int(found[2])) >= PYSPARK_MIN


def require_pyspark() -> None:
    """Raise ImportError if this PySpark lacks the classes that the data source needs."""
    if not is_supported():
        raise ImportError(f"{NEEDED}, this is {pyspark.__version__}")
