"""Arm every Python process that has this folder on PYTHONPATH, if TXNLOG_FAILPOINTS is set.

Then the `sitecustomize` that this one hides has its turn.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

IS_CLIENT = any(word.endswith("/txnlog-python") for word in sys.orig_argv[:2])
"""True in a process beside a forked one, which runs nothing of the connector: its server is armed,
and arming takes half a second."""

if os.environ.get("TXNLOG_FAILPOINTS") and not IS_CLIENT:
    from txnlog_testing.arming import arm_if_asked

    arm_if_asked()

_here = Path(__file__).resolve().parent
_hidden = PathFinder.find_spec(
    "sitecustomize", [each for each in sys.path if Path(each).resolve() != _here]
)
if _hidden is not None and _hidden.loader is not None:
    _hidden.loader.exec_module(module_from_spec(_hidden))
