"""Core and connections of a simulated process."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from broker_sim.core.effects import Input, Step
from simulation.hosts.network import SimulatedConnection


class Core(Protocol):
    """Core that a process drives: a `Broker`, or the registry."""

    def step(self, item: Input, now_ms: int, monotonic_ms: int) -> Step:
        """Return everything that an input causes, as `Broker.step` does."""


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
