"""Three brokers of either kind, and who of them has which part."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from confluent_kafka.admin import AdminClient
from support.brokers.coordinators_ready import TRANSACTION
from support.raw.raw import Connection
from support.raw.requests import find_coordinator, request

from txnlog_kafka.wire.messages import ApiKey

ANSWER_SECONDS_MAX = 600


class Cluster(Protocol):
    """Brokers that can be killed one by one, by their numbers."""

    bootstrap_servers: str

    @property
    def live_port(self) -> int:
        """The port of one that is up."""

    def kill(self, number: int) -> None:
        """SIGKILL one."""

    def restart(self, number: int) -> None:
        """Start one that was killed."""


def is_whole(ports: Collection[int]) -> bool:
    """True if each of these brokers answers, and knows all of them, and that each partition is led
    and has all its replicas in sync."""
    message = request(ApiKey.METADATA, topics=None, allow_auto_topic_creation=False)
    for port in ports:
        try:
            with Connection(port) as connection:
                answer = connection.ask(message, 9)
        except (OSError, EOFError):
            return False
        partitions = [each for topic in answer.topics for each in topic.partitions]
        if len(answer.brokers) != len(ports) or not all(
            p.leader_id >= 0 and set(p.isr_nodes) == set(p.replica_nodes) for p in partitions
        ):
            return False
    return True


def leader(cluster: Cluster, topic: str, partition: int) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    found = admin.list_topics(topic, timeout=ANSWER_SECONDS_MAX).topics[topic]
    return int(found.partitions[partition].leader)


def coordinator(cluster: Cluster, key: str, key_type: int = TRANSACTION) -> int:
    """The number of the broker that coordinates a transactional id, or a group."""
    with Connection(cluster.live_port) as connection:
        (found,) = connection.ask(find_coordinator(key_type, key), 4).coordinators
    return int(found.node_id)
