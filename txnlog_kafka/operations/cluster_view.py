"""Knowledge of the cluster, as a value: nodes, topics, leaders. Built from Metadata answers."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import Message
from txnlog_kafka.wire.topic_partition import TopicPartition

NO_LEADER = -1
NO_TOPIC_ID = bytes(16)


@dataclass(frozen=True, slots=True)
class TopicView:
    """Topic with its id (16 zero bytes when unknown) and each partition's leader node, or -1."""

    topic_id: bytes
    leaders: Mapping[int, int]
    error_code: int = 0

    @property
    def partition_count(self) -> int:
        """Number of partitions; they are numbered from 0 without gaps."""
        return len(self.leaders)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Nodes by id as (host, port), and the topics asked for so far."""

    nodes: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    cluster_id: str | None = None
    controller_id: int = -1

    def leader(self, partition: TopicPartition) -> int:
        """Return the node that leads `partition`, or -1 if the leader is not known."""
        topic = self.topics.get(partition[0])
        return NO_LEADER if topic is None else topic.leaders.get(partition[1], NO_LEADER)

    def topic_id(self, topic: str) -> bytes:
        """Return the topic's id, 16 zero bytes if it is not known."""
        view = self.topics.get(topic)
        return NO_TOPIC_ID if view is None else view.topic_id

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the known ids of these topics, as Kafka's tools show them."""
        known = {topic: self.topic_id(topic) for topic in topics}
        return {t: topic_id_text(each) for t, each in known.items() if each != NO_TOPIC_ID}

    def partitions(self, topic: str) -> tuple[int, ...]:
        """Return the partition numbers of a topic, ascending; () if the topic is not known."""
        view = self.topics.get(topic)
        return () if view is None else tuple(sorted(view.leaders))

    def forget_leader(self, partition: TopicPartition) -> ClusterView:
        """Return the view without this partition's leader, so that the client asks for it again."""
        return self.with_leader(partition, NO_LEADER)

    def with_leader(self, partition: TopicPartition, node: int) -> ClusterView:
        """Return the same view with this leader, if the view knows the partition."""
        view = self.topics.get(partition[0])
        if view is None or partition[1] not in view.leaders:
            return self
        leaders = {**view.leaders, partition[1]: node}
        return replace(self, topics={**self.topics, partition[0]: replace(view, leaders=leaders)})

    def with_topics(self, topics: Iterable[str]) -> ClusterView:
        """Return the same view with these topics only."""
        return replace(self, topics={name: self.topics[name] for name in topics})

    def without_controller(self) -> ClusterView:
        """Return the same view without a controller."""
        return replace(self, controller_id=-1)

    def merged(self, answer: Message, *, all_topics: bool) -> ClusterView:
        """Return this view updated by a MetadataResponse; with `all_topics` the answer replaces all
        topics.

        A topic that the answer reports as missing is dropped from the view, and no other topic: a
        restarting broker may report topics as unknown for a while (librdkafka 1.9).
        """
        nodes = {b.node_id: (b.host, b.port) for b in answer.brokers}
        topics = {} if all_topics else dict(self.topics)
        for topic in answer.topics:
            topics[topic.name] = _topic_view(topic)
        topics = {name: t for name, t in topics.items() if t.error_code == 0 or t.leaders}
        return ClusterView(
            nodes=nodes or self.nodes,
            topics=topics,
            cluster_id=answer.cluster_id or self.cluster_id,
            controller_id=answer.controller_id,
        )


def _topic_view(topic: Message) -> TopicView:
    leaders = {}
    for partition in topic.partitions or ():
        usable = partition.error_code in (0, ErrorCode.REPLICA_NOT_AVAILABLE)
        leaders[partition.partition_index] = partition.leader_id if usable else NO_LEADER
    return TopicView(topic_id_of(topic), leaders, topic.error_code)


def topic_id_text(topic_id: bytes) -> str:
    """Return an id as Kafka's tools show it (`org.apache.kafka.common.Uuid`)."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def parse_topic_id(text: str) -> bytes:
    """Return the 16 bytes of an id that `topic_id_text` made."""
    return base64.urlsafe_b64decode(text + "==")


def topic_id_of(topic: Message) -> bytes:
    """Return the id of a topic in a Metadata answer; 16 zero bytes if it has no id."""
    topic_id = getattr(topic, "topic_id", None)
    if topic_id is None:
        return NO_TOPIC_ID
    return bytes(getattr(topic_id, "bytes", topic_id))
