"""`python -m broker_sim simulate`: run seeds, print what passed, how to replay what failed."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from broker_sim.sim.plants import PLANTS
from broker_sim.sim.scenario import RANDOM, ScenarioError, load_scenario, scenario_names
from broker_sim.sim.world import Verdict, World

FAILURES_TOLD_MAX = 20
STORIES = "stories"
"""Every scenario that has a file."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 0 when all seeds passed, 1 when one failed, 2 for wrong arguments."""
    arguments = _parse(argv)
    counts: Counter[str] = Counter()
    passed = failed = 0
    for name in _scenarios(arguments.scenario):
        for seed in arguments.seeds:
            verdict = run_seed(seed, name, arguments.plant, trace=arguments.trace)
            counts.update(verdict.counts)
            if arguments.digest:
                _say(f"seed {seed} scenario {name} digest {verdict.digest}")
            if verdict.failure is None:
                passed += 1
                continue
            failed += 1
            if failed <= FAILURES_TOLD_MAX:
                _tell(verdict, arguments.plant)
    for what, count in sorted(counts.items()):
        _say(f"{count:>8} x {what}")
    _say(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def run_seed(seed: int, scenario: str, plant: str = "", *, trace: bool = False) -> Verdict:
    """One simulation. Raises ScenarioError."""
    chosen = load_scenario(scenario, seed)
    if plant:
        chosen = replace(chosen, plant=plant)
    return World(seed, chosen, _say if trace else None).run()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m broker_sim simulate",
        description="Run the broker and the connector's commit on virtual time, with faults.",
    )
    parser.add_argument("--seeds", type=_seeds, required=True, help="A:B (B excluded), or one seed")
    parser.add_argument(
        "--scenario",
        default=RANDOM,
        help=f"{RANDOM} (default), a .toml file, {STORIES} for all of: "
        + ", ".join(scenario_names()),
    )
    parser.add_argument(
        "--plant",
        default="",
        choices=sorted(PLANTS),
        help="run with this bug, which the checks have to catch",
    )
    parser.add_argument("--trace", action="store_true", help="print every line of the trace")
    parser.add_argument("--digest", action="store_true", help="print each run's trace digest")
    arguments = parser.parse_args(argv)
    try:
        names = _scenarios(arguments.scenario)
        if not names:
            raise ScenarioError(f"--scenario {arguments.scenario}: there are no scenarios")
        for name in names:
            load_scenario(name, 0)
    except ScenarioError as error:
        parser.error(str(error))
    return arguments


def _scenarios(name: str) -> tuple[str, ...]:
    return scenario_names() if name == STORIES else (name,)


def _seeds(text: str) -> range:
    start, colon, end = text.partition(":")
    try:
        first = int(start)
        seeds = range(first, int(end) if colon else first + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither A:B nor a number") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} holds no seed: B is excluded, give A < B")
    return seeds


def _tell(verdict: Verdict, plant: str) -> None:
    _say(f"FAILED seed {verdict.seed} scenario {verdict.scenario}: {verdict.failure}")
    planted = f" --plant {plant}" if plant else ""
    _say(
        f"  replay: python -m broker_sim simulate --seeds {verdict.seed}:{verdict.seed + 1} "
        f"--scenario {verdict.scenario}{planted} --trace"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
