"""Records of __transaction_state as the simulator's witness of logs reads them."""

from __future__ import annotations

from support.core.batch_layout import stamped

from broker_sim.core.coordinator.codec import encode_fields
from broker_sim.schemas import TransactionLogValue
from simulation.checkers.log_oracle import TRANSACTION_STATES
from txnlog_kafka.wire.records import Record, encode_batch

KEY = b"\0\0\0\1t"
"""Key of a transactional id with one letter."""
PARTITIONS = range(4)


def state_record(state: str, base_offset: int, *topics: str, producer_id: int = 7) -> bytes:
    """A batch with one record: the producer's transaction has `PARTITIONS` of each topic."""
    named = [
        TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=[*PARTITIONS])
        for topic in topics
    ]
    fields = TransactionLogValue(
        producer_id=producer_id,
        producer_epoch=1,
        transaction_timeout_ms=1000,
        transaction_status=TRANSACTION_STATES.index(state),
        transaction_partitions=named,
    )
    return stamped(encode_batch([Record(KEY, encode_fields(fields, 0))]), base_offset)


def tombstone(base_offset: int) -> bytes:
    """A batch with one record: the id has expired."""
    return stamped(encode_batch([Record(KEY, None)]), base_offset)
