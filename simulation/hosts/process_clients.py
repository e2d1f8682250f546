"""What a simulated process drives, and what it holds of each connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from broker_sim.core.effects import Input, Step
from simulation.hosts.network import SimulatedConnection


class Core(Protocol):
    """What is driven: a `Broker`, or the registry."""

    def step(self, item: Input, now_ms: int, monotonic_ms: int) -> Step:
        """Everything `item` causes, as in `Broker.step`."""


@dataclass(slots=True)
class Client:
    """What the broker's end of a connection holds."""

    connection: SimulatedConnection
    waiting: deque[bytes] = field(default_factory=deque)
    """Requests behind the one that the broker has."""
    correlation_id: int | None = None
    """Of the request that the broker has."""
    ended: bool = False
    """The client sends no more."""


def both(
    first: Callable[[Core, Step], None], second: Callable[[Core, Step], None]
) -> Callable[[Core, Step], None]:
    """Two that watch the steps of a process, as one."""

    def watch(core: Core, step: Step) -> None:
        first(core, step)
        second(core, step)

    return watch
