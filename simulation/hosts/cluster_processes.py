"""The processes of a cluster: a broker that belongs to one, and the registry."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from broker_sim.core.broker import Broker
from broker_sim.core.effects import ControlledShutdown, Input, Request, Step
from broker_sim.core.membership import Membership
from broker_sim.core.parts import BrokerParts
from broker_sim.registry.config import RegistryConfig
from broker_sim.registry.registry import Registry
from simulation.hosts.process_clients import Core
from simulation.hosts.sim_broker import SimulatedBroker
from txnlog_kafka.wire.invariants import InvariantViolation

HAND_OVER_POLL_US = 100_000
HAND_OVER_POLLS = 50


class ClusterBroker(SimulatedBroker):
    """A broker that belongs to a cluster."""

    def _lets_in(self, core: Core) -> bool:
        return isinstance(core, Broker) and core.is_serving

    def shut_down(self, then: Callable[[], None]) -> None:
        """As on SIGTERM: hand over what it leads, as far as that goes in a while, and stop."""
        self.submit(ControlledShutdown())
        self._stop_when_handed_over(HAND_OVER_POLLS, then)

    def _stop_when_handed_over(self, polls: int, then: Callable[[], None]) -> None:
        core = self._core
        if polls == 0 or (isinstance(core, Broker) and core.may_stop):
            self.stop()
            then()
        else:
            again = partial(self._stop_when_handed_over, polls - 1, then)
            self.later(HAND_OVER_POLL_US, again)

    @property
    def _broker(self) -> Broker:
        core = self._core
        if not isinstance(core, Broker):
            raise InvariantViolation(f"{self.name} is down and has no core")
        return core

    @property
    def membership(self) -> Membership:
        """The core's; only of one that is up."""
        return self._broker.membership

    @property
    def opened(self) -> BrokerParts | None:
        """The core's parts, once its logs are open; only of one that is up."""
        return self._broker.opened


class SimulatedRegistry(SimulatedBroker):
    """The registry's process and its disk."""

    watch_asked: Callable[[Request], None] = staticmethod(lambda _request: None)
    """Called with each request, after its step."""

    def _step(self, core: Core, item: Input) -> Step:
        step = super()._step(core, item)
        if isinstance(item, Request):
            self.watch_asked(item)
        return step

    def _make_core(self, rng: random.Random) -> Core:
        return Registry(RegistryConfig(1_000, 9_000), self.disk, rng)
