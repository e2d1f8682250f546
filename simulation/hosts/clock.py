"""The clocks of one machine: they may drift, and the wall clock may jump.

A clock that drifts goes some percent faster or slower than virtual time. What it shows never jumps
when its rate changes; a jump of the wall clock is `wall_skew_ms`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulation.hosts.scheduler import START_WALL_MS, Scheduler

EXACT = 1_000_000
"""The rate of a clock that does not drift: microseconds that it shows in a million of them."""
DRIFT_PER_MILLION_MAX = 50_000
"""5 % fast or slow; a clock that does so for a minute is three seconds off."""

CLOCK_JUMP_MS_MAX = 3_600_000


def drawn_rate(rng: random.Random) -> int:
    """The rate of a clock that drifts."""
    return EXACT + rng.randint(-DRIFT_PER_MILLION_MAX, DRIFT_PER_MILLION_MAX)


@dataclass(slots=True)
class _Rate:
    """Time that a clock showed at one instant, and its rate since then."""

    at_us: int = 0
    showed_us: int = 0
    per_million: int = EXACT

    def shows_us(self, now_us: int) -> int:
        """Return the time that it shows now."""
        return self.showed_us + (now_us - self.at_us) * self.per_million // EXACT


class MachineClock:
    """See the module."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.wall_skew_ms = 0
        """Milliseconds that this machine's wall clock has jumped."""
        self._scheduler = scheduler
        self._monotonic, self._wall = _Rate(), _Rate()

    @property
    def monotonic_ms(self) -> int:
        """Milliseconds that never go back."""
        return self._monotonic.shows_us(self._scheduler.now_us) // 1000

    @property
    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as this machine has them."""
        skew_ms = START_WALL_MS + self._scheduler.wall_skew_ms + self.wall_skew_ms
        return skew_ms + self._wall.shows_us(self._scheduler.now_us) // 1000

    def drift(self, *, monotonic: int = EXACT, wall: int = EXACT) -> None:
        """From now on these are the rates."""
        now_us = self._scheduler.now_us
        self._monotonic = _Rate(now_us, self._monotonic.shows_us(now_us), monotonic)
        self._wall = _Rate(now_us, self._wall.shows_us(now_us), wall)

    def us_for(self, duration_ms: int) -> int:
        """Virtual microseconds until the monotonic clock has gone on by so much."""
        return -(-duration_ms * 1000 * EXACT // self._monotonic.per_million)

    def us_until(self, deadline_ms: int) -> int:
        """Virtual microseconds until the monotonic clock shows the deadline, by its present rate;
        0 when it does."""
        rate = self._monotonic
        left_us = deadline_ms * 1000 - rate.shows_us(self._scheduler.now_us)
        return max(0, -(-left_us * EXACT // rate.per_million))
