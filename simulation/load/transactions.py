"""Requests of a plain producer, and the errors of their answers.

The producer is from before epochs rose with every transaction: its requests name topics, and each
is of one transaction. So they have at most the versions here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from simulation.hosts.scheduler import START_WALL_MS
from simulation.load.routing import READ_TIMEOUT_MS
from simulation.violation import violated
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_spark.errors import TxnLogError

PRODUCE_VERSION_MAX = 11
ADD_PARTITIONS_VERSION_MAX, ADD_OFFSETS_VERSION_MAX = 3, 3
COMMIT_IN_TRANSACTION_VERSION_MAX, END_TXN_VERSION_MAX = 4, 4
ALL_REPLICAS = -1

_INIT = APIS[ApiKey.INIT_PRODUCER_ID].request
_ADD = APIS[ApiKey.ADD_PARTITIONS_TO_TXN].request
_END = APIS[ApiKey.END_TXN].request
_PRODUCE = APIS[ApiKey.PRODUCE].request


class Owner(NamedTuple):
    """Producer of a transaction; its fields are those of EndTxn and the requests for offsets."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    @classmethod
    def of_answer(cls, transactional_id: str, answer: Message) -> Owner:
        """Return the producer that InitProducerId was answered with."""
        return cls(transactional_id, int(answer.producer_id), int(answer.producer_epoch))


def init_request(transactional_id: str | None = None, timeout_ms: int = 0) -> Message:
    """Build InitProducerId; without an id, the producer has no transactions."""
    return _INIT(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms,
        producer_id=-1, producer_epoch=-1,
    )  # fmt: skip


def add_request(owner: Owner, partitions: Mapping[str, Iterable[int]]) -> Message:
    """Build AddPartitionsToTxn of these partitions by topic."""
    return _ADD(
        v3_and_below_transactional_id=owner.transactional_id,
        v3_and_below_producer_id=owner.producer_id,
        v3_and_below_producer_epoch=owner.producer_epoch,
        v3_and_below_topics=[
            _ADD.AddPartitionsToTxnTopic(name=topic, partitions=[*numbers])
            for topic, numbers in partitions.items()
        ],
    )


def end_request(owner: Owner, *, committed: bool) -> Message:
    """Build EndTxn."""
    return _END(committed=committed, **owner._asdict())


def produce_request(
    topic: str, partition: int, batch: bytes, transactional_id: str | None = None
) -> Message:
    """Build a Produce request of one batch, with acks=all."""
    return produce_request_to({"name": topic}, [partition], batch, transactional_id)


def produce_request_to(
    topic: Mapping[str, object],
    partitions: Iterable[int],
    batch: bytes,
    transactional_id: str | None = None,
) -> Message:
    """Build a Produce request of one batch to each partition of a topic, by name or by id."""
    topic_type = _PRODUCE.TopicProduceData
    parts = [topic_type.PartitionProduceData(index=number, records=batch) for number in partitions]
    return _PRODUCE(
        transactional_id=transactional_id, acks=ALL_REPLICAS, timeout_ms=READ_TIMEOUT_MS,
        topic_data=[topic_type(partition_data=parts, **topic)],
    )  # fmt: skip


def owned_batch(
    owner: Owner,
    base_sequence: int,
    key: bytes,
    values: Sequence[bytes],
    stamp_ms: int = START_WALL_MS,
) -> bytes:
    """Encode records of a transaction, all with one key."""
    return encode_batch(
        [Record(key, value, stamp_ms) for value in values],
        producer_id=owner.producer_id,
        producer_epoch=owner.producer_epoch,
        base_sequence=base_sequence,
        transactional=True,
    )


def idempotent_batch(producer_id: int, sequence: int, key: bytes, value: bytes) -> bytes:
    """Encode one record of a producer without transactions."""
    return encode_batch(
        [Record(key, value, START_WALL_MS)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )


def errors_of(answer: Message) -> set[int]:
    """Return the error codes of an answer, those of its partitions if it has partitions."""
    added = getattr(answer, "results_by_topic_v3_and_below", ())
    codes = {part.partition_error_code for topic in added for part in topic.results_by_partition}
    parts = [
        *(part for topic in getattr(answer, "responses", ()) for part in topic.partition_responses),
        *(part for topic in getattr(answer, "topics", ()) for part in topic.partitions),
    ]
    return codes | {part.error_code for part in parts} or {answer.error_code}


def check_ended(who: str, _: object, error: TxnLogError | None) -> None:
    """Check that a client came to its end without an error. Raises Violation (46)."""
    if error is not None:
        violated(46, f"{who} failed", error=str(error))
