"""Operations on offsets: of partitions (ListOffsets) and of groups (OffsetFetch, OffsetCommit)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from txnlog_kafka.errors import FatalError, RemoteProtocolError
from txnlog_kafka.operations.calls import (
    GROUP,
    CoordinatorRequest,
    call_all,
    call_coordinators,
    partition_codes,
    refuse_if_final,
)
from txnlog_kafka.operations.cluster_view import NO_LEADER
from txnlog_kafka.operations.effects import Call, Operation, Reply, Unanswered
from txnlog_kafka.operations.majority import find_leaders, find_missing
from txnlog_kafka.operations.metadata import UNKNOWN_TOPIC_PATIENCE_MS, require_leaders
from txnlog_kafka.operations.retry import Subject, why_again
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import TopicPartition

EARLIEST_TIMESTAMP = -2
"""ListOffsets timestamp for the log start offset."""
LATEST_TIMESTAMP = -1
"""ListOffsets timestamp for the high watermark, or the last stable offset under read_committed."""
REQUIRE_STABLE_VERSION = 7
"""OffsetFetch version from which on a broker can refuse undecided offsets (KIP-447, Kafka 2.5)."""

TOPIC_NAME_VERSION_MAX = 9
"""Last version that names topics; later OffsetCommit and OffsetFetch use topic ids (Kafka 4.1)."""

OFFSET_RECORDS_BYTES_MAX = 500_000
"""Bytes of offset records that one request leads to: half of the default message.max.bytes."""
OFFSET_RECORD_BYTES = 80
"""Upper bound of an offset record's bytes besides group id, topic name and metadata."""

_LISTING = "listing offsets"
_LIST = APIS[ApiKey.LIST_OFFSETS]
_FETCH = APIS[ApiKey.OFFSET_FETCH]
_COMMIT = APIS[ApiKey.OFFSET_COMMIT]


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """Offset found by ListOffsets and its record's timestamp in ms; -1 if there is none."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Committed offset of a group (next to read), with its metadata string."""

    committed_offset: int
    metadata: str


def by_topic(
    partitions: Mapping[TopicPartition, object] | list[TopicPartition],
) -> dict[str, list[int]]:
    """Return partition numbers by topic, both ascending."""
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        topics[topic].append(number)
    return dict(topics)


def offset_parts(
    group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> list[dict[TopicPartition, CommittedOffset]]:
    """Divide offsets, in their order, into parts that a coordinator can append; at least one part.

    A coordinator appends the offsets of one request as one record batch, which must not exceed
    message.max.bytes. Each record repeats the group id and the topic name.
    """
    parts: list[dict[TopicPartition, CommittedOffset]] = [{}]
    left = OFFSET_RECORDS_BYTES_MAX
    for partition in sorted(offsets):
        topic, _ = partition
        names = f"{group_id}{topic}{offsets[partition].metadata}"
        size = OFFSET_RECORD_BYTES + len(names.encode())
        if size > left and parts[-1]:
            parts.append({})
            left = OFFSET_RECORDS_BYTES_MAX
        parts[-1][partition] = offsets[partition]
        left -= size
    return parts


def list_offsets(
    session: Session, specs: Mapping[TopicPartition, int], *, read_committed: bool
) -> Operation[dict[TopicPartition, ListedOffset]]:
    """Return one offset per partition for EARLIEST_TIMESTAMP, LATEST_TIMESTAMP or a timestamp in
    ms.

    Asks all leaders at once and follows leader changes. Raises UnknownTopic, FatalError,
    DeadlineExceeded.
    """
    deadline = session.deadline()
    found: dict[TopicPartition, ListedOffset] = {}
    while missing := {p: spec for p, spec in specs.items() if p not in found}:
        yield from require_leaders(session, missing, deadline=deadline)
        answered, errors = yield from ask_leaders(
            session, missing, read_committed=read_committed, deadline=deadline
        )
        found |= answered
        if errors:
            yield from deadline.backoff(_LISTING, errors[0])
    return found


def ask_leaders(
    session: Session,
    specs: Mapping[TopicPartition, int],
    *,
    read_committed: bool,
    deadline: Deadline,
) -> Operation[tuple[dict[TopicPartition, ListedOffset], list[str]]]:
    """Ask the known leaders once, as `list_offsets` does; return their offsets, and why others are
    missing.

    Forgets the leaders of partitions without an answer. Raises UnknownTopic, FatalError.
    """
    by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for partition, spec in specs.items():
        by_leader[session.cluster.leader(partition)][partition] = spec
    errors = [f"{topic}-{number} has no leader" for topic, number in by_leader.pop(NO_LEADER, ())]
    outcomes = yield from call_all(
        tuple(
            Call(node, _list_request(part, read_committed), deadline.call_ms)
            for node, part in by_leader.items()
        )
    )
    found: dict[TopicPartition, ListedOffset] = {}
    for part, outcome in zip(by_leader.values(), outcomes, strict=True):
        errors += _take_listed(session, part, outcome, found)
    return found, errors


def confirm_log_ends(
    session: Session, positions: Mapping[TopicPartition, int], said: Mapping[TopicPartition, int]
) -> Operation[dict[TopicPartition, int]]:
    """Return the high watermarks of logs that are `said` to end before these positions.

    A former leader ends its log early. So if there are several brokers, the client asks most of
    them for the leader, and then that leader for the end of its log. While the end lies before the
    position, the client asks again, for a while. Raises UnknownTopic, and DeadlineExceeded when the
    leader does not answer.
    """
    if len(session.cluster.nodes) < 2:
        return dict(said)
    deadline = session.deadline()
    until_ms = session.monotonic_ms() + deadline.patience_ms(UNKNOWN_TOPIC_PATIENCE_MS)
    specs = dict.fromkeys(positions, LATEST_TIMESTAMP)
    yield from require_leaders(session, positions, deadline=deadline)
    while True:
        yield from find_leaders(session, positions, deadline=deadline)
        listed, errors = yield from ask_leaders(
            session, specs, read_committed=False, deadline=deadline
        )
        ends = {partition: each.offset for partition, each in listed.items()}
        short = [p for p, end in sorted(ends.items()) if end < positions[p]]
        is_soon = session.monotonic_ms() < until_ms
        if not errors and not (short and is_soon):
            return ends
        unsaid = [p for p in positions if p not in ends]
        if unsaid and not is_soon:
            gone = yield from find_missing(session, unsaid, deadline=deadline)
            yield from require_leaders(session, gone, deadline=deadline)
        first = (unsaid or short)[0]
        yield from deadline.backoff(
            f"making sure that {first[0]}-{first[1]} ends before offset {positions[first]}",
            errors[0] if errors else f"its leader says {ends[first]}",
        )


def _list_request(specs: Mapping[TopicPartition, int], read_committed: bool) -> Message:
    topic_type = _LIST.request.ListOffsetsTopic
    return _LIST.request(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=[
            topic_type(
                name=topic,
                partitions=[
                    topic_type.ListOffsetsPartition(
                        partition_index=number, timestamp=specs[TopicPartition(topic, number)]
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(specs).items()
        ],
    )


def _take_listed(
    session: Session,
    asked: Mapping[TopicPartition, int],
    outcome: Reply | Unanswered,
    found: dict[TopicPartition, ListedOffset],
) -> list[str]:
    """Keep the offsets that were answered; forget the leaders of the others and return why."""
    errors = []
    if isinstance(outcome, Unanswered):
        refuse_if_final(outcome, _LISTING)
        errors.append(outcome.reason)
    else:
        for topic in outcome.message.topics:
            for answer in topic.partitions:
                partition = TopicPartition(topic.name, answer.partition_index)
                subject = Subject(ApiKey.LIST_OFFSETS, topics=(topic.name,))
                again = why_again(answer.error_code, f"{_LISTING} of {partition}", subject)
                if again is None:
                    found[partition] = ListedOffset(answer.offset, answer.timestamp)
                else:
                    errors.append(f"{partition}: {again}")
    for partition in asked:
        if partition not in found:
            session.cluster = session.cluster.forget_leader(partition)
            errors = errors or [f"no answer for {partition[0]}-{partition[1]}"]
    return errors


def fetch_committed(
    session: Session,
    group_id: str,
    *,
    partitions: Iterable[TopicPartition] = (),
    require_stable: bool = True,
    deadline: Deadline | None = None,
) -> Operation[dict[TopicPartition, CommittedOffset]]:
    """Return all committed offsets of a group; {} for a group that does not exist.

    With `require_stable` the operation waits while a transaction's offsets are undecided
    (UNSTABLE_OFFSET_COMMIT, KIP-447), and refuses brokers that do not report this. Kafka's answer
    for a whole group leaves out a partition whose *first* offset is undecided
    (`OffsetMetadataManager.fetchAllOffsets` walks the committed offsets). So the operation also
    asks by name for `partitions`, the partitions that matter. Raises FatalError, DeadlineExceeded.
    """
    named = sorted(set(partitions))
    asked = [named, None] if named and require_stable else [None]
    requests = [committed_request(group_id, names, require_stable) for names in asked]
    found: dict[TopicPartition, CommittedOffset] = {}
    for reply in (yield from call_coordinators(session, requests, deadline=deadline)):
        if require_stable and reply.version < REQUIRE_STABLE_VERSION:
            raise FatalError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{requests[0].doing}: the broker supports OffsetFetch up to v{reply.version} and "
                "cannot wait for stable offsets (KIP-447). Exactly-once needs Kafka 2.5 or newer",
            )
        found.update(fetched_offsets(reply))
    return found


def committed_request(
    group_id: str, named: list[TopicPartition] | None, require_stable: bool
) -> CoordinatorRequest:
    """Return an OffsetFetch request for the named partitions, or for all."""
    message = _fetch_request(group_id, named, require_stable)
    doing = f"reading the offsets of group {group_id!r}"
    return CoordinatorRequest(GROUP, group_id, message, doing, _fetch_codes, TOPIC_NAME_VERSION_MAX)


def fetched_offsets(reply: Reply) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets in an answer to `committed_request`."""
    return {
        TopicPartition(topic.name, p.partition_index): CommittedOffset(
            p.committed_offset, p.metadata or ""
        )
        for topic in _fetched_group(reply).topics
        for p in topic.partitions
        if p.committed_offset >= 0
    }


def _fetch_request(
    group_id: str, named: list[TopicPartition] | None, require_stable: bool
) -> Message:
    """Return the message for the named partitions, or for all; in the shape up to v7 and the shape
    from v8 on."""
    group_type = _FETCH.request.OffsetFetchRequestGroup
    if named is None:
        old, new = None, None
    else:
        topics = by_topic(named).items()
        old = [
            _FETCH.request.OffsetFetchRequestTopic(name=t, partition_indexes=n) for t, n in topics
        ]
        new = [group_type.OffsetFetchRequestTopics(name=t, partition_indexes=n) for t, n in topics]
    return _FETCH.request(
        group_id=group_id,
        topics=old,
        groups=[group_type(group_id=group_id, topics=new)],
        require_stable=require_stable,
    )


def _fetched_group(reply: Reply) -> Message:
    if reply.version < 8:
        return reply.message
    if len(reply.message.groups) != 1:
        raise RemoteProtocolError(f"OffsetFetch: {len(reply.message.groups)} answers for one group")
    return reply.message.groups[0]


def _fetch_codes(reply: Reply) -> tuple[int, ...]:
    group = _fetched_group(reply)
    top = group.error_code if reply.version >= 2 else ErrorCode.NONE
    return (top, *(p.error_code for t in group.topics for p in t.partitions))


def commit_offsets(
    session: Session, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> Operation[None]:
    """Commit offsets by a plain OffsetCommit, outside any transaction and any group membership.

    If the offsets are too many for one record batch, they are sent in parts: when an error is
    raised, some parts may be committed. Raises FatalError (such as UNKNOWN_MEMBER_ID while the
    group has members), DeadlineExceeded.
    """
    parts = offset_parts(group_id, offsets)
    yield from call_coordinators(session, [_commit_request(group_id, part) for part in parts])


def _commit_request(
    group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> CoordinatorRequest:
    topic_type = _COMMIT.request.OffsetCommitRequestTopic
    message = _COMMIT.request(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            topic_type(
                name=topic,
                partitions=[
                    topic_type.OffsetCommitRequestPartition(
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
    doing = f"committing offsets of group {group_id!r}"
    return CoordinatorRequest(
        GROUP, group_id, message, doing, partition_codes, TOPIC_NAME_VERSION_MAX
    )
