"""Virtual time: a heap of events, ordered by (deadline, id).

Everything in a simulation happens in an event. Two events of one instant run in the order in which
they were scheduled, so a run depends on nothing but its seed. Time is in microseconds, so that
network delays below a millisecond have an order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from txnlog_kafka.wire.invariants import InvariantViolation

START_WALL_MS = 1_750_000_000_000
"""The wall clock's start; any instant long after 1970 will do."""

EVENTS_MAX = 2_000_000
"""A run that needs more is a livelock: it fails instead of going on for ever."""


class Event:
    """A scheduled action; `cancel` makes it do nothing."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None] | None) -> None:
        self.action = action

    def cancel(self) -> None:
        """Forget the action; allowed at any time, also after it ran."""
        self.action = None


Later = Callable[[int, Callable[[], None]], Event]
"""Way to do an action after so many microseconds, unless its process has ended by then."""


class Scheduler:
    """The clock and the heap of one simulation."""

    def __init__(self) -> None:
        self.now_us = 0
        self.wall_skew_ms = 0
        """Milliseconds that clock jumps have added to the wall clock."""
        self.event_count = 0
        self._heap: list[tuple[int, int, Event]] = []
        self._next_id = 0

    @property
    def monotonic_ms(self) -> int:
        """Milliseconds since the start of the simulation; never goes back."""
        return self.now_us // 1000

    def after(self, delay_us: int, action: Callable[[], None]) -> Event:
        """Run `action` in `delay_us` microseconds (0: after what is already due now)."""
        if delay_us < 0:
            raise InvariantViolation(f"an event lies {-delay_us} us in the past")
        event = Event(action)
        heapq.heappush(self._heap, (self.now_us + delay_us, self._next_id, event))
        self._next_id += 1
        return event

    def run_until(self, done: Callable[[], bool], *, limit_us: int) -> bool:
        """Run events until `done()` or virtual time `limit_us`; says whether it was done."""
        heap, pop = self._heap, heapq.heappop
        while not done():
            # Nothing but an action makes `done` true: cancelled events are passed over.
            action = None
            while action is None:
                if not heap or heap[0][0] > limit_us:
                    self.now_us = max(self.now_us, limit_us)
                    return done()
                self.now_us, _, event = pop(heap)
                self.event_count += 1
                if self.event_count >= EVENTS_MAX:
                    raise InvariantViolation(f"the run does not end after {EVENTS_MAX} events")
                action = event.action
            action()
        return True
