"""The controller's own part: brokers that come and go, leaders that go back to the first replica.

It compares the registrations with the image, and decides until they say the same. Requests are
decided by the handlers (`decide`). All of it goes through one queue (`decisions`), so each decision
knows what came before.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.election import Election
from broker_sim.core.controller.image import MetadataRecord
from broker_sim.core.controller.metadata_records import cluster_record
from broker_sim.core.controller.replication_control import ReplicationControl
from broker_sim.core.effects import Effects, TimerKey
from broker_sim.core.membership.cluster_metadata import ClusterMetadata
from broker_sim.core.membership.decisions import Decisions
from broker_sim.core.membership.registration import registered_brokers
from broker_sim.core.membership.registry_link import RegistryLink

IMBALANCE_TIMER = ("leader-imbalance",)


class Controller:
    """Controller part of a broker; it does nothing while another broker is the controller."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        link: RegistryLink,
        decisions: Decisions,
        new_cluster_id: Callable[[], str],
    ) -> None:
        self.control = ReplicationControl(metadata.image, config)
        self._config = config
        self._metadata = metadata
        self._link = link
        self._decisions = decisions
        self._new_cluster_id = new_cluster_id
        self._is_reviewing = False
        self._watches_imbalance = False

    @property
    def is_active(self) -> bool:
        """True if this broker is the controller, as far as it knows."""
        return self._decisions.epoch is not None

    def review(self, epoch: int | None, effects: Effects) -> None:
        """Decide what the nodes ask for; `epoch` is that of this controller, None for no one."""
        if epoch is None or epoch != self._decisions.epoch:
            self._decisions.end(effects)
        if epoch is not None and not self.is_active and self._link.has_fresh_nodes:
            self._decisions.begin(epoch, effects)
        if self.is_active:
            self._watch_imbalance(effects)
            self._review_brokers(effects)

    def on_timer(self, key: TimerKey, effects: Effects) -> bool:
        """Handle the timer; return True if it belongs to this module."""
        if key == IMBALANCE_TIMER:
            self._watches_imbalance = False
            if self.is_active:
                self._watch_imbalance(effects)
                if self._config.boolean("auto.leader.rebalance.enable"):
                    self._decisions.submit(lambda _: self._plan_rebalance(), _ignore, effects)
        return key == IMBALANCE_TIMER

    # ------------------------------------------------------------------ details

    def _review_brokers(self, effects: Effects) -> None:
        if not self._is_reviewing and self._link.has_all_records and self._plan_brokers():
            self._is_reviewing = True
            self._decisions.submit(lambda _: self._plan_brokers(), self._on_reviewed, effects)

    def _on_reviewed(self, is_done: bool, effects: Effects) -> None:
        self._is_reviewing = False
        if is_done:
            self._review_brokers(effects)
        else:
            self._link.pause(effects)

    def _plan_brokers(self) -> list[MetadataRecord]:
        """Plan the records for the first broker whose registration and image differ.

        Brokers that were started again come first: one may have lost its disk, and must not be what
        is left of an ISR when another broker is gone. Then brokers that are gone, so that none of
        them is elected for a new one.
        """
        image, registered = self._metadata.image, registered_brokers(self._link.nodes)
        if not image.cluster_id:
            return [cluster_record(self._new_cluster_id())]
        again = image.brokers.keys() & registered.keys()
        gone = image.brokers.keys() - registered.keys()
        new = registered.keys() - image.brokers.keys()
        for broker_id in (*sorted(again), *sorted(gone), *sorted(new)):
            broker = registered.get(broker_id)
            if broker is None:
                records = self.control.broker_down(broker_id)
            else:
                records = self.control.broker_up(broker)
            if records:
                return records
        return []

    def _plan_rebalance(self) -> list[MetadataRecord]:
        return self.control.elect_leaders(Election.PREFERRED, None).records

    def _watch_imbalance(self, effects: Effects) -> None:
        if not self._watches_imbalance:
            self._watches_imbalance = True
            after_s = self._config.integer("leader.imbalance.check.interval.seconds")
            effects.set_timer(*IMBALANCE_TIMER, after_ms=after_s * 1000)


def _ignore(_is_done: bool, _effects: Effects) -> None:
    """Nobody has asked; it is looked at again later."""
