"""What a handler may use: the broker's parts, wired together once."""

from __future__ import annotations

from dataclasses import dataclass

from broker_sim.core.config import BrokerConfig
from broker_sim.core.config_admin import ConfigAdmin
from broker_sim.core.coordinator_host import LocalHost
from broker_sim.core.effects import Effects, Request, Respond
from broker_sim.core.endpoint import Endpoint
from broker_sim.core.group.coordinator import GroupCoordinator
from broker_sim.core.log.compression import Decompress
from broker_sim.core.log_cleaner import LogCleaner
from broker_sim.core.metadata import ClusterImage, MetadataLog
from broker_sim.core.parked import ParkedFetches
from broker_sim.core.partitions import PartitionTable
from broker_sim.core.topic_admin import TopicAdmin
from broker_sim.core.transaction.coordinator import TransactionCoordinator
from txnlog_spark.wire.messages import Message


@dataclass(slots=True)
class BrokerState:
    """The parts of a started broker."""

    config: BrokerConfig
    endpoint: Endpoint
    metadata: MetadataLog
    partitions: PartitionTable
    topics: TopicAdmin
    configs: ConfigAdmin
    host: LocalHost
    transactions: TransactionCoordinator
    groups: GroupCoordinator
    fetches: ParkedFetches
    cleaner: LogCleaner
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


def respond(request: Request, message: Message, effects: Effects) -> None:
    """Answer `request`; for answers that are not given by returning a message."""
    effects.responses.append(
        Respond(
            request.connection_id,
            request.correlation_id,
            request.api_key,
            request.api_version,
            message,
        )
    )
