"""The producer side of an append: is it a duplicate, may it follow, and the leader's stamps."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from broker_sim.core.log.producer_state import (
    BatchMetadata,
    ProducerStateEntry,
    ProducerStates,
    check_data_batch,
    check_producer_epoch,
)
from broker_sim.core.log.validation import IncomingBatch
from broker_sim.core.log.values import AppendOrigin, AppendResult, Rejection
from broker_sim.core.log.verification import VerificationStates
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import (
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


def check_producers(
    states: ProducerStates,
    verification: VerificationStates,
    batches: Sequence[IncomingBatch],
    origin: AppendOrigin,
    guard: int | None = None,
) -> Rejection | BatchMetadata | None:
    """The first batch that is a duplicate or may not be appended decides for the whole append.

    BatchMetadata: of the batch in the log that an incoming one repeats. None: append all of them.
    Each batch is checked against the state after those before it; the drafts are thrown away.
    Control batches pass: a marker was checked where it was made.
    """
    drafts: dict[int, ProducerStateEntry] = {}
    last = batches[-1]
    for incoming in batches:
        header = incoming.header
        if not header.has_producer_id or header.is_control:
            continue
        entry = drafts.get(header.producer_id) or states.entry(header.producer_id)
        drafts[header.producer_id] = entry
        if origin is AppendOrigin.CLIENT:
            duplicate = entry.duplicate_of(header)
            if duplicate is not None:
                return duplicate
        # The epoch first: a producer that was fenced by a timeout must learn just that, for it
        # can recover from it (KAFKA-19690).
        rejection = check_producer_epoch(entry, header.producer_epoch)
        rejection = rejection or verification.check_guard(entry, header, guard)
        if origin is AppendOrigin.CLIENT:
            rejection = rejection or verification.check_sequence(entry, header)
        rejection = rejection or check_data_batch(entry, header, origin)
        if rejection is not None:
            return rejection
        if incoming is not last:
            entry.replay_data(header)
    return None


def not_appended(
    reason: Rejection | BatchMetadata, directory: str, log_start_offset: int
) -> AppendResult:
    """The result of an append that was refused, or that repeats a batch in the log."""
    if isinstance(reason, BatchMetadata):
        return AppendResult(
            ErrorCode.NONE,
            base_offset=reason.first_offset,
            last_offset=reason.last_offset,
            log_append_time_ms=reason.timestamp,
            log_start_offset=log_start_offset,
            duplicate=True,
        )
    return AppendResult(
        reason.error,
        f"{reason.message} (partition {directory})",
        log_start_offset=log_start_offset,
        record_indexes=reason.record_indexes,
    )


def stamp(
    buffer: bytearray,
    batches: Sequence[IncomingBatch],
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
