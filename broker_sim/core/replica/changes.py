"""Partitions that have changed in a step, for the fetches that wait for them."""

from __future__ import annotations

from txnlog_kafka.wire.topic_partition import TopicPartition


class Changes:
    """Partitions with something new for other brokers, for consumers, or for both."""

    def __init__(self) -> None:
        self.for_replicas: set[TopicPartition] = set()
        self.for_consumers: set[TopicPartition] = set()

    def __bool__(self) -> bool:
        return bool(self.for_replicas or self.for_consumers)

    @property
    def all(self) -> list[TopicPartition]:
        """Partitions with anything new, sorted: runs can be repeated."""
        return sorted(self.for_replicas | self.for_consumers)

    def add(self, name: TopicPartition) -> None:
        """Add a partition that is gone, or has another role, log start or content."""
        self.for_replicas.add(name)
        self.for_consumers.add(name)

    def appended(self, name: TopicPartition) -> None:
        """Its log end has moved."""
        self.for_replicas.add(name)

    def committed(self, name: TopicPartition) -> None:
        """Its high watermark has moved."""
        self.for_consumers.add(name)
