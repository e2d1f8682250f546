"""Keyed timers of a coordinator: a deadline and what to do then (source: `CoordinatorTimer`).

The host knows keys and deadlines only. What to do stays here, so a timer that the host fires too
late or after it was moved or cancelled does nothing: a fire counts only when the deadline that we
remember has passed.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_sim.core.effects import CancelTimer, Effects, TimerKey

TimerAction = Callable[[Effects], None]


class KeyedTimers:
    """Timers of one coordinator; one action per key, setting a key again replaces it."""

    def __init__(self) -> None:
        self._actions: dict[TimerKey, tuple[int, TimerAction]] = {}

    def schedule(self, key: TimerKey, after_ms: int, action: TimerAction, effects: Effects) -> None:
        """Run `action` once, `after_ms` from now at the earliest."""
        self._actions[key] = (effects.monotonic_ms + after_ms, action)
        effects.set_timer(*key, after_ms=after_ms)

    def cancel(self, key: TimerKey, effects: Effects) -> None:
        """Forget `key`; absent is fine."""
        if self._actions.pop(key, None) is not None:
            effects.timers.append(CancelTimer(key))

    def fire(self, key: TimerKey, effects: Effects) -> None:
        """The host says that `key` is due; stale and unknown keys are ignored."""
        entry = self._actions.get(key)
        if entry is None:
            return
        deadline_ms, action = entry
        if effects.monotonic_ms < deadline_ms:
            return
        del self._actions[key]
        action(effects)

    def __contains__(self, key: TimerKey) -> bool:
        return key in self._actions
