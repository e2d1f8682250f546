"""Report of a run that failed: the fewest faults with which it still fails, and a timeline.

A run depends on its seed and its scenario alone, so a kind of fault is left out by its field. Each
is tried once, in the order of the fields, and then each planned fault; what fails without it stays
without it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from simulation.scenario import Fault, Scenario
from simulation.world import Plant, SeedResult, World

TIMELINE_LINES_MAX = 60
_LEFT_OUT = frozenset({
    "scenario", "file", "high-watermark", "metadata", "log-roll", "storage-space", "peer-lost",
    "replica-fetch-failed", "isr-not-decided",
})  # fmt: skip
_MESSAGE = re.compile(r"(request|answer)-[A-Z_]+$")
"""A request or an answer by its API's name; the network's faults of one are in small letters."""
_FAULTS = ("faults.", "load.", "query.empty_batches", "query.tries_again",
           "brokers.compaction", "brokers.small_segments")  # fmt: skip
_DETAILS = ("_ms", ".static_members", ".copiers")
"""Fields that say how a fault happens: they are not left out on their own."""


@dataclass(frozen=True, slots=True)
class FailureReport:
    """A seed with as few kinds of faults as it fails with."""

    scenario: Scenario
    failure: str
    timeline: list[str]
    """The last events before the failure, and the failure."""

    @property
    def faults(self) -> str:
        """The kinds of faults that are left, as fields of the scenario."""
        left = [f"{path}={value}" for path, value in kinds_of_faults(self.scenario).items()]
        left += [_described(fault) for fault in self.scenario.planned]
        return ", ".join(left) or "none that was drawn"


def report_failure(seed: int, scenario: Scenario, plant: Plant | None = None) -> FailureReport:
    """Run a failing seed again: with fewer kinds of faults, and with what is left once more.

    Another failure is another bug, perhaps: only one of the first one's kind (`kind_of`) counts.
    """

    def run(tried: Scenario, lines: list[str] | None = None) -> SeedResult:
        return World(seed, tried, None if lines is None else lines.append, plant).run()

    first = kind_of(str(run(scenario).failure))
    found = shrunk(scenario, lambda tried: kind_of(str(run(tried).failure)) == first)
    lines: list[str] = []
    failure = run(found, lines).failure
    return FailureReport(found, str(failure), timeline(lines))


def _described(fault: Fault) -> str:
    """A planned fault in a few words."""
    if fault.on == "step":
        return f"{fault.action} {fault.when} {fault.step} of batch {fault.batch_id}"
    return f"a broker dies after {fault.on} {fault.occurrence}"


def timeline(lines: Iterable[str]) -> list[str]:
    """The last lines of a trace in columns: seconds of virtual time, process, event. Without the
    requests, answers and files, and without what repeats while a broker is away."""
    kept = [parts for parts in (line.split(maxsplit=2) for line in lines) if _is_reported(parts[2])]
    return [
        f"{int(at_us) / 1e6:12.6f} s  {who:<16} {what}"
        for at_us, who, what in kept[-TIMELINE_LINES_MAX:]
    ]


def _is_reported(what: str) -> bool:
    event = what.split(maxsplit=1)[0]
    if event == "reached" and "when='before'" in what:
        return False
    return event not in _LEFT_OUT and not _MESSAGE.match(event)


# ---------------------------------------------------------------------- the fewest faults


def kinds_of_faults(scenario: Scenario) -> dict[str, Any]:
    """Return the kinds of faults and load in a scenario, by path, without the work of the query.

    Of `brokers` only the fields named here count: without `flushes_all`, other faults would be
    allowed than with it.
    """
    return {
        path: value for path, value in scenario.values().items()
        if value and path.startswith(_FAULTS) and not path.endswith(_DETAILS)
    }  # fmt: skip


def shrunk(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """The scenario without what it fails without."""
    for path, value in kinds_of_faults(scenario).items():
        tried = scenario.changed({path: type(value)(0)})
        if fails(tried):
            scenario = tried
    for fault in scenario.planned:
        at = next(at for at, each in enumerate(scenario.planned) if each is fault)
        tried = replace(scenario, planned=scenario.planned[:at] + scenario.planned[at + 1 :])
        if fails(tried):
            scenario = tried
    return scenario


def kind_of(failure: str) -> str:
    """Return the kind of a failure: the invariant's number, or the name of the exception."""
    found = re.match(r"invariant \d+|crash: \w+", failure)
    return failure if found is None else found[0]


def as_toml(scenario: Scenario) -> str:
    """A file for `--scenario` that says the same."""
    default = Scenario(name=scenario.name).values()
    tables: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for path, value in scenario.values().items():
        if value != default[path] and path != "planned":
            table, _, name = path.rpartition(".")
            tables[f"[{table}]" if table else ""].append((name, value))
    planned = [("[[planned]]", list(asdict(fault).items())) for fault in scenario.planned]
    text = []
    for header, values in [*tables.items(), *planned]:
        text += ["", header, *(f"{name} = {json.dumps(value)}" for name, value in values)]
    return "\n".join(text).strip() + "\n"
