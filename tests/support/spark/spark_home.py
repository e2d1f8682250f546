"""A SPARK_HOME whose Python workers find pyspark where it is installed.

Spark puts `python/lib/pyspark.zip` of its home first on the path of each Python worker. It has no
compiled modules: each worker compiles most of pyspark, which takes longer than all else that the
worker of a small query does. Here that file is absent.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark

INSTALLED = Path(pyspark.__file__).parent
CACHE = Path(__file__).resolve().parents[3] / ".cache"
SPARK_HOME = CACHE / f"spark-{pyspark.__version__}"
WARM_PYTHON = str(Path(sys.executable).with_name("txnlog-python"))
"""Command that Spark starts in the tests, in the place of Python."""


def use_spark_home() -> None:
    """Spark that this process starts, and that its children start, has this home."""
    SPARK_HOME.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars"):
        link, target = SPARK_HOME / name, INSTALLED / name
        if not link.is_symlink() or link.readlink() != target:  # absent, or of a moved checkout
            beside = SPARK_HOME / f".{name}.{os.getpid()}"
            beside.symlink_to(target)
            beside.replace(link)
    os.environ["SPARK_HOME"] = str(SPARK_HOME)
