"""Fetch a partition's record batches, an answer at a time; or the first answers of many at once.

`FetchCursor` is the position in a range: it builds the next request, takes its answer and moves on.
The stream `fetch_ahead` reads a range with a cursor and keeps one request ahead of its consumer.
Batches are handed on as bytes: only their headers are read here, to find the next position. Offsets
may have gaps (markers, aborted and compacted records). A gap is not data loss; a log start offset
beyond the start is.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from txnlog_kafka.errors import (
    CorruptData,
    DataLoss,
    DeadlineExceeded,
    OffsetOutOfRange,
    OldMessageFormat,
    RemoteProtocolError,
)
from txnlog_kafka.operations.calls import call_all, receive, refuse_if_final, send
from txnlog_kafka.operations.cluster_view import NO_LEADER, NO_TOPIC_ID, topic_id_text
from txnlog_kafka.operations.effects import Call, Give, Operation, Reply, Stream, Unanswered
from txnlog_kafka.operations.metadata import (
    recreated_topics,
    refresh_metadata,
    require_leaders,
)
from txnlog_kafka.operations.offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    confirm_log_ends,
    list_offsets,
)
from txnlog_kafka.operations.producer import Bytes
from txnlog_kafka.operations.retry import Action, Subject, decide, describe_code, error_of
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.operations.session_knowledge import NO_REPLICA
from txnlog_kafka.wire.error_codes import RETRIABLE, ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import CorruptBatch, OldFormat, iter_batches
from txnlog_kafka.wire.topic_partition import TopicPartition

TOPIC_NAME_VERSION_MAX = 12
"""Last version that names topics; Fetch from v13 on has only topic ids (KIP-516)."""
MAX_WAIT_MS = 500
SHARE_BYTES_MIN = 64 * 1024
"""Bytes that each partition may bring, at least, to an answer for several."""
_FETCH = APIS[ApiKey.FETCH]


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Batches of one answer. `data` holds RecordBatches; the last may be torn and is then fetched
    again.

    A broker sends a batch whole, so `data` may have offsets below the requested start, which have
    to be clipped. `aborted` lists (producer id, first offset) of aborted transactions that reach
    into `data`; None under read_uncommitted. `next_offset` is the first offset not in whole batches
    of `data`.
    """

    data: Bytes
    aborted: list[tuple[int, int]] | None
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


@dataclass(slots=True)
class FetchCursor:
    """Position in a range of one partition: [next_offset, end_offset)."""

    partition: TopicPartition
    next_offset: int
    end_offset: int
    read_committed: bool
    max_bytes: int
    topic_id: bytes = NO_TOPIC_ID
    """Id of the topic that the range belongs to; without it, the topic that has the name now is
    read."""
    last_error: str = ""
    at_log_end: bool = False
    """True if the last answer reported that the log ends here, though the range does not."""
    is_sent_on: bool = False
    """True if the last answer named a replica to read from."""
    is_unknown_id: bool = False
    """True if the last answer was that no topic has the id."""
    is_throttled: bool = False
    """True if the last answer was empty because this client is over a quota; the host waits as long
    as the broker asks."""

    @property
    def is_done(self) -> bool:
        """True if the whole range was handed on."""
        return self.next_offset >= self.end_offset

    def call(self, session: Session, deadline: Deadline) -> Call:
        """Return the Fetch for the next offset, to the leader or the replica that the leader has
        named."""
        return fetch_call(session, (self,), deadline)

    def id_in(self, session: Session) -> bytes:
        """Return the id that the topic is fetched by; 16 zero bytes if it is not known."""
        known = session.cluster.topic_id(self.partition[0])
        return known if NO_TOPIC_ID in (known, self.topic_id) else self.topic_id

    def take(self, session: Session, outcome: Reply | Unanswered) -> FetchedBatches | None:
        """Return the batches of an answer; None, with `last_error` set, if the client must ask
        again.

        Raises OffsetRefused for an offset out of range, CorruptData, OldMessageFormat, FatalError,
        UnknownTopic.
        """
        self.is_sent_on = self.is_throttled = self.is_unknown_id = False
        if isinstance(outcome, Unanswered):
            refuse_if_final(outcome, self._doing)
            self.last_error = outcome.reason
            self._forget_node(session)
            return None
        self.at_log_end = False
        if throttled_ms := _throttled_ms(outcome.message):
            self.is_throttled = True
            over = f"the broker throttles this client for {throttled_ms} ms: it is over a quota"
            self.last_error = over
            return None
        code, answer = self._answer_of(outcome)
        return self._take_partition(session, code, answer)

    def _take_partition(
        self, session: Session, code: int, answer: Message
    ) -> FetchedBatches | None:
        action = decide(ApiKey.FETCH, code)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if session.read_replicas.forget(self.partition):
                self.last_error = describe_code(code)
                return None  # only the leader knows what there is
            raise OffsetRefused(self.next_offset)
        if code == ErrorCode.CORRUPT_MESSAGE:
            raise CorruptData(
                f"{self._doing}: the broker reports a corrupt record batch (CORRUPT_MESSAGE). Its "
                "log is damaged: restore the partition from a replica, or skip the offset"
            )
        if action in (Action.RETRY, Action.REFRESH):
            self.is_unknown_id = code in (
                ErrorCode.UNKNOWN_TOPIC_ID,
                ErrorCode.INCONSISTENT_TOPIC_ID,
            )
            self.last_error = describe_code(code)
            self._forget_node(session)
            return None
        if action is not Action.DONE:
            subject = Subject(ApiKey.FETCH, topics=(self.partition[0],))
            raise error_of(action, code, self._doing, subject)
        if name_replica(session, self.partition, answer):
            self.is_sent_on = True
            self.last_error = f"the leader has named replica {answer.preferred_read_replica}"
            return None
        fetched = self._accept_answer(answer, self._look_at_batches(session, answer))
        if fetched is None:
            # All of a range could be read when it was planned. A replica may be behind, and so may
            # one that led then and answers all the same, as a follower: look up who leads.
            if session.read_replicas.forget(self.partition):
                self.at_log_end = False
            session.cluster = session.cluster.forget_leader(self.partition)
        return fetched

    def _forget_node(self, session: Session) -> None:
        session.read_replicas.forget(self.partition)
        session.cluster = session.cluster.forget_leader(self.partition)

    @property
    def _doing(self) -> str:
        topic, number = self.partition
        return f"fetching {topic}-{number} from offset {self.next_offset}"

    def _answer_of(self, reply: Reply) -> tuple[int, Message]:
        message = reply.message
        if message.error_code != ErrorCode.NONE:
            return message.error_code, None
        parts = [p for t in message.responses for p in t.partitions]
        if len(parts) != 1 or parts[0].partition_index != self.partition[1]:
            raise RemoteProtocolError(f"{self._doing}: the answer has {len(parts)} partitions")
        return parts[0].error_code, parts[0]

    def wanted_bytes(self, session: Session) -> int:
        """Return the bytes to ask for: the size of the remaining range, as far as it is known."""
        left = self.end_offset - self.next_offset
        return session.fetch_sizes.wanted_bytes(self.partition[0], left, self.max_bytes)

    def take_if_whole(self, session: Session, answer: Message) -> FetchedBatches | None:
        """Return the batches of this partition in an answer for several; None if it has no whole
        batch.

        The byte limit of such an answer may truncate a partition's first batch, or leave it out.
        """
        next_offset = self._look_at_batches(session, answer)
        return self._accept_answer(answer, next_offset) if next_offset > self.next_offset else None

    def _accept_answer(self, answer: Message, next_offset: int) -> FetchedBatches | None:
        data = _records_of(answer)
        if next_offset == self.next_offset and not len(data):
            self.at_log_end = answer.high_watermark <= next_offset
            self.last_error = (
                f"the readable end is {answer.last_stable_offset} (last stable offset), "
                f"{answer.high_watermark} (high watermark)"
            )
            return None
        if next_offset == self.next_offset:
            raise RemoteProtocolError(
                f"{self._doing}: {len(data)} bytes without one whole record batch"
            )
        self.next_offset = next_offset
        aborted = None
        if self.read_committed:
            aborted = [(a.producer_id, a.first_offset) for a in answer.aborted_transactions or ()]
        return FetchedBatches(
            data,
            aborted,
            next_offset,
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
        )

    def _look_at_batches(self, session: Session, answer: Message) -> int:
        """Return the first offset that is not in whole batches of the answer, and note their
        sizes."""
        next_offset = self.next_offset
        first_offset: int | None = None
        data_bytes = batch_bytes = 0
        try:
            for header, position in iter_batches(_records_of(answer)):
                next_offset = max(next_offset, header.next_offset)
                first_offset = header.base_offset if first_offset is None else first_offset
                batch_bytes = max(batch_bytes, header.size_bytes)
                data_bytes = position + header.size_bytes
        except OldFormat as error:
            raise OldMessageFormat(
                f"{self._doing}: {error}, written by a client older than Kafka 0.11 or into a "
                "topic with an older message.format.version. Only v2 is read here: read such "
                "records once with format('kafka'), and begin after them with startingOffsets and "
                "a new checkpoint"
            ) from error
        except CorruptBatch as error:
            raise CorruptData(f"{self._doing}: {error}") from error
        if first_offset is not None:
            offset_count = next_offset - first_offset
            session.fetch_sizes.note(self.partition[0], data_bytes, offset_count, batch_bytes)
        return next_offset


def _throttled_ms(answer: Message) -> int:
    """Return the throttle time of an answer that is empty because of a quota (KIP-219); 0
    otherwise."""
    is_empty = answer.error_code == ErrorCode.NONE and not answer.responses
    return answer.throttle_time_ms if is_empty else 0


def _records_of(answer: Message) -> Bytes:
    return b"" if answer.records is None else answer.records


def name_replica(session: Session, partition: TopicPartition, answer: Message) -> bool:
    """Note the replica that a leader's answer names to read from (from v11 on); return True if it
    does."""
    replica = getattr(answer, "preferred_read_replica", NO_REPLICA)
    if replica == NO_REPLICA or replica not in session.cluster.nodes:
        return False
    now_ms, for_ms = session.monotonic_ms(), session.config.read_replica_ms
    session.read_replicas.name(partition, replica, now_ms, for_ms)
    return True


class OffsetRefused(Exception):
    """The leader answers OFFSET_OUT_OF_RANGE; `explain_out_of_range` finds out why."""

    def __init__(self, refused_offset: int) -> None:
        super().__init__(f"offset {refused_offset} is out of range")
        self.refused_offset = refused_offset


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
        if isinstance(outcome, Reply) and _throttled_ms(outcome.message):
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
        (outcome,) = yield from call_all((cursor.call(session, deadline),))
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
        ticket = yield from send(cursor.call(session, session.deadline()))
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
