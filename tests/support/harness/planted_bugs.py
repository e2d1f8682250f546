"""Check that the simulator catches a planted bug, and by which invariants."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from planted import PLANTS

from simulation.cli import run_seed

CANARY_SEEDS = range(200)


def assert_caught(
    plant: str,
    scenario: str,
    seed: int,
    numbers: Collection[int],
    record_property: Callable[[str, object], None],
) -> None:
    """Require an invariant of these numbers to catch the bug under `seed`, which is pinned.

    A change of the product can change what a seed draws. Then another seed of CANARY_SEEDS has to
    catch the bug, and the end of the run says which seed to pin: the search may take minutes. A
    crash of the plant, or a run that does not come to its end, catches nothing.
    """
    failures = []
    for each in (seed, *CANARY_SEEDS):
        failure = run_seed(each, scenario, PLANTS[plant]).failure or ""
        found = re.match(r"invariant (\d+): ", failure)
        if found and int(found[1]) in numbers:
            if each != seed:
                record_property("said", f"seed {seed} no longer catches it: pin seed {each}")
            return
        failures += [f"seed {each}: {failure[:200]}"] if failure else []
    raise AssertionError(f"no seed of {CANARY_SEEDS} caught {plant} by {numbers}: {failures[:20]}")
