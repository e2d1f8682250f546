"""Whether the storage has space for what makes logs grow; the host says so (`StorageSpace`)."""

from __future__ import annotations

from broker_sim.core.effects import Effects

NO_FREE_SPACE = "Free space is under log.dir.reserved.bytes."


class FreeSpace:
    """What is appended while the space is low: only what ends or removes something."""

    def __init__(self) -> None:
        self.is_low = False
        """Free space is under the reserve."""

    def allows_append(self, effects: Effects) -> bool:
        """Whether this step may append anything. A marker always may: it ends a transaction."""
        return effects.uses_reserve or not self.is_low
