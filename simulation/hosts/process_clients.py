"""Core, observer and connections of a simulated process."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from broker_sim.core.effects import Input, Respond, Step, StorageOperation
from simulation.hosts.network import SimulatedConnection

if TYPE_CHECKING:
    from simulation.hosts.sim_broker import SimulatedBroker


class Core(Protocol):
    """Core that a process drives: a `Broker`, or the registry."""

    def step(self, item: Input, now_ms: int, monotonic_ms: int) -> Step:
        """Return everything that an input causes, as `Broker.step` does."""


class Observer:
    """Called at these moments of a process; it does nothing where a subclass has no method."""

    def on_storage(self, process: SimulatedBroker, operation: StorageOperation) -> str | None:
        """Return the reason if the process dies after this operation on files."""

    def flush_fails(self, process: SimulatedBroker) -> bool:
        """True if the next flush of the process fails."""
        del process
        return False

    def on_answer(self, process: SimulatedBroker) -> str | None:
        """Return the reason if the process dies between two answers of a round."""

    def on_step(self, process: SimulatedBroker, item: Input, step: Step) -> None:
        """Hear of a step before its effects are carried out."""

    def on_done(self, process: SimulatedBroker, step: Step) -> None:
        """Hear of a step when everything that it writes is in the files."""

    def on_respond(self, process: SimulatedBroker, response: Respond) -> None:
        """Hear that an answer leaves."""

    def on_dying(self, process: SimulatedBroker, reason: str) -> None:
        """Hear that the process is about to die; it is still as it was."""

    def on_died(self, process: SimulatedBroker, reason: str) -> None:
        """Hear that the process is gone."""

    def on_write_failed(self, process: SimulatedBroker) -> None:
        """Hear that a write found no space; a part of it may be there."""


@dataclass(slots=True)
class Client:
    """State of the broker's end of a connection."""

    connection: SimulatedConnection
    waiting: deque[bytes] = field(default_factory=deque)
    """Requests behind the one that the broker has."""
    correlation_id: int | None = None
    """Correlation id of the request that the broker has."""
    ended: bool = False
    """True if the client sends no more."""
