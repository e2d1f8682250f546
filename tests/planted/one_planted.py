"""Plant a bug in one broker of a run; the other brokers do as they should.

The seed chooses the broker; a single broker is always the one. A function of the product is
replaced for all brokers, and the replacement asks which broker makes the present step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from broker_sim.core.broker import Broker
from planted.commit_plants import replaced
from simulation.world import Plant

Broken = Callable[..., Any]
"""Gets the function that it stands for, and its arguments."""


class _Planted:
    """The broker with the bug, and whether it is its step that is being made."""

    def __init__(self, world: Any) -> None:
        self.number = world.seed % len(world.machines.hosts)
        self.is_stepping = False

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Notice whose step it is."""
        step = Broker.step

        def noticed(broker: Broker, *args: Any) -> Any:
            self.is_stepping = broker._given.config.integer("node.id") == self.number
            try:
                return step(broker, *args)
            finally:
                self.is_stepping = False

        with replaced(Broker, "step", noticed):
            yield

    def replaced(self, owner: Any, name: str, broken: Broken) -> Any:
        """`owner.name` is `broken` in the steps of this broker."""
        original = getattr(owner, name)

        def chosen(*args: Any, **options: Any) -> Any:
            if self.is_stepping:
                return broken(original, *args, **options)
            return original(*args, **options)

        return replaced(owner, name, chosen)


def in_one_broker(*changes: tuple[Any, str, Broken]) -> Plant:
    """A plant that replaces functions in the steps of one broker."""

    @contextlib.contextmanager
    def plant(world: Any) -> Iterator[None]:
        planted = _Planted(world)
        with contextlib.ExitStack() as stack:
            stack.enter_context(planted.here())
            for change in changes:
                stack.enter_context(planted.replaced(*change))
            yield

    return plant
