"""The records of `__transaction_state`: TransactionLogKey v0, TransactionLogValue v0 and v1.

Layouts (source: Kafka's TransactionLogKey.json and TransactionLogValue.json, KIP-915):

    key    int16 version = 0, string transactional id
    value  int16 version; int64 producer id, int16 epoch, int32 timeout ms, int8 state,
           nullable array of (string topic, array of int32 partition), int64 last update ms,
           int64 start ms; version 1 is compact and has tags
           0 previous producer id (int64), 1 next producer id (int64),
           2 client transaction version (int16)

A null value is a tombstone. The partitions of an EMPTY transaction are written as null.
"""

from __future__ import annotations

from broker_sim.core.coordinator.codec import (
    CorruptRecord,
    RecordReader,
    RecordWriter,
    int16_field,
    int64_field,
    read_int,
)
from broker_sim.core.transaction.metadata import TransactionMetadata
from broker_sim.core.transaction.states import BEGUN, NEVER_STORED, TransactionState
from txnlog_spark.wire.records import NO_PRODUCER_ID, NO_TIMESTAMP
from txnlog_spark.wire.topics import TopicPartition

KEY_VERSION = 0
VALUE_VERSION_MAX = 1
VERSION_MAX = 2
"""The newest transaction.version of a client."""


def encode_key(transactional_id: str) -> bytes:
    """The key of an id's records."""
    writer = RecordWriter(KEY_VERSION)
    writer.string(transactional_id)
    return writer.finish()


def decode_key(data: bytes) -> str | None:
    """The transactional id; None for a key version we do not know (an aborted upgrade left it).

    Raises CorruptRecord.
    """
    reader = RecordReader(data)
    return reader.string() if reader.version == KEY_VERSION else None


def encode_value(metadata: TransactionMetadata, transaction_version: int) -> bytes:
    """The value; flexible from transaction version 1 on."""
    version = 1 if transaction_version >= 1 else 0
    writer = RecordWriter(version, flexible=version == 1)
    writer.int64(metadata.producer_id)
    writer.int16(metadata.producer_epoch)
    writer.int32(metadata.timeout_ms)
    writer.int8(metadata.state)
    _write_partitions(writer, metadata)
    writer.int64(metadata.last_update_ms)
    writer.int64(metadata.start_ms)
    writer.tagged_fields(_tags(metadata))
    return writer.finish()


def _tags(metadata: TransactionMetadata) -> dict[int, bytes]:
    fields = {}
    if metadata.previous_producer_id != NO_PRODUCER_ID:
        fields[0] = int64_field(metadata.previous_producer_id)
    if metadata.next_producer_id != NO_PRODUCER_ID:
        fields[1] = int64_field(metadata.next_producer_id)
    if metadata.client_transaction_version != 0:
        fields[2] = int16_field(metadata.client_transaction_version)
    return fields


def _write_partitions(writer: RecordWriter, metadata: TransactionMetadata) -> None:
    if metadata.state is TransactionState.EMPTY:
        writer.array_length(None)
        return
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(metadata.partitions):
        by_topic.setdefault(topic, []).append(partition)
    writer.array_length(len(by_topic))
    for topic, partitions in by_topic.items():
        writer.string(topic)
        writer.array_length(len(partitions))
        for partition in partitions:
            writer.int32(partition)
        writer.tagged_fields()


def decode_value(transactional_id: str, data: bytes) -> TransactionMetadata:
    """The committed value of an id. Raises CorruptRecord, also for a version from the future."""
    reader = RecordReader(data)
    if not 0 <= reader.version <= VALUE_VERSION_MAX:
        raise CorruptRecord(f"transaction log value version {reader.version} is not known")
    reader.set_flexible(reader.version == 1)
    producer_id, producer_epoch = reader.int64(), reader.int16()
    timeout_ms, state = reader.int32(), _read_state(reader)
    partitions = _read_partitions(reader)
    last_update_ms, start_ms = reader.int64(), reader.int64()
    tags = reader.tagged_fields()
    metadata = TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        last_update_ms=last_update_ms,
        previous_producer_id=read_int(tags.get(0), NO_PRODUCER_ID),
        next_producer_id=read_int(tags.get(1), NO_PRODUCER_ID),
        partitions=partitions,
        start_ms=start_ms,
        client_transaction_version=read_int(tags.get(2), 0),
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


def _read_state(reader: RecordReader) -> TransactionState:
    number = reader.int8()
    try:
        return TransactionState(number)
    except ValueError:
        raise CorruptRecord(f"transaction state {number} is not known") from None


def _read_partitions(reader: RecordReader) -> frozenset[TopicPartition]:
    partitions = set()
    for _ in range(reader.array_length() or 0):
        topic = reader.string()
        for _ in range(reader.array_length() or 0):
            partitions.add(TopicPartition(topic, reader.int32()))
        reader.tagged_fields()
    return frozenset(partitions)
