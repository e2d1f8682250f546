"""Free space of the storage, for the appends that make logs grow (`StorageSpace`)."""

from __future__ import annotations

from broker_sim.core.effects import Effects

NO_FREE_SPACE = "Free space is under log.dir.reserved.bytes."


class FreeSpace:
    """Rule for appends while the space is low: only appends that end or remove something."""

    def __init__(self) -> None:
        self.is_low = False
        """Free space is under the reserve."""

    def allows_append(self, effects: Effects) -> bool:
        """True if this step may append anything. A marker always may: it ends a transaction."""
        return effects.uses_reserve or not self.is_low
