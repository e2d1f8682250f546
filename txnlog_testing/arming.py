"""Put failpoints into the connector and into PySpark: patch their modules when they are imported.

This module imports nothing of the connector, so a process that never uses it pays nothing.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType

ARMED_VARIABLE = "TXNLOG_FAILPOINTS"
ARMED_BY = {
    "txnlog_spark.client_cache": "arm_clients",
    "txnlog_spark.sink.writers": "arm_writer",
    "txnlog_spark.source.stream": "arm_reader",
    "pyspark.worker": "arm_worker",
    "pyspark.sql.readwriter": "arm_batch_writes",
}
"""Functions of `txnlog_testing.points`, by the module that each of them patches."""


def arm_if_asked() -> None:
    """Patch what is imported, and have the rest patched when it is; if the variable is set."""
    if not os.environ.get(ARMED_VARIABLE):
        return
    for name in ARMED_BY.keys() & sys.modules.keys():
        _arm(sys.modules[name])
    sys.meta_path.insert(0, _ArmingFinder())


def _arm(module: ModuleType) -> None:
    getattr(importlib.import_module("txnlog_testing.points"), ARMED_BY[module.__name__])(module)


class _ArmingLoader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _arm(module)


class _ArmingFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in ARMED_BY:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _ArmingLoader(fullname, spec.origin)
        return spec
