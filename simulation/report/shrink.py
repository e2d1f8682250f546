"""The fewest kinds of faults, and planned faults, with which a seed still fails.

A run depends on its seed and its scenario alone, so a kind of fault is left out by its field. Each
is tried once, in the order of the fields, and then each planned fault; what fails without it stays
without it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from simulation.scenario import Scenario

_LEFT_OUT = ("faults.", "load.", "query.empty_batches", "query.tries_again",
             "brokers.compaction", "brokers.small_segments")  # fmt: skip
_DETAILS = ("_ms", ".static_members", ".copiers")
"""Fields that say how a fault happens: they are not left out on their own."""


def kinds_of_faults(scenario: Scenario) -> dict[str, Any]:
    """Return the kinds of faults and load in a scenario, by path, without the work of the query.

    Of `brokers` only the fields named here count: without `flushes_all`, other faults would be
    allowed than with it.
    """
    return {
        path: value for path, value in scenario.values().items()
        if value and path.startswith(_LEFT_OUT) and not path.endswith(_DETAILS)
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
