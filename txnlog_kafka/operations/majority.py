"""Knowledge that most brokers share of topics and leaders, where one broker must not be believed.

A broker that was paused, or that clients reach and no other broker does, answers Metadata,
ListOffsets and Fetch from old knowledge, until it learns more (Apache Kafka's too). A former leader
ends its log early, and does not know new topics. So before the client takes records to be gone, it
asks all brokers, and most of them have to answer. The newest leader epoch decides the leader
(KIP-320), and a topic exists if one answer has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from txnlog_kafka.operations.calls import LOOKUP_TIMEOUT_MS, call_all, call_any, refuse_if_final
from txnlog_kafka.operations.cluster_view import NO_LEADER, NO_TOPIC_ID, ClusterView, topic_id_of
from txnlog_kafka.operations.effects import Call, Operation, Reply, Unanswered
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import TopicPartition

_SURE = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_METADATA = APIS[ApiKey.METADATA]


def ask_most(
    session: Session, topics: Iterable[str], *, deadline: Deadline
) -> Operation[list[Message]]:
    """Return the Metadata answers of all brokers that answer, once they are most of the known
    brokers.

    Raises DeadlineExceeded, RemoteProtocolError, WrongCluster.
    """
    message = _METADATA.request(
        topics=[_METADATA.request.MetadataRequestTopic(name=n) for n in sorted(set(topics))],
        allow_auto_topic_creation=False,
    )
    doing = "asking most brokers for the cluster's metadata"
    if not session.cluster.nodes:
        reply = yield from call_any(message, doing=doing, deadline=deadline)
        session.check_cluster(reply.message)
        session.cluster = session.cluster.merged(reply.message, all_topics=False)
    while True:
        nodes = sorted(session.cluster.nodes)
        timeout_ms = min(deadline.call_ms, LOOKUP_TIMEOUT_MS)
        outcomes = yield from call_all(tuple(Call(node, message, timeout_ms) for node in nodes))
        answers = [each.message for each in outcomes if isinstance(each, Reply)]
        for each in answers:
            session.check_cluster(each)
        if 2 * len(answers) > len(nodes):
            return answers
        left = [each for each in outcomes if isinstance(each, Unanswered)]
        for each in left:
            refuse_if_final(each, doing)
        reason = left[0].reason if left else "no broker is known"
        yield from deadline.backoff(doing, f"{len(answers)} of {len(nodes)} answered: {reason}")


def find_leaders(
    session: Session, partitions: Iterable[TopicPartition], *, deadline: Deadline
) -> Operation[None]:
    """Update the session with the leaders that most brokers report, each with the newest epoch."""
    wanted = list(partitions)
    answers = yield from ask_most(session, {topic for topic, _ in wanted}, deadline=deadline)
    session.cluster = newest_leaders(session.cluster, wanted, answers)


class _Said(NamedTuple):
    """Report of one answer about a partition."""

    leader_epoch: int
    """Leader epoch; -1 if the answer has none."""
    leader: int
    address: tuple[str, int] | None
    """Address of the leader, if the answer lists it."""


def newest_leaders(
    cluster: ClusterView, partitions: Iterable[TopicPartition], answers: Iterable[Message]
) -> ClusterView:
    """Return the view with each partition's leader of the newest epoch among Metadata answers.

    A topic that was deleted and created again begins with new epochs: then only the answers count
    that have the most frequent id. A tie between two ids leaves the topic without a leader. The
    leader's address comes from the brokers that name the leader in the newest epoch: other brokers
    may not list a leader that came back since, or may list its former address.
    """
    said = _said(answers)
    nodes = dict(cluster.nodes)
    for partition in partitions:
        found = said.get(TopicPartition(*partition), [])
        _, leader = max((each[:2] for each in found), default=(-1, NO_LEADER))
        cluster = cluster.with_leader(partition, leader)
        listed = [
            (each.leader_epoch, each.address)
            for each in found
            if each.leader == leader and each.address is not None
        ]
        newest, _ = max(listed, default=(-1, None))
        places = [address for epoch, address in listed if epoch == newest]
        if places and nodes.get(leader) not in places:
            nodes[leader] = places[0]
    return replace(cluster, nodes=nodes)


def _said(answers: Iterable[Message]) -> dict[TopicPartition, list[_Said]]:
    """Return the reports by partition, from the answers that count for its topic."""
    said: dict[TopicPartition, list[_Said]] = {}
    for named in _by_name(answers).values():
        for topic, answer in _of_one_topic(named):
            addresses = {b.node_id: (b.host, b.port) for b in answer.brokers}
            for part in topic.partitions:
                each = _Said(
                    getattr(part, "leader_epoch", -1), part.leader_id, addresses.get(part.leader_id)
                )
                place = TopicPartition(topic.name, part.partition_index)
                said.setdefault(place, []).append(each)
    return said


def _by_name(answers: Iterable[Message]) -> dict[str, list[tuple[Message, Message]]]:
    """Return (topic, its answer) of each topic that answers have partitions of."""
    named: dict[str, list[tuple[Message, Message]]] = {}
    for answer in answers:
        for topic in answer.topics:
            if topic.partitions:
                named.setdefault(topic.name, []).append((topic, answer))
    return named


def _of_one_topic(named: Sequence[tuple[Message, Message]]) -> list[tuple[Message, Message]]:
    """Return (topic, its answer) for the most frequent id, and for answers without an id (Metadata
    below version 10); [] for a tie."""
    ids = Counter(topic_id_of(topic) for topic, _ in named)
    del ids[NO_TOPIC_ID]
    common = [each for each in ids if ids[each] == max(ids.values())]
    if len(common) > 1:
        return []
    return [each for each in named if topic_id_of(each[0]) in (NO_TOPIC_ID, *common)]


def find_topic_ids(
    session: Session, topics: Iterable[str], *, deadline: Deadline
) -> Operation[dict[str, bytes]]:
    """Return the topic ids reported by most of the brokers that answered. Topics without an id, or
    with a tie, are left out."""
    answers = yield from ask_most(session, topics, deadline=deadline)
    named = _by_name(answers)
    ids = {name: {topic_id_of(t) for t, _ in _of_one_topic(each)} for name, each in named.items()}
    known = {name: each - {NO_TOPIC_ID} for name, each in ids.items()}
    return {name: each.pop() for name, each in known.items() if each}


def find_missing(
    session: Session, partitions: Iterable[TopicPartition], *, deadline: Deadline
) -> Operation[frozenset[TopicPartition]]:
    """Return the `partitions` that are in no answer, if most brokers answer and none has another
    error for the topic than UNKNOWN_TOPIC_OR_PARTITION. The session then knows all other
    partitions."""
    wanted = frozenset(partitions)
    answers = yield from ask_most(session, {topic for topic, _ in wanted}, deadline=deadline)
    unsure: set[str] = set()
    # The answer with the most partitions comes last: that is what the view keeps.
    for answer in sorted(answers, key=lambda a: sum(len(t.partitions or ()) for t in a.topics)):
        session.cluster = session.cluster.merged(answer, all_topics=False)
        unsure |= {t.name for t in answer.topics if t.error_code not in _SURE}
    known = {
        (topic.name, part.partition_index)
        for answer in answers
        for topic in answer.topics
        for part in topic.partitions or ()
    }
    return frozenset(p for p in wanted - known if p[0] not in unsure)
