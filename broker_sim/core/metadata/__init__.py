"""What the cluster knows about itself: topics, configurations, id blocks, and their durable log.

`image` holds the state and the only code that changes it, `metadata_log` the durable records it is
rebuilt from, `topics` the rules for names, counts and configurations.
"""

from broker_sim.core.metadata.image import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    ClusterImage,
    Topic,
)
from broker_sim.core.metadata.metadata_log import MetadataLog

__all__ = [
    "GROUP_METADATA_TOPIC",
    "INTERNAL_TOPICS",
    "METADATA_TOPIC",
    "TRANSACTION_STATE_TOPIC",
    "ClusterImage",
    "MetadataLog",
    "Topic",
]
