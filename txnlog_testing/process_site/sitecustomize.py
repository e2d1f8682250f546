"""Arm every Python process that has this folder on PYTHONPATH, if TXNLOG_FAILPOINTS is set.

Then the `sitecustomize` that this one hides has its turn.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

if os.environ.get("TXNLOG_FAILPOINTS"):
    from txnlog_testing.arming import arm_if_asked

    arm_if_asked()

_here = Path(__file__).resolve().parent
_hidden = PathFinder.find_spec(
    "sitecustomize", [each for each in sys.path if Path(each).resolve() != _here]
)
if _hidden is not None and _hidden.loader is not None:
    _hidden.loader.exec_module(module_from_spec(_hidden))
