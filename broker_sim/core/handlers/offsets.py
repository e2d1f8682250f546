"""What the handlers of offset commits share: messages to values and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from broker_sim.core.group.requests import OffsetErrors, OffsetToCommit
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode


def offsets_to_commit(topics: Iterable[Any]) -> list[OffsetToCommit]:
    """The offsets of an OffsetCommit or TxnOffsetCommit request, in order."""
    return [
        OffsetToCommit(
            topic.name,
            partition.partition_index,
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.committed_metadata,
        )
        for topic in topics
        for partition in topic.partitions
    ]


def split_known(
    state: BrokerState, offsets: Iterable[OffsetToCommit]
) -> tuple[list[OffsetToCommit], OffsetErrors]:
    """Offsets of partitions that exist, and UNKNOWN_TOPIC_OR_PARTITION for the others."""
    known: list[OffsetToCommit] = []
    errors: OffsetErrors = {}
    for offset in offsets:
        if state.partitions.get(offset.topic, offset.partition) is None:
            errors[offset.topic, offset.partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            known.append(offset)
    return known, errors


def commit_topics(topic_class: Any, topics: Sequence[Any], errors: OffsetErrors) -> list[Any]:
    """The `topics` of the answer; `topic_class` is the class of one, with that of partitions."""
    partition_class = getattr(topic_class, topic_class.__name__.removesuffix("Topic") + "Partition")
    return [
        topic_class(
            name=topic.name,
            partitions=[
                partition_class(
                    partition_index=partition.partition_index,
                    error_code=int(errors[topic.name, partition.partition_index]),
                )
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]
