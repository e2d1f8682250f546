"""Packages of kafka-python whose own code is not run until somebody asks for what it has.

`import kafka.protocol.metadata` runs `kafka/__init__`, which imports its three clients, and these
import every message there is: 0.15 s of CPU in each Python process that Spark starts, half of all
that our modules cost it. None of it is used here. So the packages stand in `sys.modules` as the
import system makes them, but not executed: modules below them are found, and whoever asks a package
for anything else, such as `kafka.KafkaConsumer`, gets it as always.

Source: `importlib`'s documented steps of an import (spec, module, execution); its `LazyLoader` does
not serve, as it runs a package on the look-up of `__path__` that each import below it begins with.
"""

from __future__ import annotations

import importlib
import sys
import threading
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

PACKAGES = (
    "kafka",
    "kafka.net",
    "kafka.protocol.admin",
    "kafka.protocol.consumer",
    "kafka.protocol.metadata",
    "kafka.protocol.producer",
)
_complete: set[str] = set()
_running: set[tuple[str, int]] = set()
"""Packages whose code is being run, by thread. There is no lock: a thread that holds the import
system's lock of a module below could wait for it for ever. Two threads that ask at once both run
the package, which binds the same names to the same modules."""


def postpone(name: str) -> None:
    """Let this package be run at its first use; nothing to do when it is imported already.

    Raises ModuleNotFoundError. A package inside another one comes after it.
    """
    if name in sys.modules:
        return
    outer, _, own = name.rpartition(".")
    paths = list(importlib.import_module(outer).__path__) if outer else None
    spec = PathFinder.find_spec(name, paths)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = module_from_spec(spec)
    # PEP 562: asked for what the module does not have.
    module.__getattr__ = partial(_get, module, spec)  # type: ignore[method-assign]
    sys.modules[name] = module
    if outer:
        setattr(sys.modules[outer], own, module)


def _get(module: ModuleType, spec: ModuleSpec, attribute: str) -> Any:
    paths = spec.submodule_search_locations
    if paths and PathFinder.find_spec(f"{spec.name}.{attribute}", list(paths)) is not None:
        return importlib.import_module(f"{spec.name}.{attribute}")
    running = spec.name, threading.get_ident()
    if spec.name not in _complete and running not in _running:
        _running.add(running)
        try:
            spec.loader.exec_module(module)  # type: ignore[union-attr]
            _complete.add(spec.name)
        finally:
            _running.discard(running)
    if attribute not in module.__dict__:
        raise AttributeError(f"module {spec.name!r} has no attribute {attribute!r}")
    return module.__dict__[attribute]


for _package in PACKAGES:
    postpone(_package)
