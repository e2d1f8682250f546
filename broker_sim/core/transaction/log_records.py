"""The records of `__transaction_state`: TransactionLogKey v0, TransactionLogValue v0 and v1.

Their fields are in `broker_sim.schemas`. A null value is a tombstone. The partitions of an EMPTY
transaction are written as null.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker_sim.core.coordinator.codec import (
    CorruptRecord,
    decode_fields,
    encode_fields,
    version_of,
)
from broker_sim.core.transaction.metadata import TransactionMetadata
from broker_sim.core.transaction.states import BEGUN, NEVER_STORED, TransactionState
from broker_sim.schemas import TransactionLogKey, TransactionLogValue
from txnlog_kafka.wire.records import NO_PRODUCER_ID, NO_TIMESTAMP
from txnlog_kafka.wire.topic_partition import TopicPartition

KEY_VERSION = 0
VERSION_MAX = 2
"""The newest transaction.version of a client."""


def encode_key(transactional_id: str) -> bytes:
    """The key of an id's records."""
    return encode_fields(TransactionLogKey(transactional_id=transactional_id), KEY_VERSION)


def decode_key(data: bytes) -> str | None:
    """The transactional id; None for a key version we do not know (an aborted upgrade left it).

    Raises CorruptRecord.
    """
    if version_of(data) != KEY_VERSION:
        return None
    return str(decode_fields(TransactionLogKey, data).transactional_id)


def encode_value(metadata: TransactionMetadata, transaction_version: int) -> bytes:
    """The value; flexible from transaction version 1 on."""
    is_empty = metadata.state is TransactionState.EMPTY
    fields = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=None if is_empty else _by_topic(metadata.partitions),
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_transaction_version,
    )
    return encode_fields(fields, 1 if transaction_version >= 1 else 0)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[Any]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    made = TransactionLogValue.PartitionsSchema
    return [made(topic=topic, partition_ids=ids) for topic, ids in by_topic.items()]


def decode_value(transactional_id: str, data: bytes) -> TransactionMetadata:
    """The committed value of an id. Raises CorruptRecord, also for a version from the future."""
    fields = decode_fields(TransactionLogValue, data)
    metadata = TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=fields.producer_id,
        producer_epoch=fields.producer_epoch,
        timeout_ms=fields.transaction_timeout_ms,
        state=_state_of(fields.transaction_status),
        last_update_ms=fields.transaction_last_update_timestamp_ms,
        previous_producer_id=fields.previous_producer_id,
        next_producer_id=fields.next_producer_id,
        partitions=frozenset(
            TopicPartition(each.topic, partition)
            for each in fields.transaction_partitions or ()
            for partition in each.partition_ids
        ),
        start_ms=fields.transaction_start_timestamp_ms,
        client_transaction_version=fields.client_transaction_version,
    )
    _check_value(metadata)
    return metadata


def _check_value(metadata: TransactionMetadata) -> None:
    """Raises CorruptRecord for what no coordinator writes and no request could go on from."""
    is_begun = metadata.state in BEGUN
    wrong = {
        "state": metadata.state in NEVER_STORED,
        "producer id": metadata.producer_id < 0,
        "previous producer id": metadata.previous_producer_id < NO_PRODUCER_ID,
        "next producer id": metadata.next_producer_id < NO_PRODUCER_ID,
        "producer epoch": metadata.producer_epoch < 0,
        "start": is_begun and metadata.start_ms == NO_TIMESTAMP,
        "client transaction version": not 0 <= metadata.client_transaction_version <= VERSION_MAX,
    }
    found = [name for name, is_wrong in wrong.items() if is_wrong]
    if found:
        raise CorruptRecord(f"a transaction has an impossible {', '.join(found)}: {metadata}")


def _state_of(number: int) -> TransactionState:
    try:
        return TransactionState(number)
    except ValueError:
        raise CorruptRecord(f"transaction state {number} is not known") from None
