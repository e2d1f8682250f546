"""A broker that has no registry: it is its own controller, and its metadata is its own log."""

from __future__ import annotations

from broker_sim.core.effects import Effects, TimerKey


class Alone:
    """What is asked of a membership, without one."""

    is_serving = True
    is_open = True
    has_handed_over = True

    def __init__(self, node_id: int) -> None:
        self.controller_id = node_id

    def begin_shutdown(self, effects: Effects) -> None:
        """There is nobody to hand anything over to."""

    def on_timer(self, key: TimerKey, effects: Effects) -> bool:
        """No timer is of this module."""
        del key, effects
        return False
