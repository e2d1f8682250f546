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
        """Everything `item` causes, as in `Broker.step`."""


class Observer:
    """Called at these moments; one that does nothing about a moment leaves it as it is here."""

    def on_storage(self, process: SimulatedBroker, operation: StorageOperation) -> str | None:
        """After each operation on files; a text is the reason to die now."""

    def on_answer(self, process: SimulatedBroker) -> str | None:
        """Between two answers of one round, likewise."""

    def on_step(self, process: SimulatedBroker, item: Input, step: Step) -> None:
        """Before the effects of a step are carried out."""

    def on_done(self, process: SimulatedBroker, step: Step) -> None:
        """When what a step writes is in the files."""

    def on_respond(self, process: SimulatedBroker, response: Respond) -> None:
        """An answer leaves."""

    def on_dying(self, process: SimulatedBroker, reason: str) -> None:
        """The process is still as it was."""

    def on_died(self, process: SimulatedBroker, reason: str) -> None:
        """The process is gone."""

    def on_write_failed(self, process: SimulatedBroker) -> None:
        """A write found no space: there may be a part of it."""


@dataclass(slots=True)
class Client:
    """State of the broker's end of a connection."""

    connection: SimulatedConnection
    waiting: deque[bytes] = field(default_factory=deque)
    """Requests behind the one that the broker has."""
    correlation_id: int | None = None
    """Correlation id of the request that the broker has."""
    ended: bool = False
    """The client sends no more."""
