"""Where a query's progress lies: one partition for all its batches, chosen before the first.

Kafka deletes a topic's committed offsets with the topic, so the partition is one of a topic that
is likely to stay, and never changes while it exists: of a source, which the query may read anyway
(committing an offset for a topic takes READ on it), else of the output.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from txnlog_spark.commit.progress import locate_progress
from txnlog_spark.errors import TxnLogError
from txnlog_spark.protocol.effects import Operation
from txnlog_spark.protocol.metadata import KAFKA_INTERNAL_TOPICS, confirm_missing, refresh_metadata
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.values import StagedPartition
from txnlog_spark.wire.topics import TopicPartition


def place_progress(
    session: Session,
    *,
    recorded: TopicPartition | None,
    may_move: bool,
    progress_group_id: str,
    query_id: str,
    sources: Collection[TopicPartition],
    staged: Sequence[StagedPartition],
    topic: str | None,
) -> Operation[TopicPartition]:
    """Where the query's progress is, else (the first batch) where it is going to be.

    `recorded` is what the checkpoint says. Progress that went with its topic is placed again only
    where it `may_move`, for a batch that was never begun; else it has to be missed where it was.
    """
    if recorded is not None:
        if not may_move or not (yield from _is_gone(session, recorded)):
            return recorded
    else:
        located = yield from locate_progress(session, progress_group_id, query_id)
        if located is not None:
            return located
    return (yield from choose_partition(session, sources, staged, topic))


def choose_partition(
    session: Session,
    sources: Collection[TopicPartition],
    staged: Sequence[StagedPartition],
    topic: str | None,
) -> Operation[TopicPartition]:
    """A partition that exists, to commit progress for. Raises TxnLogError without any topic."""
    if sources:
        missing = yield from confirm_missing(session, sources)
        for partition in sorted(sources):
            if partition not in missing:
                return partition
    if topic is not None:
        return TopicPartition(topic, 0)
    for piece in staged:
        return TopicPartition(piece.topic, piece.partition)
    yield from refresh_metadata(session, None)
    for name in sorted(set(session.cluster.topics) - KAFKA_INTERNAL_TOPICS):
        return TopicPartition(name, session.cluster.partitions(name)[0])
    raise TxnLogError(
        "an empty batch cannot be recorded on a cluster without topics: create the output topic, "
        "or set the option topic"
    )


def _is_gone(session: Session, partition: TopicPartition) -> Operation[bool]:
    topic, number = partition
    if number in session.cluster.partitions(topic):
        return False
    return bool((yield from confirm_missing(session, [partition])))
