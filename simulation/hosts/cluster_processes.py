"""The processes of a cluster: a broker that belongs to one, and the registry."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import ControlledShutdown
from broker_sim.registry.config import RegistryConfig
from broker_sim.registry.registry import Registry
from simulation.hosts.peer_links import PeerLinks, Peers
from simulation.hosts.process_clients import Core, Observer
from simulation.hosts.scheduler import Scheduler
from simulation.hosts.sim_broker import SimulatedBroker
from simulation.trace import Trace

HAND_OVER_POLL_US = 100_000
HAND_OVER_POLLS = 50


class ClusterBroker(SimulatedBroker):
    """A broker that belongs to a cluster."""

    def __init__(
        self,
        *,
        name: str,
        config: BrokerConfig,
        scheduler: Scheduler,
        trace: Trace,
        seed: str,
        observer: Observer,
        peers: Peers,
    ) -> None:
        super().__init__(
            name=name,
            config=config,
            scheduler=scheduler,
            trace=trace,
            seed=seed,
            observer=observer,
        )
        self.links = PeerLinks(self, peers, scheduler, trace)

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
