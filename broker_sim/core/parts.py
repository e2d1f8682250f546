"""Parts of the broker that a handler may use, wired together once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller import ClusterImage, Metadata
from broker_sim.core.controller.acl_admin import AclAdmin
from broker_sim.core.controller.configs import ConfigAdmin
from broker_sim.core.controller.quota_admin import QuotaAdmin
from broker_sim.core.controller.replication_control import ReplicationControl
from broker_sim.core.controller.scram import ScramAdmin
from broker_sim.core.controller.topic_changes import TopicAdmin
from broker_sim.core.coordinator.marker_sender import MarkerSender
from broker_sim.core.effects import Effects, Request
from broker_sim.core.endpoint import Endpoint, Listener
from broker_sim.core.free_space import FreeSpace
from broker_sim.core.group.coordinator import GroupCoordinator
from broker_sim.core.log.compression import Decompress
from broker_sim.core.membership import Membership
from broker_sim.core.peers import Peers
from broker_sim.core.quotas import QuotaManager
from broker_sim.core.replica.delayed_fetch import DelayedFetches
from broker_sim.core.replica.fetch_session import FetchSessions
from broker_sim.core.replica.log_cleaner import LogCleaner
from broker_sim.core.replica.log_manager import LogManager
from broker_sim.core.replica.replica_manager import ReplicaManager
from broker_sim.core.replica.replication import Replication
from broker_sim.core.replies import answer_to
from broker_sim.core.security.authorizer import Authorizer
from broker_sim.core.security.logins import Logins
from broker_sim.core.transaction.add_retries import AddRetries
from broker_sim.core.transaction.coordinator import TransactionCoordinator
from broker_sim.core.transaction.verifier import TransactionVerifier
from txnlog_kafka.wire.messages import Message


@dataclass(slots=True)
class BrokerParts:
    """The parts of a started broker."""

    config: BrokerConfig
    listeners: Mapping[str, Listener]
    """By name."""
    metadata: Metadata
    membership: Membership
    space: FreeSpace
    logs: LogManager
    replicas: ReplicaManager
    replication: Replication
    topics: TopicAdmin
    configs: ConfigAdmin
    scram: ScramAdmin
    acls: AclAdmin
    quota_admin: QuotaAdmin
    quotas: QuotaManager
    control: ReplicationControl
    authorizer: Authorizer
    logins: Logins
    markers: MarkerSender
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    add_retries: AddRetries
    groups: GroupCoordinator
    fetches: DelayedFetches
    sessions: FetchSessions
    cleaner: LogCleaner
    peers: Peers
    decompress: Decompress | None = None
    """The host's; without it a lookup by time in a compressed batch gives its first offset."""

    @property
    def image(self) -> ClusterImage:
        """The metadata as of now."""
        return self.metadata.image

    @property
    def node_id(self) -> int:
        """This broker's id."""
        return self.config.integer("node.id")

    def address(self, request: Request) -> Endpoint:
        """Return the address by which clients of the request's listener find this broker."""
        return self.listeners[request.listener].advertised


def respond(request: Request, message: Message, effects: Effects) -> None:
    """Answer `request`; for answers that are not given by returning a message."""
    effects.responses.append(answer_to(request, message))
