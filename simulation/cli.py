"""`python -m simulation`: run seeds, print what passed, how to replay what failed."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from simulation.checkers.outcomes import Outcome, lines
from simulation.coverage import ALONE, CLUSTER, Cell, Shape, as_table, idle_cells
from simulation.failure_report import as_toml, report_failure
from simulation.scenario import ScenarioError
from simulation.scenario_loading import RANDOM, THREE_BROKERS, load_scenario, scenario_names
from simulation.world import Plant, SeedResult, World

FAILURES_SHOWN_MAX = 20
JOBS_AT_A_TIME = 4
"""Runs that a process takes at a time: enough that it does not wait for the next."""
PROGRESS_SECONDS = 10.0
"""Seconds between two reports of progress."""
_SHAPES = {RANDOM: ALONE, THREE_BROKERS: CLUSTER}
"""The tables of those scenarios in which everything is drawn."""
STORIES = "stories"
"""Every scenario that has a file."""


@dataclass(frozen=True, slots=True)
class _Job:
    """Inputs that a process needs for a run."""

    seed: int
    scenario: str
    plant: str
    trace: bool
    save_logs: Path | None


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 0 when all seeds passed, 1 when one failed, 2 for wrong arguments."""
    arguments = _parse(argv)
    jobs = [
        _Job(seed, name, arguments.plant, arguments.trace, arguments.save_logs)
        for name in _scenarios(arguments.scenario)
        for seed in arguments.seeds
    ]
    counts: Counter[str] = Counter()
    cells: Counter[Cell] = Counter()
    outcomes: Counter[tuple[str, Outcome]] = Counter()
    failed = 0
    start_seconds = reported_seconds = time.monotonic()
    processes = 1 if arguments.trace else arguments.jobs or _cores()
    results = _results(jobs, processes)
    for done, (job, result) in enumerate(zip(jobs, results, strict=True), 1):
        counts.update(result.counts)
        cells.update(result.cells)
        outcomes.update(result.outcomes)
        if arguments.digest:
            _say(f"seed {job.seed} scenario {job.scenario} digest {result.digest}")
        if result.failure is not None:
            failed += 1
            if failed <= FAILURES_SHOWN_MAX:
                _tell(job, result.failure)
            if failed == 1 and not arguments.trace:
                _report(job, arguments.shrink)
        now_seconds = time.monotonic()
        if now_seconds - reported_seconds >= PROGRESS_SECONDS:
            reported_seconds = now_seconds
            _say_progress(done, len(jobs), failed, now_seconds - start_seconds)
    seconds = time.monotonic() - start_seconds
    for what, count in sorted(counts.items()):
        _say(f"{count:>8} x {what}")
    for line in lines(outcomes.items()):
        _say(line)
    _say(f"{len(jobs) / seconds:.1f} seeds a second: {len(jobs)} in {seconds:.1f} s")
    _say(f"{len(jobs) - failed} passed, {failed} failed")
    idle = _table(cells, _SHAPES[arguments.scenario]) if arguments.table else 0
    return 1 if failed or idle else 0


def _table(cells: Counter[Cell], shape: Shape) -> int:
    """Print the table; how many cells are zero that must not be."""
    for line in as_table(cells, shape):
        _say(line)
    idle = idle_cells(cells, shape)
    for fault, column in idle:
        _say(f"NEVER happened: {fault} / {column}")
    return len(idle)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _results(jobs: Sequence[_Job], processes: int) -> Iterator[SeedResult]:
    """In the order of `jobs`, each as soon as those before it are there."""
    processes = min(processes, -(-len(jobs) // JOBS_AT_A_TIME))
    if processes == 1:
        yield from map(_run_job, jobs)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(_run_job, jobs, chunksize=JOBS_AT_A_TIME)


def _run_job(job: _Job) -> SeedResult:
    plant = plant_of(job.plant)
    return run_seed(job.seed, job.scenario, plant, trace=job.trace, save_logs=job.save_logs)


@contextmanager
def _one_collection() -> Iterator[None]:
    """Collect cycles once, when the world of a run is gone: to look for cycles while the world is
    there takes a twentieth of the run's time and finds few."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # The youngest generation is all that the run has made.
        gc.collect(0)
        if was_enabled:
            gc.enable()


@_one_collection()
def run_seed(
    seed: int,
    scenario: str,
    plant: Plant | None = None,
    *,
    trace: bool = False,
    save_logs: Path | None = None,
) -> SeedResult:
    """Run a simulation; the brokers' files at its end go to `save_logs`. Raises ScenarioError."""
    chosen = load_scenario(scenario, seed)
    world = World(seed, chosen, _say if trace else None, plant)
    result = world.run()
    if save_logs is not None:
        folder = save_logs / f"seed-{seed}-{chosen.name}"
        for host in world.machines.hosts.values():
            host.disk.save(folder if chosen.brokers.count == 1 else folder / host.name)
        world.machines.save_history(folder)
    return result


def plant_of(words: str) -> Plant | None:
    """The bug that PACKAGE:NAME names, of the package's PLANTS; "" is none. Raises ValueError."""
    if not words:
        return None
    package, _, name = words.partition(":")
    try:
        plants = importlib.import_module(package).PLANTS
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{words!r}: there is no package {package!r} with PLANTS") from error
    if name not in plants:
        raise ValueError(f"{words!r}: {package} has {', '.join(sorted(plants))}")
    plant: Plant = plants[name]
    return plant


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m simulation",
        description="Run the broker and the connector's commit on virtual time, with faults.",
    )
    parser.add_argument("--seeds", type=_seeds, required=True, help="A:B (B excluded), or one seed")
    parser.add_argument(
        "--scenario",
        default=RANDOM,
        help=f"{RANDOM} (default), {THREE_BROKERS} (three brokers), a .toml file, "
        f"{STORIES} for all of: " + ", ".join(scenario_names()),
    )
    parser.add_argument(
        "--plant",
        default="",
        type=_planted,
        metavar="PACKAGE:NAME",
        help="run with this bug of the package's PLANTS, which the checks have to catch",
    )
    parser.add_argument("--trace", action="store_true", help="print every line of the trace")
    parser.add_argument(
        "--jobs",
        type=_positive,
        help="run seeds in so many processes (default: one for each core)",
    )
    parser.add_argument(
        "--save-logs",
        type=Path,
        metavar="DIR",
        help="write the files of brokers at the end of each run there, for dump and timeline",
    )
    parser.add_argument(
        "--shrink",
        type=_toml,
        metavar="FILE.toml",
        help="write the scenario of the first failure there, with the fewest kinds of faults that "
        "it fails with",
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help=f"of {RANDOM} or {THREE_BROKERS}: print how often each fault happened in each state, "
        "and fail when one never did",
    )
    parser.add_argument("--digest", action="store_true", help="print each run's trace digest")
    arguments = parser.parse_args(argv)
    if arguments.trace and (arguments.jobs or 1) > 1:
        parser.error("--trace prints the lines of one process: leave --jobs out")
    if arguments.trace and arguments.shrink is not None:
        parser.error("--trace and --shrink exclude each other")
    if arguments.table and arguments.scenario not in _SHAPES:
        parser.error(f"--table is of the scenarios {' and '.join(_SHAPES)}")
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


def _planted(words: str) -> str:
    try:
        plant_of(words)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return words


def _toml(text: str) -> Path:
    if not text.endswith(".toml"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end with .toml")
    return Path(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


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


def _tell(job: _Job, failure: str) -> None:
    _say(f"FAILED seed {job.seed} scenario {job.scenario}: {failure}")
    _say(f"  replay: {_command(job, job.scenario)}")


def _command(job: _Job, scenario: str | Path) -> str:
    """Return the command that traces a run of the job's seed with this scenario."""
    planted = f" --plant {job.plant}" if job.plant else ""
    seeds = f"{job.seed}:{job.seed + 1}"
    return f"python -m simulation --seeds {seeds} --scenario {scenario}{planted} --trace"


def _report(job: _Job, path: Path | None) -> None:
    """Report the faults that a failure of this kind needs; write its scenario to the file."""
    chosen = load_scenario(job.scenario, job.seed)
    report = report_failure(job.seed, chosen, plant_of(job.plant))
    _say(f"  the fewest kinds of faults it fails with: {report.faults}")
    if path is not None:
        path.write_text(as_toml(report.scenario), encoding="utf-8")
        _say(f"  shrunk: {_command(job, path)}")
    _say("  timeline of a run with those:")
    for line in report.timeline:
        _say(f"  {line}")


def _say_progress(done: int, of: int, failed: int, seconds: float) -> None:
    """To stderr: stdout is the same for the same seeds, but for the speed."""
    sys.stderr.write(f"{done} of {of}, {failed} failed, {done / seconds:.1f} seeds a second\n")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
