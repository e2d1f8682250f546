"""State of a cluster by its newest metadata, and by the knowledge of brokers that are up."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

from broker_sim.core.log.files import encode_partition_metadata
from simulation.checkers.metadata_oracle import MetadataOracle
from simulation.checkers.replica_oracle import ClusterState, partition_name
from simulation.hosts.cluster_processes import ClusterBroker


class NewestMetadata(ClusterState):
    """See the module."""

    def __init__(
        self,
        metadata: MetadataOracle,
        hosts: Mapping[int, ClusterBroker],
        has_lost: Callable[[str], bool],
    ) -> None:
        """`has_lost` says whether a machine in an ISR has lost records, unnoticed by the others."""
        self._metadata = metadata
        self._hosts = hosts
        self._has_lost = has_lost

    def leader_of(self, directory: str) -> str:
        """Return the broker that leads a partition; "" if the leader is not up."""
        held = self._metadata.partitions.get(directory)
        host = None if held is None else self._hosts.get(held.leader)
        return host.name if host is not None and host.is_up else ""

    def partition_of(self, directory: str) -> str:
        """Return the partition that now has the name of a folder; "" for a deleted one."""
        topic_id = self._metadata.topic_ids.get(directory.rpartition("-")[0])
        if topic_id is None:
            return ""
        return partition_name(directory, encode_partition_metadata(uuid.UUID(topic_id).bytes))

    def in_sync(self, directory: str) -> Sequence[str]:
        """Return the brokers in a partition's ISR, without one that has lost its records."""
        isr = self._metadata.partitions[directory].isr
        return [f"broker-{n}" for n in isr if not self._has_lost(f"broker-{n}")]

    def has_to_keep(self, broker: str, directory: str, partition: str) -> bool:
        """True if a partition exists, and its replica is on this broker.

        The newest metadata say so, and so does the broker's knowledge. A broker in the ISR must
        have known of its replica.
        """
        number = int(broker.removeprefix("broker-"))
        held = self._metadata.partitions.get(directory)
        is_present = held is not None and self.partition_of(directory) == partition
        if held is None or not is_present or number not in held.replicas:
            return False
        host, (topic, _, index) = self._hosts[number], directory.rpartition("-")
        known = host.broker.membership.image.topics.get(topic) if host.is_up else None
        if known is None or number in known.partitions[int(index)].adding:
            # It has read, perhaps in one step, that it was taken away: it begins again.
            return broker in self.in_sync(directory)
        return broker in self.in_sync(directory) or number in known.partitions[int(index)].replicas
