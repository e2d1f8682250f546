"""The group coordinator: classic groups, committed and pending offsets, the offsets log."""

from broker_sim.core.group.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
