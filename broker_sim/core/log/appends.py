"""The producer side of an append: is it a duplicate, may it follow, and the leader's stamps."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from broker_sim.core.log.producer_state import (
    BatchMetadata,
    ProducerStateEntry,
    ProducerStates,
    VerificationStates,
    check_data_batch,
    check_producer_epoch,
)
from broker_sim.core.log.validation import IncomingBatch
from broker_sim.core.log.values import AppendOrigin, Rejection
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.records import (
    ATTRIBUTES_AT,
    MAX_TIMESTAMP_AT,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    parse_header,
    refresh_crc,
    stamp_offsets,
)

_INT16 = struct.Struct(">h")
_INT64 = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class DuplicateBatch:
    """The append repeats a batch that is in the log."""

    batch: BatchMetadata


@dataclass(frozen=True, slots=True)
class AppendContext:
    """Who appends, and what the caller knows of the transaction (KIP-890)."""

    origin: AppendOrigin
    verified: bool


def check_producers(
    states: ProducerStates,
    verification: VerificationStates,
    batches: Sequence[IncomingBatch],
    context: AppendContext,
) -> Rejection | DuplicateBatch | None:
    """The first batch that is a duplicate or may not be appended decides for the whole append.

    Each batch is checked against the state after those before it; the drafts are thrown away.
    Control batches pass: a marker was checked by whoever made it.
    """
    drafts: dict[int, ProducerStateEntry] = {}
    last = batches[-1]
    for incoming in batches:
        header = incoming.header
        if not header.has_producer_id or header.is_control:
            continue
        entry = drafts.get(header.producer_id) or states.entry(header.producer_id)
        drafts[header.producer_id] = entry
        if context.origin is AppendOrigin.CLIENT:
            duplicate = entry.duplicate_of(header)
            if duplicate is not None:
                return DuplicateBatch(duplicate)
        rejection = _check_verified(entry, header, context)
        if rejection is None and context.origin is AppendOrigin.CLIENT:
            rejection = check_producer_epoch(entry, header.producer_epoch)
            rejection = rejection or verification.check_sequence(entry, header)
        if rejection is None:
            rejection = check_data_batch(entry, header, context.origin)
        if rejection is not None:
            return rejection
        if incoming is not last:
            entry.replay_data(header)
    return None


def _check_verified(
    entry: ProducerStateEntry, header: BatchHeader, context: AppendContext
) -> Rejection | None:
    """The first batch of a transaction needs the coordinator's word that it is part of one.

    The epoch is checked before: a producer that was fenced by a timeout must learn just that, for
    it can recover from it (KAFKA-19690).
    """
    is_open = (
        entry.current_txn_first_offset is not None and entry.producer_epoch == header.producer_epoch
    )
    if context.origin is AppendOrigin.REPLICATION or not header.is_transactional or is_open:
        return None
    rejection = check_producer_epoch(entry, header.producer_epoch)
    if rejection is not None or context.verified:
        return rejection
    return Rejection(
        ErrorCode.INVALID_TXN_STATE,
        f"the batch of producer {header.producer_id} was not part of an ongoing transaction",
    )


def stamp(
    buffer: bytearray,
    batches: Sequence[IncomingBatch],
    *,
    next_offset: int,
    leader_epoch: int,
    log_append_time_ms: int | None,
) -> list[BatchHeader]:
    """Assign offsets and leader epoch in place, outside the CRC; the headers as stored.

    With a log append time the CRC is computed again, for the timestamp lies inside it.
    """
    headers = []
    for incoming in batches:
        position = incoming.position
        stamp_offsets(buffer, position, base_offset=next_offset, leader_epoch=leader_epoch)
        if log_append_time_ms is not None:
            attributes = incoming.header.attributes | TIMESTAMP_TYPE_MASK
            _INT16.pack_into(buffer, position + ATTRIBUTES_AT, attributes)
            _INT64.pack_into(buffer, position + MAX_TIMESTAMP_AT, log_append_time_ms)
            refresh_crc(buffer, position, incoming.header.size_bytes)
        header = parse_header(buffer, position)
        headers.append(header)
        next_offset = header.next_offset
    return headers
