"""The leader of the unsafe topic is left by its followers, and then dies: an unclean election.

The other brokers stand still for longer than their sessions last, so that it is alone in the ISR.
Shortly before they go on it is killed, or stands still as well and goes on after them, as one that
leads by what it knew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from broker_sim.core.controller.registrations import PartitionRegistration
from simulation.hosts.cluster_processes import ClusterBroker
from simulation.hosts.scheduler import Scheduler
from simulation.trace import Trace

BETWEEN_US = (3_000_000, 8_000_000)
ALONE_US = 6_500_000
DIES_US = (4_000_000, 6_200_000)
PAUSE_US = 7_000_000
PAUSE_SHARE = 0.3


class UncleanElection:
    """See the module; nothing happens before `begin`."""

    def __init__(
        self,
        scheduler: Scheduler,
        trace: Trace,
        rng: random.Random,
        brokers: Sequence[ClusterBroker],
        leader: Callable[[], tuple[ClusterBroker, PartitionRegistration] | None],
        may_disturb: Callable[[], bool],
    ) -> None:
        """`leader` is the topic's, and how it is registered."""
        self._scheduler = scheduler
        self._trace = trace
        self._rng = rng
        self._brokers = brokers
        self._leader = leader
        self._may_disturb = may_disturb
        self._is_on = False

    def begin(self) -> None:
        """From now on."""
        self._is_on = True
        self._scheduler.after(self._rng.randint(*BETWEEN_US), self._leave_alone)

    def end(self) -> None:
        """No more."""
        self._is_on = False

    def _leave_alone(self) -> None:
        if not self._is_on:
            return
        self._scheduler.after(ALONE_US + self._rng.randint(*BETWEEN_US), self._leave_alone)
        found = self._leader()
        if found is None or not self._may_disturb():
            return
        for broker in self._brokers:
            if broker is not found[0] and broker.is_running and not broker.paused:
                self._trace.fault("pause", broker.name)
                broker.pause(ALONE_US)
        self._scheduler.after(self._rng.randint(*DIES_US), partial(self._die, found[0]))

    def _die(self, broker: ClusterBroker) -> None:
        stands_still = self._rng.random() < PAUSE_SHARE
        found = self._leader()
        if not self._is_on or not self._may_disturb() or found is None or found[0] is not broker:
            return
        if len(found[1].isr) == 1:
            self._trace.count("leader that is alone in the ISR dies")
            if stands_still:
                self._trace.fault("pause", broker.name)
                broker.pause(PAUSE_US)
            else:
                broker.kill("kill")
