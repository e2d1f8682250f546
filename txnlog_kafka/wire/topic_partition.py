"""Names of partitions and of Kafka's internal topics."""

from __future__ import annotations

from typing import NamedTuple

METADATA_TOPIC = "__cluster_metadata"
TRANSACTION_STATE_TOPIC = "__transaction_state"
GROUP_METADATA_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({TRANSACTION_STATE_TOPIC, GROUP_METADATA_TOPIC})
"""Topics written by the coordinators; clients may only read them."""


class TopicPartition(NamedTuple):
    """Name of a partition; sorts by topic, then number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
