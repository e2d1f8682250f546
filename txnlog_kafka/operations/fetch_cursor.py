"""Position in a range of one partition: it takes the answers to Fetch requests, and moves on.

Batches are handed on as bytes: only their headers are read here, to find the next position. Offsets
may have gaps (markers, aborted and compacted records). A gap is not data loss; a log start offset
beyond the start is.
"""

from __future__ import annotations

from dataclasses import dataclass

from txnlog_kafka.errors import CorruptData, OldMessageFormat, RemoteProtocolError
from txnlog_kafka.operations.calls import refuse_if_final
from txnlog_kafka.operations.cluster_view import NO_TOPIC_ID
from txnlog_kafka.operations.effects import Reply, Unanswered
from txnlog_kafka.operations.producer import Bytes
from txnlog_kafka.operations.retry import Subject, describe_code, why_again
from txnlog_kafka.operations.session import Session
from txnlog_kafka.operations.session_knowledge import NO_REPLICA
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey, Message
from txnlog_kafka.wire.records import CorruptBatch, OldFormat, iter_batches
from txnlog_kafka.wire.topic_partition import TopicPartition


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
    """Id of the topic of the range; without it, the topic that has the name now is read."""
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
        if waits_ms := throttled_ms(outcome.message):
            self.is_throttled = True
            over = f"the broker throttles this client for {waits_ms} ms: it is over a quota"
            self.last_error = over
            return None
        code, answer = self._answer_of(outcome)
        return self._take_partition(session, code, answer)

    def _take_partition(
        self, session: Session, code: int, answer: Message
    ) -> FetchedBatches | None:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if session.read_replicas.forget(self.partition):
                self.last_error = describe_code(code)
                return None  # only the leader knows what there is
            raise OffsetRefused(f"offset {self.next_offset} is out of range")
        if code == ErrorCode.CORRUPT_MESSAGE:
            raise CorruptData(
                f"{self._doing}: the broker reports a corrupt record batch (CORRUPT_MESSAGE). Its "
                "log is damaged: restore the partition from a replica, or skip the offset"
            )
        again = why_again(code, self._doing, Subject(ApiKey.FETCH, topics=(self.partition[0],)))
        if again is not None:
            self.is_unknown_id = code in (
                ErrorCode.UNKNOWN_TOPIC_ID,
                ErrorCode.INCONSISTENT_TOPIC_ID,
            )
            self.last_error = again
            self._forget_node(session)
            return None
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
        """Return the first offset after the whole batches of the answer, and note their sizes."""
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


def throttled_ms(answer: Message) -> int:
    """Return the throttle time of an answer that a quota left empty (KIP-219), else 0."""
    is_empty = answer.error_code == ErrorCode.NONE and not answer.responses
    return answer.throttle_time_ms if is_empty else 0


def _records_of(answer: Message) -> Bytes:
    return b"" if answer.records is None else answer.records


def name_replica(session: Session, partition: TopicPartition, answer: Message) -> bool:
    """Note the replica to read from if a leader's answer names one (v11 on), and return True."""
    replica = getattr(answer, "preferred_read_replica", NO_REPLICA)
    if replica == NO_REPLICA or replica not in session.cluster.nodes:
        return False
    now_ms, for_ms = session.monotonic_ms(), session.config.read_replica_ms
    session.read_replicas.name(partition, replica, now_ms, for_ms)
    return True


class OffsetRefused(Exception):
    """The leader answers OFFSET_OUT_OF_RANGE; `explain_out_of_range` finds out why."""
