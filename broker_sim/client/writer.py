"""Idempotent producer of small batches: records to topics, each appended once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from txnlog_kafka.errors import RemoteProtocolError
from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.calls import call_all, call_any, refuse_if_final
from txnlog_kafka.operations.effects import Call, Operation, Reply, Unanswered
from txnlog_kafka.operations.metadata import require_leaders
from txnlog_kafka.operations.retry import Action, decide, describe_code, error_of
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Record,
    encode_batch,
    increment_sequence,
)
from txnlog_kafka.wire.topic_partition import TopicPartition

TOPIC_NAME_VERSION_MAX = 12
"""Last version that names topics; later versions of Produce name topics by id (KIP-516)."""
ACKS_ALL = -1
NO_TIMEOUT_MS = 2**31 - 1
"""Timeout of a producer without a transactional id: it has no transaction to time out."""

_PRODUCE = APIS[ApiKey.PRODUCE].request
_INIT = APIS[ApiKey.INIT_PRODUCER_ID].request


@dataclass(slots=True)
class TopicWriter:
    """Idempotent producer on one topic; it gets its producer id with the first record."""

    client: Client
    topic: str
    partition_count: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    sequences: dict[int, int] = field(default_factory=dict)

    def write(self, records: Sequence[Record], partition: int | None = None) -> None:
        """Append all records, each to this partition, or to the one of its key.

        Raises UnknownTopic and other FatalErrors, DeadlineExceeded.
        """
        if not records:
            return
        client = self.client
        if self.producer_id == NO_PRODUCER_ID:
            self.producer_id, self.producer_epoch = client.run(_init_producer(client.session))
        anywhere = random.randrange(self.partition_count)  # keyless records of a call stay together
        by_partition: dict[int, list[Record]] = defaultdict(list)
        for record in records:
            number = partition
            if number is None:
                key = record.key
                number = anywhere if key is None else partition_of(key, self.partition_count)
            by_partition[number].append(record)
        batches = {}
        for number, part in by_partition.items():
            sequence = self.sequences.get(number, 0)
            batches[TopicPartition(self.topic, number)] = encode_batch(
                part,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=sequence,
            )
            self.sequences[number] = increment_sequence(sequence, len(part))
        client.run(_append_batches(client.session, batches))


def _init_producer(session: Session) -> Operation[tuple[int, int]]:
    """Return a producer id of our own, from any broker."""
    doing = "getting a producer id"
    message = _INIT(
        transactional_id=None,
        transaction_timeout_ms=NO_TIMEOUT_MS,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
    )
    deadline = session.deadline()
    while True:
        reply = yield from call_any(message, doing=doing, deadline=deadline)
        code = reply.message.error_code
        action = decide(ApiKey.INIT_PRODUCER_ID, code)
        if action is Action.DONE:
            return reply.message.producer_id, reply.message.producer_epoch
        if action not in (Action.RETRY, Action.REFRESH):
            raise error_of(action, code, doing)
        yield from deadline.backoff(doing, describe_code(code))


def _append_batches(session: Session, batches: Mapping[TopicPartition, bytes]) -> Operation[None]:
    """Append one batch a partition at the leaders, repeated until each is acknowledged.

    Raises RecordRefused, UnknownTopic and other FatalErrors, DeadlineExceeded.
    """
    waiting = dict(batches)
    deadline = session.deadline()
    while waiting:
        yield from require_leaders(session, list(waiting), deadline=deadline)
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in waiting:
            by_leader[session.cluster.leader(partition)].append(partition)
        calls = [
            Call(
                node,
                _request({p: waiting[p] for p in part}, deadline.call_ms),
                deadline.call_ms,
                TOPIC_NAME_VERSION_MAX,
            )
            for node, part in by_leader.items()
        ]
        outcomes = yield from call_all(tuple(calls))
        errors = []
        for part, outcome in zip(by_leader.values(), outcomes, strict=True):
            errors += _take_answer(session, part, outcome, waiting)
        if errors:
            yield from deadline.backoff("producing", errors[0])


def _request(batches: Mapping[TopicPartition, bytes], timeout_ms: int) -> Message:
    topic_type = _PRODUCE.TopicProduceData
    ((topic, _), *_) = batches
    parts = [
        topic_type.PartitionProduceData(index=number, records=data)
        for (_, number), data in sorted(batches.items())
    ]
    return _PRODUCE(
        transactional_id=None,
        acks=ACKS_ALL,
        timeout_ms=timeout_ms,
        topic_data=[topic_type(name=topic, partition_data=parts)],
    )


def _take_answer(
    session: Session,
    asked: Sequence[TopicPartition],
    outcome: Reply | Unanswered,
    waiting: dict[TopicPartition, bytes],
) -> list[str]:
    """Remove the acknowledged batches from `waiting`; return why the others must be sent again."""
    if isinstance(outcome, Unanswered):
        refuse_if_final(outcome, "producing")
        for partition in asked:
            session.cluster = session.cluster.forget_leader(partition)
        return [outcome.reason]
    answers = {
        TopicPartition(topic.name, part.index): part
        for topic in outcome.message.responses
        for part in topic.partition_responses
    }
    errors = []
    for partition in asked:
        if partition not in answers:
            raise RemoteProtocolError(f"a Produce answer leaves out {partition}")
        code = answers[partition].error_code
        action = decide(ApiKey.PRODUCE, code)
        if action is Action.DONE:
            del waiting[partition]
            continue
        if action not in (Action.RETRY, Action.REFRESH):
            raise error_of(action, code, f"producing to {partition}")
        session.cluster = session.cluster.forget_leader(partition)
        errors.append(f"{partition}: {describe_code(code)}")
    return errors


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition that Kafka's default partitioner assigns to a key, also to an empty
    key."""
    return (_murmur2(key) & 0x7FFFFFFF) % partition_count


def _murmur2(data: bytes) -> int:
    """Return `org.apache.kafka.common.utils.Utils.murmur2`, as an unsigned number."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    state = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = (int.from_bytes(data[at : at + 4], "little") * factor) & mask
        word = ((word ^ (word >> 24)) * factor) & mask
        state = ((state * factor) & mask) ^ word
    if whole < len(data):
        state = ((state ^ int.from_bytes(data[whole:], "little")) * factor) & mask
    state = ((state ^ (state >> 13)) * factor) & mask
    return state ^ (state >> 15)
