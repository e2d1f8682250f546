"""The timers of a simulated process, which go by its machine's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker_sim.core.effects import CancelTimer, SetTimer, TimerFired, TimerKey
from simulation.hosts.clock import MachineClock
from simulation.hosts.scheduler import Event, Later


class ProcessTimers:
    """Timers of a process: an event for each timer that is set."""

    def __init__(
        self, clock: MachineClock, later: Later, submit: Callable[[TimerFired], None]
    ) -> None:
        self._clock = clock
        self._later = later
        self._submit = submit
        self._events: dict[TimerKey, Event] = {}
        self._fired: set[TimerKey] = set()
        """Timers whose input waits for its round; setting or cancelling one takes it back."""

    @property
    def keys(self) -> tuple[TimerKey, ...]:
        """Keys of the timers that are set."""
        return tuple(self._events)

    def change(self, changes: Iterable[SetTimer | CancelTimer]) -> None:
        """Set and cancel."""
        for change in changes:
            event = self._events.pop(change.key, None)
            if event is not None:
                event.cancel()
            self._fired.discard(change.key)
            match change:
                case SetTimer(key, deadline_ms):
                    self._start(key, deadline_ms)
                case CancelTimer():
                    pass

    def take_fired(self, key: TimerKey) -> bool:
        """Take a fired timer; True if its input still counts."""
        if key not in self._fired:
            return False
        self._fired.discard(key)
        return True

    def cancel(self) -> None:
        """Cancel all timers."""
        for event in self._events.values():
            event.cancel()
        self._events.clear()
        self._fired.clear()

    def _start(self, key: TimerKey, deadline_ms: int) -> None:
        def fire() -> None:
            # Set again or taken back while the process stood still: this one is over.
            if self._events.get(key) is not event:
                return
            if self._clock.us_until(deadline_ms) > 0:
                self._start(key, deadline_ms)  # the clock goes slower than when it was set
                return
            del self._events[key]
            self._fired.add(key)
            self._submit(TimerFired(key))

        event = self._events[key] = self._later(self._clock.us_until(deadline_ms), fire)
