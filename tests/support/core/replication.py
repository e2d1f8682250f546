"""A cluster's metadata, for tests of what the controller decides. Records go through JSON."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.image import ClusterImage, MetadataRecord, Topic
from broker_sim.core.controller.isr_changes import IsrChange
from broker_sim.core.controller.metadata_records import topic_record
from broker_sim.core.controller.registrations import BrokerRegistration, PartitionRegistration
from broker_sim.core.controller.replication_control import ReplicationControl

TOPIC_ID = uuid.UUID(int=7)


class Controlled:
    """An image with one topic `t`, and the decisions about it."""

    def __init__(
        self,
        brokers: Sequence[int],
        *partitions: PartitionRegistration,
        unclean: bool = False,
    ) -> None:
        self.image = ClusterImage(0)
        config = BrokerConfig({"unclean.leader.election.enable": unclean})
        self.control = ReplicationControl(self.image, config)
        topic = Topic("t", TOPIC_ID, len(partitions), {}, 0, partitions)
        self.apply([topic_record(topic)])
        for broker in brokers:
            self.up(broker)

    def apply(self, records: Sequence[MetadataRecord]) -> int:
        """Replay them; how many there are."""
        for record in json.loads(json.dumps(records)):
            self.image.replay(record)
        return len(records)

    def decide(self, decision: Any) -> Any:
        """Apply a decision; its answer."""
        self.apply(decision.records)
        return decision.answer

    def up(self, broker: int, epoch: int | None = None, *, stops: bool = False) -> int:
        """The broker is up, or about to stop; its epoch is its id where none is given."""
        known = broker if epoch is None else epoch
        registration = BrokerRegistration(broker, known, {}, in_controlled_shutdown=stops)
        return self.apply(self.control.broker_up(registration))

    def down(self, broker: int) -> int:
        return self.apply(self.control.broker_down(broker))

    def change(self, *isr: int, partition: int = 0, **fields: Any) -> IsrChange:
        """An ISR change with the epochs that are in force, but for those given."""
        now = self[partition]
        epochs = {"leader_epoch": now.leader_epoch, "partition_epoch": now.partition_epoch}
        new_isr = tuple(
            (broker, self.image.brokers[broker].epoch if broker in self.image.brokers else 0)
            for broker in isr
        )
        given = {"topic_id": TOPIC_ID, "partition": partition, "new_isr": new_isr}
        return IsrChange(**{**given, **epochs, **fields})

    def alter(self, *isr: int, partition: int = 0, by: int | None = None, **fields: Any) -> Any:
        """The leader, or `by`, alters the ISR; the error."""
        broker = self[partition].leader if by is None else by
        change = self.change(*isr, partition=partition, **fields)
        epoch = self.image.brokers[broker].epoch
        return self.decide(self.control.alter_partition(broker, epoch, [change]))[0].error

    def __getitem__(self, partition: int) -> PartitionRegistration:
        return self.image.topics["t"].partitions[partition]
