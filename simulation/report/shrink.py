"""The fewest kinds of faults, and planned faults, with which a seed still fails.

A run depends on its seed and its scenario alone, so a kind of fault is left out by its field. Each
is tried once, in the order of the fields, and then each planned fault; what fails without it stays
without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace

from simulation.scenario import Fault, Scenario

WORKLOAD = frozenset(
    {
        "name",
        "description",
        "brokers",
        "batches",
        "rows_per_batch",
        "source_partitions",
        "output_partitions",
        "transaction_version",
        "transaction_timeout_ms",
        "sinks",
        "leaves_out",
        "driver_pause_ms",
        "chaos_ms",
        "spike_ms",
        "store_ms",
        "tasks",
        "staging_files",
        "inline_bytes",
        "flushes_all",
        "group_partitions",
        "static_members",
        "copiers",
        "faults",
        "expect",
    }
)
"""Fields that say what is done, not what fails. Without `flushes_all` other faults would be allowed
than with it."""


def shrunk(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """The scenario without what it fails without."""
    for name in (item.name for item in fields(scenario) if item.name not in WORKLOAD):
        value = getattr(scenario, name)
        tried = replace(scenario, **{name: type(value)(0)})
        if value and fails(tried):
            scenario = tried
    for fault in scenario.faults:
        at = next(at for at, each in enumerate(scenario.faults) if each is fault)
        tried = replace(scenario, faults=scenario.faults[:at] + scenario.faults[at + 1 :])
        if fails(tried):
            scenario = tried
    return scenario


def kind_of(failure: str) -> str:
    """What two failures of one kind have in common: the invariant's number, or what was raised."""
    found = re.match(r"invariant \d+|crash: \w+", failure)
    return failure if found is None else found[0]


def as_toml(scenario: Scenario) -> str:
    """A file for `--scenario` that says the same."""
    default = Scenario()
    lines = []
    for item in fields(scenario):
        value = getattr(scenario, item.name)
        kept = item.name not in ("name", "faults", "expect")
        if kept and value is not None and value != getattr(default, item.name):
            lines.append(f"{item.name} = {json.dumps(value)}")
    expected = [f"{each.name} = {getattr(scenario.expect, each.name)}"
                for each in fields(scenario.expect)]  # fmt: skip
    lines += ["", "[expect]", *expected]
    for fault in scenario.faults:
        lines += ["", "[[fault]]", *_fields_of(fault)]
    return "\n".join(lines) + "\n"


def _fields_of(fault: Fault) -> list[str]:
    return [f"{item.name} = {json.dumps(getattr(fault, item.name))}" for item in fields(fault)]
