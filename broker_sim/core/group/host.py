"""What the group coordinator asks of the broker around it."""

from __future__ import annotations

from typing import Protocol

from broker_sim.core.coordinator.runtime import CoordinatorHost


class GroupHost(CoordinatorHost, Protocol):
    """The broker as the group coordinator sees it."""

    def random_uuid(self) -> str:
        """A fresh random UUID as text, from the injected randomness; part of member ids."""
