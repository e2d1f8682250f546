"""Meaning of the records of internal topics, by the folder that they lie in."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

from broker_sim.core.controller.credentials import SECRET_FIELDS
from broker_sim.core.coordinator.codec import CorruptRecord
from broker_sim.core.group import log_records as group_records
from broker_sim.core.transaction import log_records as transaction_records
from txnlog_kafka.wire.records import Record

PLAIN = "none"
GROUPS = "offsets"
TRANSACTIONS = "transaction-log"
METADATA = "cluster-metadata"

_FOLDERS = {
    "__consumer_offsets-": GROUPS,
    "__transaction_state-": TRANSACTIONS,
    "__cluster_metadata-": METADATA,
}

_CONTROL_TYPES = {
    0: "ABORT",
    1: "COMMIT",
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}
"""Names of Kafka's `ControlRecordType`."""


def decoder_of(folder: str) -> str:
    """Return the decoder for a partition's folder."""
    return next((name for start, name in _FOLDERS.items() if folder.startswith(start)), PLAIN)


def decode_record(record: Record, decoder: str) -> Mapping[str, Any]:
    """Return key and value as fields, or as raw bytes if the decoder does not know them."""
    try:
        fields = _DECODERS[decoder](record)
    except (CorruptRecord, ValueError, KeyError, IndexError, struct.error):
        fields = None
    return {"key": record.key, "payload": record.value} if fields is None else fields


def decode_control(record: Record) -> Mapping[str, Any]:
    """Return the type of a control record, and the coordinator epoch of a marker."""
    if record.key is None or len(record.key) < 4:
        return {"key": record.key, "payload": record.value}
    _, kind = struct.unpack_from(">hh", record.key)
    fields: dict[str, Any] = {"endTxnMarker": _CONTROL_TYPES.get(kind, kind)}
    if kind in (0, 1) and record.value is not None and len(record.value) >= 6:
        fields["coordinatorEpoch"] = struct.unpack_from(">hi", record.value)[1]
    return fields


def _plain(record: Record) -> Mapping[str, Any] | None:
    del record
    return None


def _group(record: Record) -> Mapping[str, Any] | None:
    key = group_records.decode_key(record.key or b"")
    if key is None:
        return None
    value: Any = None
    if record.value is not None:
        is_offset = isinstance(key, group_records.OffsetKey)
        decode: Callable[[bytes], Any] = (
            group_records.decode_offset_value if is_offset else group_records.decode_group_value
        )
        value = _fields(decode(record.value))
    return {"key": _fields(key), "payload": value}


def _transaction(record: Record) -> Mapping[str, Any] | None:
    name = transaction_records.decode_key(record.key or b"")
    if name is None:
        return None
    value: Any = None
    if record.value is not None:
        value = _fields(transaction_records.decode_value(name, record.value))
    return {"key": {"transactional_id": name}, "payload": value}


def _metadata(record: Record) -> Mapping[str, Any] | None:
    """Return the fields. Our records are JSON objects; Kafka's begin with frame version 1, type and
    version as varints."""
    value = record.value or b""
    if value[:1] == b"{":
        fields: dict[str, Any] = json.loads(value)
        shown = {k: "[hidden]" if k in SECRET_FIELDS else v for k, v in fields.items()}
        return {"payload": shown}
    frame, kind, version = value[:3]
    return {"frame": frame, "type": kind, "version": version, "payload": value[3:]}


def _fields(value: Any) -> dict[str, Any]:
    """Return a dataclass as JSON can hold it; states by name, sets in order."""
    found = {}
    for field in dataclasses.fields(value):
        each = getattr(value, field.name)
        if isinstance(each, frozenset):
            each = [f"{topic}-{partition}" for topic, partition in sorted(each)]
        elif isinstance(each, tuple):
            each = [_fields(member) for member in each]
        elif isinstance(each, bytes):
            each = f"0x{each.hex()}"
        elif hasattr(each, "name"):
            each = each.name
        elif not isinstance(each, (int, str, type(None))):
            each = str(each)
        found[field.name] = each
    return found


_DECODERS: dict[str, Callable[[Record], Mapping[str, Any] | None]] = {
    PLAIN: _plain,
    GROUPS: _group,
    TRANSACTIONS: _transaction,
    METADATA: _metadata,
}
