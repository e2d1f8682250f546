"""The cluster's metadata and what changes it: topics, configurations, blocks of producer ids.

`image` holds the state and the only code that changes it, `metadata_records` makes the records of
its changes, `metadata_log` keeps the durable records that it is rebuilt from, and `topic_rules` has
the rules for names, counts and configurations.
"""

from broker_sim.core.controller.image import ClusterImage, Topic
from broker_sim.core.controller.metadata_log import Metadata, MetadataLog

__all__ = ["ClusterImage", "Metadata", "MetadataLog", "Topic"]
