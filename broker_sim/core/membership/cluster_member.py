"""A broker of a cluster: it reads the metadata, opens its logs, registers, and may be elected.

Theory of operation: everything follows from what the registry has, which `registry_link` reads.
After each answer `_on_progress` compares: the logs are opened once the image is the registry's, for
only then is it known which of them belong here; then the broker registers, unless its registration
is there, or still that of the process before, whose session has to expire; then it tries to become
the controller, unless there is one. A broker serves when its image has its own registration.

When the session has expired others have been elected already, or will be: what the broker leads it
leads no more, until a new registration is in the image (Kafka: it is fenced).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from broker_sim.apis import BROKER_APIS, BrokerApiKey
from broker_sim.apis.registry_codes import NodeChange, RegistryError
from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller import ClusterImage, Metadata
from broker_sim.core.controller.image import ImageDelta, MetadataRecord
from broker_sim.core.controller.registrations import BrokerRegistration
from broker_sim.core.effects import Effects, Request, TimerKey
from broker_sim.core.endpoint import inter_broker_listener
from broker_sim.core.membership.cluster_metadata import ClusterMetadata
from broker_sim.core.membership.cluster_producer_ids import ClusterProducerIds
from broker_sim.core.membership.controller import Controller
from broker_sim.core.membership.controller_requests import ControllerRequests, Line
from broker_sim.core.membership.decisions import Decisions
from broker_sim.core.membership.isr_proposals import IsrProposals
from broker_sim.core.membership.registration import (
    NO_CONTROLLER,
    broker_epoch_of_session,
    broker_path,
    controller_of,
    electing,
    epoch_of_session,
    registered_brokers,
    registering,
    registering_again,
)
from broker_sim.core.membership.registry_link import RegistryLink
from broker_sim.core.membership.registry_snapshots import SnapshotWriter
from broker_sim.core.membership.topic_creations import CREATE_TOPICS_VERSION, TopicCreations
from broker_sim.core.peers import Peers
from broker_sim.core.publisher import Publisher
from broker_sim.core.registry_client import MultiAnswer, RegistryClient
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import KNOWN_APIS, ApiKey, Message


class ClusterMember:
    """See the module."""

    apis = frozenset(KNOWN_APIS)

    def __init__(
        self,
        config: BrokerConfig,
        peers: Peers,
        broker: BrokerRegistration,
        new_cluster_id: Callable[[], str],
        decide: Callable[[Request, Effects], Message | None],
        open_logs: Callable[[ClusterMember, Effects], None],
    ) -> None:
        """`decide` handles a request that the controller carries out, and gives None when it makes
        no sense. `open_logs` opens logs and coordinators, by the image, and names the publisher
        (`carried_out_by`)."""
        # This broker, and the metadata that it has from the registry.
        self._open_logs = open_logs
        self._decide = decide
        self._publisher: Publisher | None = None
        """Publisher of the metadata; None before the logs are open."""
        self._broker = broker
        """Registration of this broker; in a controlled shutdown it says so."""
        self._metadata = metadata = ClusterMetadata(broker.broker_id, self._publish_delta)
        self._client = client = RegistryClient(peers)
        timeouts_ms = (
            config.integer("registry.session.timeout.ms"),
            config.integer("registry.heartbeat.interval.ms"),
        )
        # The session at the registry, and the decisions that are written there. Each broker has a
        # controller, but a single controller is active.
        self._link = RegistryLink(
            client, metadata, timeouts_ms, self._on_progress, self._on_session_expired
        )
        self._snapshots = SnapshotWriter(config, client, metadata)
        self._decisions = Decisions(client, self._link, metadata, self._snapshots)
        self.controller = Controller(config, metadata, self._link, self._decisions, new_cluster_id)
        # Requests of this broker to the active controller, which may be its own.
        self.requests = ControllerRequests(
            peers,
            (broker.broker_id, inter_broker_listener(config)),
            lambda: self.controller_id,
            self.carry_out,
        )
        self._isr_proposals = IsrProposals(self._line(BrokerApiKey.ALTER_PARTITION))
        self.alter_partition = self._isr_proposals.propose
        self.producer_ids = ClusterProducerIds(self._line(BrokerApiKey.ALLOCATE_PRODUCER_IDS))
        self.create_later = TopicCreations(
            lambda message, reply, effects: self.requests.forward(
                self.requests.own(message, (ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION)),
                reply,
                effects,
            )
        ).create
        self._changing_nodes = False

    # ------------------------------------------------------------------ what is known

    @property
    def image(self) -> ClusterImage:
        """The metadata as of now."""
        return self._metadata.image

    @property
    def registry_offset(self) -> int:
        """Up to where the registry's metadata log is in the image."""
        return self._metadata.next_offset

    @property
    def is_controller(self) -> bool:
        """True if this broker is the controller, as far as it knows."""
        return self.controller.is_active

    @property
    def broker_epoch(self) -> int | None:
        """Epoch of this broker's registration, None when it has none."""
        node_id, link = self._broker.broker_id, self._link
        return broker_epoch_of_session(link.nodes, node_id, link.session_id)

    @property
    def is_serving(self) -> bool:
        """True if the image has this registration; before that no client is answered."""
        known = self._metadata.image.brokers.get(self._broker.broker_id)
        is_open = self._publisher is not None
        return is_open and known is not None and known.epoch == self.broker_epoch

    @property
    def controller_id(self) -> int:
        """The controller as far as this broker knows, or NO_CONTROLLER. Clients hear of
        one that is up in the image only."""
        found = controller_of(self._link.nodes)
        return found if found in self._metadata.image.brokers else NO_CONTROLLER

    @property
    def has_handed_over(self) -> bool:
        """True if this broker leads nothing that another broker could lead."""
        if self._publisher is None or self.broker_epoch is None:
            return True
        known = self._metadata.image.brokers.get(self._broker.broker_id)
        return known is not None and known.in_controlled_shutdown

    # ------------------------------------------------------------------ life

    def start(self, effects: Effects) -> None:
        """Begin to read the metadata."""
        self._link.start(effects)
        self._snapshots.start(effects)

    def begin_shutdown(self, effects: Effects) -> None:
        """Register again as one that is about to stop: the controller takes such a broker out of
        every ISR that has another one, so that it leads nothing any more (KIP-841)."""
        self._broker = replace(self._broker, in_controlled_shutdown=True)
        self._maybe_change_nodes(effects)

    def stop(self, effects: Effects) -> None:
        """The broker stops: others need not wait until the session expires."""
        self._link.close(effects)

    def on_timer(self, key: TimerKey, effects: Effects) -> bool:
        """Handle the timer; return True if it belongs to this module."""
        return (
            self._link.on_timer(key, effects)
            or self.controller.on_timer(key, effects)
            or self._snapshots.on_timer(key, self._decisions.epoch, effects)
            or self.requests.on_timer(key, effects)
            or self._isr_proposals.on_timer(key, effects)
        )

    def _on_progress(self, effects: Effects) -> None:
        """Something was read from the registry, or it can be asked again."""
        if self._publisher is None:
            if not self._link.has_all_records:
                return
            self._open_logs(self, effects)
            self._metadata.catch_up(effects)
        self._maybe_change_nodes(effects)
        link = self._link
        self.controller.review(epoch_of_session(link.nodes, link.session_id), effects)
        self._decisions.pump(effects)
        self.requests.retry(effects)

    def _on_session_expired(self, effects: Effects) -> None:
        """This broker is neither registered nor the controller any more."""
        self.controller.review(None, effects)
        if self._publisher is not None:
            self._publisher.fence(effects)

    def carried_out_by(self, publisher: Publisher) -> Metadata:
        """The metadata, whose changes the publisher carries out from here on; what was read before,
        the logs are opened by."""
        self._publisher = publisher
        return self._metadata

    def _publish_delta(self, delta: ImageDelta, effects: Effects) -> None:
        if self._publisher is not None:
            self._publisher.publish(delta, effects)

    # ------------------------------------------------------------------ requests

    def carry_out(self, request: Request, reply: Reply[Any], effects: Effects) -> None:
        """Handle a request as the controller, when it is its turn; replies with its answer when
        what it changes is in the metadata log, else with an ErrorCode."""
        answers: list[Any] = []

        def plan(effects: Effects) -> list[MetadataRecord]:
            answer, records = self._metadata.drafted(lambda: self._decide(request, effects))
            answers.append(ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else answer)
            return [] if answer is None else records

        def done(is_done: bool, effects: Effects) -> None:
            reply(answers[0] if is_done else ErrorCode.NOT_CONTROLLER, effects)

        self._decisions.submit(plan, done, effects)

    def _line(self, key: BrokerApiKey) -> Line:
        api = key, BROKER_APIS[key].version
        return Line(
            lambda message, reply, effects: self.requests.ask(message, api, reply, effects),
            self._me,
        )

    def _me(self) -> tuple[int, int]:
        """This broker's id and epoch."""
        epoch = self.broker_epoch
        return self._broker.broker_id, -1 if epoch is None else epoch

    # ------------------------------------------------------------------ nodes

    def _maybe_change_nodes(self, effects: Effects) -> None:
        nodes = self._link.nodes
        if not self._link.has_fresh_nodes:
            return
        if self.broker_epoch is not None:
            own = registered_brokers(nodes)[self._broker.broker_id]
            if self._broker.in_controlled_shutdown and not own.in_controlled_shutdown:
                self._change_nodes(registering_again(self._broker), effects)
            elif controller_of(nodes) == NO_CONTROLLER:
                self._change_nodes(electing(self._broker.broker_id, nodes), effects)
        elif broker_path(self._broker.broker_id) not in nodes:
            self._change_nodes(registering(self._broker), effects)

    def _change_nodes(self, operations: list[NodeChange], effects: Effects) -> None:
        """Whatever is answered: the nodes, read again, say what there is."""
        if self._changing_nodes or self._link.is_paused:
            return
        self._changing_nodes = True
        asked = self._link.session_id

        def on_answer(answer: MultiAnswer | None, effects: Effects) -> None:
            self._changing_nodes = False
            if answer is not None and answer.error is RegistryError.KAFKA_STORAGE_ERROR:
                self._link.pause(effects)
            self._link.on_multi(asked, answer, effects)

        self._client.multi(operations, on_answer, effects)
