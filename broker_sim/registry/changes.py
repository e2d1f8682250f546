"""The changes of the registry's state, and their bytes in the journal.

A change says what is there afterwards and not what was asked for: so its replay decides nothing.
The bytes are an int16 version and the definition `RegistryChange` beside this file. Version 1
knows snapshots of the metadata log; version 0 is read as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker_sim.apis.registry_codes import Node
from txnlog_kafka.wire.decoder import decode_message
from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.structs import message_class

VERSION = 1
ELEMENTS_MAX = 1 << 31
"""The bytes that are read here were written here: the file's size is limit enough."""

_RegistryChange = message_class("RegistryChange", __package__)


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A new session."""

    session_id: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A session ended or expired; its ephemeral nodes go with it."""

    session_id: int


@dataclass(frozen=True, slots=True)
class NodesChanged:
    """Nodes by path after the change; None for a path without a node."""

    nodes: tuple[tuple[str, Node | None], ...]


@dataclass(frozen=True, slots=True)
class RecordsAppended:
    """Records of the metadata log, which a controller of this epoch appended."""

    controller_epoch: int
    records: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """Records that are in place of those of the metadata log below the offset from here on."""

    end_offset: int
    records: tuple[bytes, ...]


Change = SessionOpened | SessionClosed | NodesChanged | RecordsAppended | SnapshotTaken

_SESSION_OPENED, _SESSION_CLOSED, _NODES, _RECORDS, _SNAPSHOT = range(5)


def encode_change(change: Change) -> bytes:
    """The bytes, without the zxid."""
    match change:
        case SessionOpened(session_id, timeout_ms):
            data = _RegistryChange(
                kind=_SESSION_OPENED, session_id=session_id, timeout_ms=timeout_ms
            )
        case SessionClosed(session_id):
            data = _RegistryChange(kind=_SESSION_CLOSED, session_id=session_id)
        case NodesChanged(nodes):
            data = _RegistryChange(kind=_NODES, nodes=[_changed(*each) for each in nodes])
        case RecordsAppended(controller_epoch, records):
            data = _RegistryChange(
                kind=_RECORDS, controller_epoch=controller_epoch, records=list(records)
            )
        case SnapshotTaken(end_offset, records):
            data = _RegistryChange(kind=_SNAPSHOT, end_offset=end_offset, records=list(records))
    return encode_versioned(data)


def decode_change(data: bytes, zxid: int) -> Change:
    """The inverse. Raises ValueError for bytes that are not a change."""
    found = decode_versioned(_RegistryChange, data)
    match found.kind:
        case 0:
            return SessionOpened(found.session_id, found.timeout_ms)
        case 1:
            return SessionClosed(found.session_id)
        case 2:
            return NodesChanged(tuple((each.path, _node(each, zxid)) for each in found.nodes))
        case 3:
            return RecordsAppended(found.controller_epoch, tuple(map(bytes, found.records)))
        case 4:
            return SnapshotTaken(found.end_offset, tuple(map(bytes, found.records)))
    raise ValueError(f"a change of the unknown kind {found.kind}")


def encode_versioned(data: Any) -> bytes:
    """A definition's fields behind their version."""
    return VERSION.to_bytes(2) + encode_message(data, VERSION)


def decode_versioned(data_type: Any, data: bytes) -> Any:
    """The inverse. Raises ValueError."""
    version = int.from_bytes(data[:2])
    if not 0 <= version <= VERSION:
        raise ValueError(f"version {version} of {data_type.__name__} is not supported")
    body = memoryview(data)[2:]
    return decode_message(data_type, version, body, elements_max=ELEMENTS_MAX)


def _changed(path: str, node: Node | None) -> Any:
    if node is None:
        return _RegistryChange.ChangedNode(
            path=path, data=None, node_version=-1, owner_session_id=-1
        )
    return _RegistryChange.ChangedNode(
        path=path,
        data=node.data,
        node_version=node.version,
        owner_session_id=node.owner_session_id,
    )


def _node(changed: Any, zxid: int) -> Node | None:
    if changed.data is None:
        return None
    return Node(bytes(changed.data), changed.node_version, changed.owner_session_id, zxid)
