"""The examples with a test of their own: each exact, whatever a seed breaks, and when.

TXNLOG_EXAMPLE_SEEDS=A:B chooses the seeds; each run of an example draws two disturbances by its
seed, and all runs share a warm driver.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

from txnlog_testing import Report, exactly_once
from txnlog_testing.prove.disturbances import ALWAYS, CHOSEN_STEPS

pytestmark = pytest.mark.chaos

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "tested"
NAMES = sorted(path.stem for path in FOLDER.glob("test_*.py"))
STRIKE = [each.name for each in ALWAYS if each.name != "kill worker"]
"""Disturbances that each of the examples comes to."""
DISTURBANCES = [*STRIKE, "kill worker", *(f"kill {step}" for step in CHOSEN_STEPS)]
FIRST, LAST = map(int, os.environ.get("TXNLOG_EXAMPLE_SEEDS", "0:8").split(":"))


def example(name: str) -> ModuleType:
    """Import an example, which no package has."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def tests_of(module: ModuleType) -> list[str]:
    return [name for name in vars(module) if name.startswith("test_")]


@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_exact_whatever_a_seed_breaks(name: str) -> None:
    module = example(name)
    (test,) = tests_of(module)
    for seed in range(FIRST, LAST):
        chance = random.Random(f"{name} {seed}")
        drawn = [chance.choice(STRIKE), chance.choice(DISTURBANCES)]
        reports: list[Report] = []

        def proved(*given, reports=reports, **named) -> None:
            reports.append(exactly_once(*given, **named))

        module.exactly_once = functools.partial(proved, seed=seed, disturbances=drawn)
        getattr(module, test)()
        (report,) = reports
        print(f"{name} seed {seed}: {[(r.disturbance, r.finding) for r in report.results]}")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_exact_under_every_disturbance(name: str) -> None:
    module = example(name)
    (test,) = tests_of(module)
    getattr(module, test)()
