"""A transactional log store with Kafka's wire protocol and log format, in pure Python.

`python -m broker_sim start --data-dir DIR` runs a broker, and `LocalCluster` runs brokers as child
processes.
"""

from broker_sim.client.fault import ClusterError
from broker_sim.client.kafka import Kafka, KafkaRecord
from broker_sim.local_cluster import REGISTRY, LocalCluster

__all__ = ["REGISTRY", "ClusterError", "Kafka", "KafkaRecord", "LocalCluster"]
