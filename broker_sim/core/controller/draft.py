"""Metadata records that are not in the log yet, and the image that they will make.

A decision may take several changes, also of one partition, and each follows from the ones before.
So they are replayed on a copy; the image itself changes when they are read from the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from broker_sim.core.config import BrokerConfig
from broker_sim.core.config.live_config import topic_config_value
from broker_sim.core.controller.election import Election, change_partition
from broker_sim.core.controller.image import ClusterImage, MetadataRecord, Topic
from broker_sim.core.controller.metadata_records import partition_changed_record
from broker_sim.core.controller.registrations import NO_LEADER, PartitionRegistration


class Draft:
    """The records of one decision, in order. Only brokers and partitions may change."""

    def __init__(self, image: ClusterImage, config: BrokerConfig) -> None:
        self._config = config
        # What the records here change is in these three; their values are immutable.
        self.image = replace(
            image,
            brokers=dict(image.brokers),
            fenced=dict(image.fenced),
            topics=dict(image.topics),
        )
        self.records: list[MetadataRecord] = []

    def add(self, record: MetadataRecord) -> None:
        """Append a record to the draft."""
        self.image.replay(record)
        self.records.append(record)

    def partitions(self) -> Iterator[tuple[Topic, int, PartitionRegistration]]:
        """Yield all partitions as of now; changes made during the iteration are not seen."""
        for topic in list(self.image.topics.values()):
            for number, partition in enumerate(topic.partitions):
                yield topic, number, partition

    def partition(self, topic: Topic | None, number: int) -> PartitionRegistration | None:
        """A partition as it is now, None when it does not exist."""
        if topic is None or not 0 <= number < len(topic.partitions):
            return None
        return self.image.topics[topic.name].partitions[number]

    def change(
        self,
        topic: Topic,
        number: int,
        wanted: PartitionRegistration,
        election: Election | None = None,
        leaving: int | None = None,
        *,
        unclean: bool = False,
    ) -> PartitionRegistration | None:
        """Change a partition as `change_partition` says; None when nothing changes.

        Without an `election` it is the one that the topic's configuration allows. The broker that
        is `leaving` cannot lead. `unclean`: the wanted ISR has nobody who was in sync.
        """
        after = change_partition(
            self.image.topics[topic.name].partitions[number],
            wanted,
            lambda broker: broker != leaving and self.image.is_active(broker),
            election or (Election.UNCLEAN if self.unclean_allowed(topic) else Election.ONLINE),
        )
        if after is not None:
            unclean = unclean or after.leader not in (NO_LEADER, *wanted.isr)
            self.add(partition_changed_record(topic, number, after, unclean=unclean))
        return after

    def unclean_allowed(self, topic: Topic) -> bool:
        """True if a replica outside the ISR may become the leader by itself."""
        name = "unclean.leader.election.enable"
        return topic_config_value(name, topic.configs, self._config) is True
