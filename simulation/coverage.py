"""Coverage of faults by state: a table that shows that no fault is idle (51).

A row is a kind of fault. A column is a state of the query's transaction, as the log of its
coordinator has it when the fault happens. Further columns are roles that the faulty process has for
the query then. A cell that stays at zero in a long run is a failure, unless `never` says why it
must.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.coordinator.runtime import partition_for
from simulation.checkers.log_oracle import LogOracle

STATES = (
    "empty", "ongoing", "prepare-commit", "prepare-abort", "complete-commit", "complete-abort",
)  # fmt: skip
"""States as `log_oracle` names them; no column before the first record."""
OUTPUT, TRANSACTION, GROUP = "leads output", "coordinates transaction", "coordinates group"
CONTROLLER, FOLLOWER, REGISTRY = "controller", "follower", "registry"
ROLES = (OUTPUT, TRANSACTION, GROUP, CONTROLLER, FOLLOWER, REGISTRY)
COLUMNS = (*STATES, *ROLES)

OF_PROCESSES = (
    "kill", "power loss", "disk loss", "bit flip in a log", "bit flip beside logs", "failed flush",
    "disk full", "pause", "clean stop", "partition both ways", "partition one way",
    "client partition both ways", "client partition one way", "clogged link", "request late",
    "duplicate request", "request lost", "answer lost", "delay", "clock jump", "clock drift",
)  # fmt: skip
"""Faults of a broker or of the registry."""
BLACKOUT = "all machines lost power"
OF_DRIVERS = (
    BLACKOUT, "driver killed", "driver paused", "driver's machine lost power",
    "worker lost", "committing worker killed", "staging fault", "store failed",
    "driver's clock drifted", "driver's clock jumped",
)  # fmt: skip
"""Faults of no single process of the cluster: such a row has states only."""
OF_TASKS = ("task failed", "task speculated", "executor lost")
"""Faults of tasks; their rows have states only."""
FAULTS = (*OF_PROCESSES, *OF_DRIVERS, *OF_TASKS)
ALONE_FAULTS = (
    "kill", "power loss", "failed flush", "disk full", "request lost", "answer lost", "delay",
    "clock jump", *(fault for fault in OF_DRIVERS if fault != BLACKOUT), *OF_TASKS,
)  # fmt: skip
"""Faults of a broker that is alone, which has all roles at any time."""

Cell = tuple[str, str]


class Shape(NamedTuple):
    """The rows and the columns of a table."""

    faults: Sequence[str]
    columns: Sequence[str]


CLUSTER, ALONE = Shape(FAULTS, COLUMNS), Shape(ALONE_FAULTS, STATES)

_NO_VICTIM = "it does not happen to one process of the cluster"
_NO_COPY = "it refuses to start on a damaged file, as no broker has another one"
_NEVER: dict[Cell, str] = {
    ("disk loss", REGISTRY): "there is one registry: no other process has what it forgets",
    ("bit flip in a log", REGISTRY): _NO_COPY,
    ("bit flip beside logs", REGISTRY): _NO_COPY,
    ("clean stop", REGISTRY): "it has nothing to hand over; a kill is all that it knows",
    ("client partition both ways", REGISTRY): "clients do not ask it",
    ("client partition one way", REGISTRY): "clients do not ask it",
}
_SELDOM_STAGED = (
    "its reader has a transaction of its own that is open: another driver must end "
    "one at that instant, or the timeout this one"
)
_SELDOM_TASKS = (
    "tasks have ended when their batch's transaction begins: another driver must have one, or an "
    "attempt be late"
)
_SELDOM_AFTER_ABORT = (
    "after an abort the tasks of the batch run once, before the next InitProducerId, and few fail"
)
_SELDOM: dict[Cell, str] = {
    ("staging fault", "prepare-commit"): _SELDOM_STAGED,
    ("staging fault", "prepare-abort"): _SELDOM_STAGED,
    ("staging fault", "complete-abort"): _SELDOM_STAGED,
    ("store failed", "prepare-abort"): "a driver reads and writes its checkpoint before it fences "
    "another one and after its own transaction has ended, and an abort takes milliseconds",
    **{
        (fault, state): _SELDOM_TASKS
        for fault in OF_TASKS
        for state in ("ongoing", "prepare-commit", "prepare-abort")
    },
    ("task failed", "complete-abort"): _SELDOM_AFTER_ABORT,
    ("executor lost", "complete-abort"): _SELDOM_AFTER_ABORT,
}
"""Cells that can happen, and are not demanded of a run."""
_DECIDED = ("prepare-commit", "prepare-abort")
_WITHIN_A_STEP = ("kill", "power loss", "failed flush", "clock jump", "delay")
_ONE_STEP = (
    "a decision and its markers are one step of a broker that is alone: but for what happens "
    "within it, and at the start after it, it takes another fault that has ended the step"
)


def never(fault: str, column: str, shape: Shape = CLUSTER) -> str | None:
    """Why this cell stays at zero, or may; None for one that must not."""
    if fault in (*OF_DRIVERS, *OF_TASKS) and column in ROLES:
        return _NO_VICTIM
    if shape is ALONE and column in _DECIDED and fault not in _WITHIN_A_STEP:
        return _ONE_STEP
    return _NEVER.get((fault, column)) or _SELDOM.get((fault, column))


def idle_cells(cells: Mapping[Cell, int], shape: Shape = CLUSTER) -> list[Cell]:
    """Return the cells that are zero and must not be."""
    return [
        (fault, column)
        for fault in shape.faults
        for column in shape.columns
        if not cells.get((fault, column)) and never(fault, column, shape) is None
    ]


def as_table(cells: Mapping[Cell, int], shape: Shape = CLUSTER) -> list[str]:
    """Lines for a person; "-" where nothing can happen."""
    width = max(len(fault) for fault in shape.faults)
    lines = [" " * width + "".join(f"  {column}" for column in shape.columns)]
    for fault in shape.faults:
        line = fault.ljust(width)
        for column in shape.columns:
            count = cells.get((fault, column), 0)
            may_be_idle = never(fault, column, shape) is not None
            text = "-" if not count and may_be_idle else str(count)
            line += "  " + text.rjust(len(column))
        lines.append(line)
    return lines


class ClusterView(Protocol):
    """View of a cluster, or of a broker that is alone, that names the state it is in."""

    @property
    def partitions(self) -> Mapping[str, PartitionRegistration]:
        """By directory, as the newest metadata has them."""

    @property
    def oracles(self) -> Mapping[str, LogOracle]:
        """The witness of each broker's disk, by name."""

    def is_controller(self, name: str) -> bool:
        """True if this process is the controller now."""


class StateOfQuery:
    """Names the state at the instant of a fault (`Trace.columns_of`)."""

    def __init__(
        self, cluster: ClusterView, output: str, group: str, transactional_id: Callable[[], str]
    ) -> None:
        """Name states of the query that writes to `output`; its transactional id may change."""
        self._cluster = cluster
        self._output = f"{output}-"
        self._group = group
        self._transactional_id = transactional_id

    def columns_of(self, victim: str) -> Sequence[str]:
        """The state of the transaction, and the roles of the process; "" for no process."""
        state = self._state()
        return (*([state] if state in STATES else ()), *self._roles(victim))

    def _state(self) -> str | None:
        transactional_id = self._transactional_id()
        leader = self._leader("__transaction_state", transactional_id)
        oracle = self._cluster.oracles.get(leader)
        return None if oracle is None else oracle.state_of(transactional_id)

    def _roles(self, victim: str) -> list[str]:
        if victim in ("", REGISTRY):
            return [victim] if victim else []
        number = int(victim.removeprefix("broker-"))
        held = [
            each for name, each in self._cluster.partitions.items()
            if name.startswith(self._output)
        ]  # fmt: skip
        found = {
            OUTPUT: any(each.leader == number for each in held),
            TRANSACTION: victim == self._leader("__transaction_state", self._transactional_id()),
            GROUP: victim == self._leader("__consumer_offsets", self._group),
            CONTROLLER: self._cluster.is_controller(victim),
            FOLLOWER: any(number in each.replicas and each.leader != number for each in held),
        }
        return [role for role, is_so in found.items() if is_so]

    def _leader(self, topic: str, key: str) -> str:
        count = sum(name.startswith(f"{topic}-") for name in self._cluster.partitions)
        if not count:
            return ""
        held = self._cluster.partitions[f"{topic}-{partition_for(key, count)}"]
        return f"broker-{held.leader}"
