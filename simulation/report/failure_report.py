"""Printed report of a run that failed: the fewest kinds of faults, and a timeline."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from simulation.report.shrink import kind_of, kinds_of_faults, shrunk
from simulation.scenario import Fault, Scenario
from simulation.world import Plant, SeedResult, World

TIMELINE_LINES_MAX = 60
_LEFT_OUT = frozenset(
    {
        "scenario",
        "file",
        "high-watermark",
        "metadata",
        "log-roll",
        "storage-space",
        "peer-lost",
        "replica-fetch-failed",
        "isr-not-decided",
    }
)
_MESSAGE = re.compile(r"(request|answer)-[A-Z_]+$")
"""A request or an answer by its API's name; the network's faults of one are in small letters."""


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
