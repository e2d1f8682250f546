"""The planned faults of a scenario: each fires once, and has to fire."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.scenario import Fault
from txnlog_kafka.operations.effects import Failpoint


@dataclass(slots=True)
class _Planned:
    fault: Fault
    seen: int = 0
    armed: bool = False
    fired: bool = False


class ScriptedFaults:
    """Planned faults of a run."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self._planned = [_Planned(fault) for fault in faults]

    @property
    def not_fired(self) -> list[Fault]:
        """Faults that have not happened."""
        return [each.fault for each in self._planned if not each.fired]

    @property
    def fired(self) -> list[Fault]:
        """Faults that have happened."""
        return [each.fault for each in self._planned if each.fired]

    def at_step(self, reached: Failpoint) -> Fault | None:
        """The fault that fires when a driver reaches this step."""
        for planned in self._planned:
            fault = planned.fault
            here = (fault.step, fault.when, fault.batch_id)
            if fault.on != "step" or planned.fired:
                continue
            if here == (reached.step, reached.when, reached.batch_id):
                planned.seen += 1
                planned.fired = planned.seen == fault.occurrence
                if planned.fired:
                    return fault
        return None

    def at_storage(self, labels: list[str]) -> Fault | None:
        """The fault that fires after a storage operation, which is known by `labels`.

        Every planned fault counts every operation, also the one that another dies of.
        """
        found = [p.fault for p in self._planned if p.fault.on != "step" and _fires(p, labels)]
        return found[0] if found else None


def _fires(planned: _Planned, labels: list[str]) -> bool:
    fault = planned.fault
    if planned.fired:
        return False
    if fault.on in labels:
        planned.seen += 1
        planned.armed = planned.seen >= fault.occurrence
    if not planned.armed or (fault.flushed and "flush" not in labels):
        return False
    planned.fired = True
    return True
