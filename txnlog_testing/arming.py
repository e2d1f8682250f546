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
from typing import Any

from txnlog_testing.variables import ARMED_VARIABLE

ARMED_BY = {
    "txnlog_spark.client_cache": "arm_clients",
    "txnlog_spark.sink.writers": "arm_writer",
    "txnlog_spark.source.stream": "arm_reader",
    "pyspark.worker": "arm_worker",
    "pyspark.sql.readwriter": "arm_batch_writes",
}
"""Functions of `txnlog_testing.points`, by the module that each of them patches."""


IS_CLIENT = any(word.endswith("/txnlog-python") for word in sys.orig_argv[:2])
"""True in a process beside a forked one, which runs nothing of the connector: its server is armed,
and arming takes half a second."""


def arm_if_asked() -> None:
    """Patch what is imported, and have the rest patched when it is; if the variable is set."""
    if not os.environ.get(ARMED_VARIABLE) or IS_CLIENT:
        return
    for name in ARMED_BY.keys() & sys.modules.keys():
        _arm(sys.modules[name])
    sys.meta_path.insert(0, _ArmingFinder())


def _arm(module: ModuleType) -> None:
    getattr(importlib.import_module("txnlog_testing.points"), ARMED_BY[module.__name__])(module)


class _ArmingLoader(importlib.abc.Loader):
    """Loader that arms what another one has loaded, from a folder or from Spark's archive."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _arm(module)


class _ArmingFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in ARMED_BY:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ArmingLoader(spec.loader)
        return spec
