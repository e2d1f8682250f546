"""Whether the simulator catches a planted bug, and by which of the invariants."""

from __future__ import annotations

import re
from collections.abc import Collection

from planted import PLANTS

from simulation.cli import run_seed

CANARY_SEEDS = range(200)


def assert_caught(plant: str, scenario: str, seed: int, numbers: Collection[int]) -> None:
    """`seed` is tried first, as all before it take their time; where it no longer catches the bug,
    another of CANARY_SEEDS has to.

    By an invariant of these numbers: neither a crash of the plant itself, or of what it broke, is
    what is looked for, nor a run that does not come to its end for a bug that corrupts.
    """
    failures = []
    for each in (seed, *CANARY_SEEDS):
        failure = run_seed(each, scenario, PLANTS[plant]).failure or ""
        found = re.match(r"invariant (\d+): ", failure)
        if found and int(found[1]) in numbers:
            return
        failures += [f"seed {each}: {failure[:200]}"] if failure else []
    raise AssertionError(f"no seed of {CANARY_SEEDS} caught {plant} by {numbers}: {failures[:20]}")
