"""Two brokers that cannot hear each other again and again, while the controller hears both.

Each time it lasts a little longer than replica.lag.time.max.ms: replicas leave ISRs and come back,
without a new broker epoch and without a new leader. Proposals of ISRs are often late meanwhile: the
controller gets one after those that its leader has made since.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from simulation.hosts.network import Direction, Network
from simulation.hosts.scheduler import Scheduler
from simulation.trace import Trace

APART_US = (2_200_000, 4_000_000)
TOGETHER_US = (1_500_000, 3_000_000)
LATE_SHARE = 0.4
"""Share of the proposals that are late."""
PROPOSAL = "AlterPartitionRequest"


class Flapping:
    """See the module; nothing happens before `begin`."""

    def __init__(
        self,
        network: Network,
        scheduler: Scheduler,
        trace: Trace,
        rng: random.Random,
        followers: Callable[[], Sequence[str]],
    ) -> None:
        """`followers` are the brokers without the controller."""
        self._network = network
        self._scheduler = scheduler
        self._trace = trace
        self._rng = rng
        self._followers = followers
        self._is_on = False
        self._apart: tuple[Direction, ...] = ()

    def begin(self) -> None:
        """From now on."""
        self._is_on = True
        self._scheduler.after(self._rng.randint(*TOGETHER_US), self._part)

    def end(self) -> None:
        """They hear each other again."""
        self._is_on = False
        self._join()

    def is_late(self, message: object) -> bool:
        """True if a request between brokers arrives after its sender has given it up."""
        is_proposal = self._is_on and type(message).__name__ == PROPOSAL
        return is_proposal and self._rng.random() < LATE_SHARE

    def _part(self) -> None:
        if not self._is_on:
            return
        one, other = self._rng.sample(self._followers(), 2)
        self._apart = (one, other), (other, one)
        self._trace.count("two brokers apart for longer than replicas may lag")
        self._trace.line("network", "parted", {"directions": self._apart})
        self._network.cut_off(*self._apart)
        self._scheduler.after(self._rng.randint(*APART_US), self._join_for_a_while)

    def _join_for_a_while(self) -> None:
        if self._is_on:
            self._join()
            self._scheduler.after(self._rng.randint(*TOGETHER_US), self._part)

    def _join(self) -> None:
        self._network.open_again(*self._apart)
        self._apart = ()
