"""Fetch a partition's record batches, an answer at a time; or the first answers of many at once.

A `FetchCursor` holds the position in a range and takes the answers; the requests are made here.
`fetch_next` asks until there are batches. The stream `fetch_ahead` reads a whole range and keeps
one request ahead of its consumer. `fetch_together` asks once for many partitions.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence

from txnlog_kafka.errors import DataLoss, DeadlineExceeded, OffsetOutOfRange
from txnlog_kafka.operations.calls import call, call_all, receive, send
from txnlog_kafka.operations.cluster_view import NO_LEADER, NO_TOPIC_ID, topic_id_text
from txnlog_kafka.operations.effects import Call, Give, Operation, Reply, Stream, Unanswered
from txnlog_kafka.operations.fetch_cursor import (
    FetchCursor,
    FetchedBatches,
    OffsetRefused,
    name_replica,
    throttled_ms,
)
from txnlog_kafka.operations.metadata import recreated_topics, refresh_metadata, require_leaders
from txnlog_kafka.operations.offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    confirm_log_ends,
    list_offsets,
)
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.wire.error_codes import RETRIABLE, ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import TopicPartition

TOPIC_NAME_VERSION_MAX = 12
"""Last version that names topics; Fetch from v13 on has only topic ids (KIP-516)."""
MAX_WAIT_MS = 500
SHARE_BYTES_MIN = 64 * 1024
"""Bytes that each partition may bring, at least, to an answer for several."""
_FETCH = APIS[ApiKey.FETCH]


def fetch_call(session: Session, cursors: Sequence[FetchCursor], deadline: Deadline) -> Call:
    """Return one Fetch for the next offsets of cursors whose partitions are read from one node.

    Each of several partitions gets an equal part of the bytes: the range of one may end long before
    its log, and would leave no space for the others. A leader sends the first partition a whole
    batch, however large.
    """
    # The limits: one for the whole answer, and an equal share for each partition.
    max_bytes = max(cursor.max_bytes for cursor in cursors)
    share = max(SHARE_BYTES_MIN, max_bytes // len(cursors))
    by_topic: dict[str, list[FetchCursor]] = defaultdict(list)
    for cursor in cursors:
        by_topic[cursor.partition[0]].append(cursor)
    topic_ids = {topic: each[0].id_in(session) for topic, each in by_topic.items()}
    topic_type = _FETCH.request.FetchTopic
    message = _FETCH.request(
        replica_id=-1,
        max_wait_ms=min(MAX_WAIT_MS, deadline.call_ms // 2),
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=int(cursors[0].read_committed),
        session_id=0,
        session_epoch=-1,
        rack_id=session.config.rack_id or "",
        topics=[
            topic_type(
                topic=topic,
                topic_id=uuid.UUID(bytes=topic_ids[topic]),
                partitions=[
                    topic_type.FetchPartition(
                        partition=cursor.partition[1],
                        fetch_offset=cursor.next_offset,
                        partition_max_bytes=min(share, cursor.wanted_bytes(session)),
                    )
                    for cursor in of_topic
                ],
            )
            for topic, of_topic in by_topic.items()
        ],
    )
    # A topic whose id is not known can only be fetched by name.
    version_max = TOPIC_NAME_VERSION_MAX if NO_TOPIC_ID in topic_ids.values() else None
    node = session.read_node(cursors[0].partition)
    return Call(node, message, deadline.call_ms, version_max)


def fetch_together(
    session: Session, cursors: Sequence[FetchCursor]
) -> Operation[dict[TopicPartition, FetchedBatches]]:
    """Send one Fetch to each node for many partitions, to save round trips; return their batches.

    This asks once and raises no refusals: a partition that is missing from the result, for whatever
    reason, is for `fetch_next`. Raises CorruptData, DeadlineExceeded.
    """
    deadline = session.deadline()
    lost = {c.partition[0] for c in cursors if session.cluster.leader(c.partition) == NO_LEADER}
    if lost:
        yield from refresh_metadata(session, lost, deadline=deadline)
    by_node: dict[int, list[FetchCursor]] = defaultdict(list)
    for cursor in cursors:
        by_node[session.read_node(cursor.partition)].append(cursor)
    by_node.pop(NO_LEADER, None)
    found: dict[TopicPartition, FetchedBatches] = {}
    if not by_node:
        return found
    outcomes = yield from call_all(
        tuple(fetch_call(session, asked, deadline) for asked in by_node.values())
    )
    for asked, outcome in zip(by_node.values(), outcomes, strict=True):
        if isinstance(outcome, Reply) and throttled_ms(outcome.message):
            continue
        answers = _answers_by_partition(session, asked, outcome)
        for cursor in asked:
            answer = answers.get(cursor.partition)
            if answer is not None and answer.error_code == ErrorCode.NONE:
                name_replica(session, cursor.partition, answer)
                fetched = cursor.take_if_whole(session, answer)
                if fetched is not None:
                    found[cursor.partition] = fetched
                continue
            session.read_replicas.forget(cursor.partition)
            if answer is None or answer.error_code in RETRIABLE:
                session.cluster = session.cluster.forget_leader(cursor.partition)
    return found


def _answers_by_partition(
    session: Session, asked: Sequence[FetchCursor], outcome: Reply | Unanswered
) -> dict[TopicPartition, Message]:
    if isinstance(outcome, Unanswered) or outcome.message.error_code != ErrorCode.NONE:
        return {}
    names = {uuid.UUID(bytes=each.id_in(session)): each.partition[0] for each in asked}
    is_named = outcome.version <= TOPIC_NAME_VERSION_MAX
    return {
        TopicPartition(
            topic.topic if is_named else names.get(topic.topic_id, ""), part.partition_index
        ): part
        for topic in outcome.message.responses
        for part in topic.partitions
    }


def explain_out_of_range(
    session: Session, cursor: FetchCursor, position: int
) -> Operation[OffsetOutOfRange]:
    """Return the error with the range that the partition holds now.

    An end before `position` is believed only from the leader that most brokers name.
    """
    partition = cursor.partition
    ends = []
    for spec in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
        found = yield from list_offsets(session, {partition: spec}, read_committed=False)
        ends.append(found[partition].offset)
    if ends[1] < position:
        said = {partition: ends[1]}
        confirmed = yield from confirm_log_ends(session, {partition: position}, said)
        ends[1] = confirmed[partition]
    topic, number = partition
    return OffsetOutOfRange(
        topic=topic,
        partition=number,
        start_offset=cursor.next_offset,
        log_start_offset=ends[0],
        log_end_offset=ends[1],
    )


def fetch_next(session: Session, cursor: FetchCursor) -> Operation[FetchedBatches]:
    """Return the next batches of the range; the cursor must not be done.

    Raises OffsetOutOfRange, CorruptData, UnknownTopic, FatalError, and DeadlineExceeded when
    nothing can be read for the operation timeout; waits for a quota do not count. If the log ends
    inside the range, the client waits as long, since a new leader may not know its high watermark
    yet. After that the offset is out of range: the log was recreated or truncated after the range
    was planned.
    """
    deadline = session.deadline()
    is_confirmed = False
    while True:
        yield from require_leaders(session, [cursor.partition], deadline=deadline)
        outcome = yield from call(fetch_call(session, (cursor,), deadline))
        fetched = yield from _settle_answer(session, cursor, outcome)
        if fetched is not None:
            return fetched
        if cursor.is_sent_on:
            continue
        if cursor.is_throttled:
            deadline = session.deadline()  # it answers, and slows this client down as it was set to
            continue
        try:
            yield from deadline.backoff(_reading(cursor), cursor.last_error)
        except DeadlineExceeded as error:
            if not cursor.at_log_end or is_confirmed:
                raise
            explained = yield from explain_out_of_range(session, cursor, cursor.next_offset + 1)
            if explained.log_end_offset <= cursor.next_offset:
                raise explained from error
            deadline, is_confirmed = session.deadline(), True  # a former leader has answered


def fetch_ahead(
    session: Session, cursor: FetchCursor, fetched: FetchedBatches | None = None
) -> Stream[FetchedBatches]:
    """Give `fetched`, the cursor's last answer if it had one, and all later batches up to its end.

    The next request is on its way while the consumer has an answer: its offset is known as soon as
    the headers have been read. So at most two answers are in memory. Raises what `fetch_next`
    raises.
    """
    while not cursor.is_done:
        if fetched is None:
            fetched = yield from fetch_next(session, cursor)
            continue
        ticket = yield from send(fetch_call(session, (cursor,), session.deadline()))
        yield Give(fetched)
        outcome = yield from receive(ticket)
        fetched = yield from _settle_answer(session, cursor, outcome)
    if fetched is not None:
        yield Give(fetched)


def _settle_answer(
    session: Session, cursor: FetchCursor, outcome: Reply | Unanswered
) -> Operation[FetchedBatches | None]:
    """Take one answer, and explain an offset out of range. Raises DataLoss for a recreated topic.

    One broker may not know the id yet, so the loss is final only when most brokers report another
    id.
    """
    try:
        fetched = cursor.take(session, outcome)
        if cursor.is_unknown_id and cursor.topic_id != NO_TOPIC_ID:
            topic = cursor.partition[0]
            again = yield from recreated_topics(session, {topic: topic_id_text(cursor.topic_id)})
            if again:
                raise DataLoss(
                    f"{_reading(cursor)}: its topic was deleted and created again (topic id "
                    f"{again[topic]} now). Set failOnDataLoss=false to go on with the records that "
                    "are left, for a recreated topic from its beginning, or start a new checkpoint"
                )
        return fetched
    except OffsetRefused as refused:
        explained = yield from explain_out_of_range(session, cursor, cursor.next_offset)
        if explained.log_start_offset <= cursor.next_offset <= explained.log_end_offset:
            cursor.last_error = str(refused)
            return None
        raise explained from refused


def _reading(cursor: FetchCursor) -> str:
    topic, number = cursor.partition
    return f"reading {topic}-{number} from offset {cursor.next_offset} to {cursor.end_offset}"
