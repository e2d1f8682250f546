"""Common parts of the handlers of offset commits: messages to values and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker_sim.core.effects import Request
from broker_sim.core.group.requests import OffsetErrors, OffsetToCommit
from broker_sim.core.handlers._access import topic_allowed
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.topic_partition import TopicPartition

UNKNOWN_TOPIC = ""
"""The name of a topic whose id is not known; no topic has it."""


def topic_names(parts: BrokerParts, topics: Sequence[Any], *, by_id: bool) -> list[str]:
    """The names of a request's topics, in order; UNKNOWN_TOPIC where there is none of the id."""
    if not by_id:
        return [topic.name for topic in topics]
    found = [parts.image.topic_of_id(topic.topic_id) for topic in topics]
    return [UNKNOWN_TOPIC if topic is None else topic.name for topic in found]


def split_known(
    parts: BrokerParts, request: Request, names: Sequence[str], *, by_id: bool = False
) -> tuple[list[OffsetToCommit], OffsetErrors]:
    """Offsets of partitions that exist and may be committed, and errors for the others.

    The request is an OffsetCommit or TxnOffsetCommit. The topic's id is stored also when the
    request has names only: it guards against reading the offset of a topic that was deleted and
    recreated.
    """
    topics = request.message.topics
    known: list[OffsetToCommit] = []
    errors: OffsetErrors = {}
    for topic, name in zip(topics, names, strict=True):
        no_id = by_id and name == UNKNOWN_TOPIC
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if no_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        refused = not no_id and not topic_allowed(parts, request, name)
        if refused:
            unknown = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for partition in topic.partitions:
            place = TopicPartition(name, partition.partition_index)
            if refused or not parts.image.has_partition(place):
                errors[place] = unknown
                continue
            known.append(
                OffsetToCommit(
                    name,
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata,
                    parts.image.topics[name].topic_id,
                )
            )
    return known, errors


def all_partitions(topics: Sequence[Any], names: Sequence[str], error: ErrorCode) -> OffsetErrors:
    """The same error for everything that a request names."""
    return {
        TopicPartition(name, partition.partition_index): error
        for topic, name in zip(topics, names, strict=True)
        for partition in topic.partitions
    }


def commit_topics(
    topic_class: Any, topics: Sequence[Any], names: Sequence[str], errors: OffsetErrors
) -> list[Any]:
    """The `topics` of the answer; `topic_class` is the class of one, with that of partitions."""
    partition_class = getattr(topic_class, topic_class.__name__.removesuffix("Topic") + "Partition")
    answered = []
    for topic, name in zip(topics, names, strict=True):
        partitions = [
            partition_class(
                partition_index=partition.partition_index,
                error_code=int(errors[TopicPartition(name, partition.partition_index)]),
            )
            for partition in topic.partitions
        ]
        answer = topic_class(name=name, partitions=partitions)
        if getattr(topic, "topic_id", None) is not None:
            answer.topic_id = topic.topic_id
        answered.append(answer)
    return answered
