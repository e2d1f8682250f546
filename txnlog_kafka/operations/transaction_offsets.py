"""Offsets of groups that join a transaction (TxnOffsetCommit), and the groups' offsets before.

From v6 on TxnOffsetCommit names topics by their ids (KIP-1319): the offsets of a topic that was
deleted never become those of another topic with its name. The caller
names the ids, because the metadata may know another id by now. Topics without an id, and older
coordinators, get names.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from txnlog_kafka.errors import AbortableError
from txnlog_kafka.operations.calls import (
    GROUP,
    CoordinatorRequest,
    call_coordinators,
    partition_codes,
    topic_names,
)
from txnlog_kafka.operations.cluster_view import NO_TOPIC_ID, parse_topic_id
from txnlog_kafka.operations.effects import Operation, Reply
from txnlog_kafka.operations.majority import find_topic_ids
from txnlog_kafka.operations.metadata import confirm_missing
from txnlog_kafka.operations.offsets import (
    CommittedOffset,
    by_topic,
    committed_request,
    fetched_offsets,
    offset_parts,
)
from txnlog_kafka.operations.retry import describe_code
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.operations.transaction import Transaction
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.topic_partition import TopicPartition

TXN_OFFSET_COMMIT_VERSION_MAX_V1 = 4
TXN_OFFSET_COMMIT_NAME_VERSION_MAX = 5
"""Last version that names topics."""

_TXN_OFFSETS = APIS[ApiKey.TXN_OFFSET_COMMIT]


def commit_source_offsets(
    session: Session,
    transaction: Transaction,
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    topic_ids: Mapping[str, bytes],
    *,
    deadline: Deadline | None = None,
) -> Operation[frozenset[TopicPartition]]:
    """Commit a group's offsets with the transaction (TxnOffsetCommit); return partitions that no
    longer exist.

    Coordinators refuse the offsets of a deleted topic (UNKNOWN_TOPIC_OR_PARTITION or
    UNKNOWN_TOPIC_ID, for its partitions alone), so a batch that read the topic could never be
    committed. So this leaves out partitions that no longer exist, and those of a topic that has
    another id now. A broker that does not know a topic yet refuses in the same way: the client
    believes the refusal only when the metadata agrees for a while.
    """
    deadline = deadline or session.deadline()
    remaining = dict(offsets)
    doing = _committing(transaction, group_id)
    transaction.begun = True
    while remaining:
        requests = _offsets_requests(transaction, group_id, remaining, topic_ids)
        replies = yield from call_coordinators(session, requests, deadline=deadline)
        refused = _unknown_in(zip(requests, replies, strict=True))
        if not refused:
            break
        missing = yield from confirm_missing(session, refused, deadline=deadline)
        there = {p.topic for p in refused - missing} & topic_ids.keys()
        now = yield from find_topic_ids(session, there, deadline=deadline)
        missing |= {p for p in refused if p.topic in now and now[p.topic] != topic_ids[p.topic]}
        for partition in missing:
            remaining.pop(partition, None)
        if refused <= missing:
            break
        yield from deadline.backoff(doing, describe_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    return frozenset(offsets) - frozenset(remaining)


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    """Outcome of `commit_all_offsets`.

    `missing` partitions no longer exist, and were left out. `behind` are the offsets that each
    group had before, read from its coordinator right behind the transaction's offsets.
    """

    missing: frozenset[TopicPartition]
    behind: Mapping[str, Mapping[TopicPartition, CommittedOffset]]


def commit_all_offsets(
    session: Session,
    transaction: Transaction,
    groups: Mapping[str, Mapping[TopicPartition, CommittedOffset]],
    *,
    may_be_gone: str | None,
    topic_ids: Mapping[str, str] | None = None,
    deadline: Deadline | None = None,
) -> Operation[OffsetsCommitted]:
    """Commit the offsets of several groups, sent at once, and right behind them OffsetFetch.

    `topic_ids` are the ids, as text, of the topics that the offsets of `may_be_gone` belong to.
    Other groups, and a group with a topic without an id, get names.

    A group's offsets that are too many for one record batch are sent in parts. The last part of
    each group is sent when the coordinators have accepted the other parts, so that OffsetFetch is
    behind all of them.

    Only partitions of the group `may_be_gone` may be left out, as `commit_source_offsets` says.
    Raises AbortableError if partitions of another group no longer exist.
    """
    deadline = deadline or session.deadline()
    read = {topic: parse_topic_id(text) for topic, text in (topic_ids or {}).items()}
    ids = {group_id: read if group_id == may_be_gone else {} for group_id in groups}
    parts = [_offsets_requests(transaction, each, groups[each], ids[each]) for each in groups]
    first = [request for of_group in parts for request in of_group[:-1]]
    last = [of_group[-1] for of_group in parts]
    reads = [
        replace(committed_request(group_id, None, require_stable=False), behind=number)
        for number, group_id in enumerate(groups)
    ]
    transaction.begun = True
    # Two rounds: a read in the first could overtake a part that its coordinator refused for now.
    replies = yield from call_coordinators(session, first, deadline=deadline)
    replies += yield from call_coordinators(session, last + reads, deadline=deadline)
    requests = first + last
    behind = {
        group_id: fetched_offsets(reply)
        for group_id, reply in zip(groups, replies[len(requests) :], strict=True)
    }
    # A refusal as unknown is not final: the topic may be new to the broker, or deleted.
    missing: frozenset[TopicPartition] = frozenset()
    for group_id, offsets in groups.items():
        of_group = zip(requests, replies, strict=False)
        refused = _unknown_in(each for each in of_group if each[0].key == group_id)
        if not refused:
            continue
        del behind[group_id]  # of a broker that does not coordinate the group, too
        left = {p: offsets[p] for p in refused}
        gone = yield from commit_source_offsets(
            session, transaction, group_id, left, ids[group_id], deadline=deadline
        )
        if gone and group_id != may_be_gone:
            names = ", ".join(f"{topic}-{number}" for topic, number in sorted(gone))
            doing = _committing(transaction, group_id)
            raise AbortableError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{doing} for {names}")
        missing |= gone
    return OffsetsCommitted(missing, behind)


_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


def _codes_of_known(reply: Reply) -> tuple[int, ...]:
    return tuple(code for code in partition_codes(reply) if code not in _UNKNOWN)


def _unknown_in(answered: Iterable[tuple[CoordinatorRequest, Reply]]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(name, p.partition_index)
        for request, reply in answered
        for name, topic in topic_names(request.message, reply)
        for p in topic.partitions
        if p.error_code in _UNKNOWN
    )


def _committing(transaction: Transaction, group_id: str) -> str:
    return f"committing offsets of group {group_id!r} in the transaction ({transaction.who})"


def _offsets_requests(
    transaction: Transaction,
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    topic_ids: Mapping[str, bytes],
) -> list[CoordinatorRequest]:
    """Return a TxnOffsetCommit for each part; parts of one transaction add up."""
    parts = offset_parts(group_id, offsets)
    return [_offsets_request(transaction, group_id, part, topic_ids) for part in parts]


def _offsets_request(
    transaction: Transaction,
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    topic_ids: Mapping[str, bytes],
) -> CoordinatorRequest:
    topic_type = _TXN_OFFSETS.request.TxnOffsetCommitRequestTopic
    message = _TXN_OFFSETS.request(
        transactional_id=transaction.transactional_id,
        group_id=group_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            topic_type(
                name=topic,
                topic_id=uuid.UUID(bytes=topic_ids.get(topic, NO_TOPIC_ID)),
                partitions=[
                    topic_type.TxnOffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=offsets[TopicPartition(topic, number)].committed_offset,
                        committed_metadata=offsets[TopicPartition(topic, number)].metadata,
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(offsets).items()
        ],
    )
    version_max: int | None = None
    if transaction.version < 2:
        version_max = TXN_OFFSET_COMMIT_VERSION_MAX_V1
    elif any(topic not in topic_ids for topic, _ in offsets):
        version_max = TXN_OFFSET_COMMIT_NAME_VERSION_MAX
    doing = _committing(transaction, group_id)
    return CoordinatorRequest(GROUP, group_id, message, doing, _codes_of_known, version_max)
