"""The group coordinator: classic groups, committed and pending offsets, the offsets log."""

from broker_sim.core.group.config import GroupConfig
from broker_sim.core.group.coordinator import GroupCoordinator
from broker_sim.core.group.host import GroupHost

__all__ = ["GroupConfig", "GroupCoordinator", "GroupHost"]
