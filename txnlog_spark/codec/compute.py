"""`pyarrow.compute`, imported when a batch first needs it.

It makes a Python function of each of its hundreds of kernels, 60 ms, and most of the processes that
Spark starts for a data source plan and commit: they never see a row.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow.compute

    found = globals()[name] = getattr(pyarrow.compute, name)
    return found
