"""The cluster's metadata and what changes it: topics, configurations, blocks of producer ids.

`image` holds the state and the only code that changes it, `metadata_log` the durable records it is
rebuilt from, `topic_rules` the rules for names, counts and configurations.
"""

from broker_sim.core.controller.image import ClusterImage, Topic
from broker_sim.core.controller.metadata_log import Metadata, MetadataLog

__all__ = ["ClusterImage", "Metadata", "MetadataLog", "Topic"]
