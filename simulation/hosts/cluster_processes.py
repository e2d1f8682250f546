"""The processes of a cluster: a broker that belongs to one, and the registry."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from broker_sim.core.effects import ControlledShutdown
from broker_sim.registry.config import RegistryConfig
from broker_sim.registry.registry import Registry
from simulation.hosts.sim_broker import Core, SimulatedBroker

HAND_OVER_POLL_US = 100_000
HAND_OVER_POLLS = 50


class ClusterBroker(SimulatedBroker):
    """A broker that belongs to a cluster."""

    def shut_down(self, then: Callable[[], None]) -> None:
        """Shut down like on SIGTERM: hand over its leaders, for a limited time, and stop."""
        self.submit(ControlledShutdown())
        self._stop_when_handed_over(HAND_OVER_POLLS, then)

    def _stop_when_handed_over(self, polls: int, then: Callable[[], None]) -> None:
        if polls == 0 or (self.is_up and self.broker.may_stop):
            self.stop()
            then()
        else:
            again = partial(self._stop_when_handed_over, polls - 1, then)
            self.later(HAND_OVER_POLL_US, again)


class SimulatedRegistry(SimulatedBroker):
    """The registry's process and its disk."""

    def _make_core(self, rng: random.Random) -> Core:
        return Registry(RegistryConfig(1_000, 9_000), self.disk, rng)

    @property
    def may_expire_ms(self) -> int:
        """Time after which a session expires, unless its broker asks before."""
        expiry_ms = self._core.next_expiry_ms if isinstance(self._core, Registry) else None
        return 0 if expiry_ms is None else expiry_ms - self.clock.monotonic_ms
