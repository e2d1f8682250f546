"""State that the registry keeps: changed by `replay` alone, live and at recovery.

Soft state is not kept: when a session was last heard of, and which requests wait.
"""

from __future__ import annotations

from broker_sim.apis.registry_codes import CONTROLLER_EPOCH_PATH, Node
from broker_sim.registry.changes import (
    Change,
    NodesChanged,
    RecordsAppended,
    SessionClosed,
    SessionOpened,
    SnapshotTaken,
    decode_versioned,
    encode_versioned,
)
from broker_sim.registry.registry_log import RegistryLog
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.structs import message_class

_RegistrySnapshot = message_class("RegistrySnapshot", __package__)


class RegistryState:
    """See the module; empty when made."""

    def __init__(self) -> None:
        self.zxid = 0
        """Zxid of the last change; the first is 1, and each change has the next number."""
        self.nodes_zxid = 0
        """Zxid of the last change of any node."""
        self.next_session_id = 1
        """With the id of this registry, once it has given a session."""
        self.sessions: dict[int, int] = {}
        """Session id -> timeout in ms."""
        self.nodes: dict[str, Node] = {}
        self.log = RegistryLog()

    @property
    def controller_epoch(self) -> int:
        """-1 before there was a controller."""
        node = self.nodes.get(CONTROLLER_EPOCH_PATH)
        return -1 if node is None else node.version

    def replay(self, zxid: int, change: Change) -> None:
        """Apply a change that is in the journal."""
        check(zxid == self.zxid + 1, "a change is missing", zxid=zxid, last=self.zxid)
        self.zxid = zxid
        match change:
            case SessionOpened(session_id, timeout_ms):
                self.sessions[session_id] = timeout_ms
                self.next_session_id = session_id + 1
            case SessionClosed(session_id):
                del self.sessions[session_id]
                owned = [p for p, n in self.nodes.items() if n.owner_session_id == session_id]
                self._put(tuple((path, None) for path in owned))
            case NodesChanged(nodes):
                self._put(nodes)
            case RecordsAppended(controller_epoch, records):
                self.log.append(controller_epoch, records)
            case SnapshotTaken(end_offset, records):
                self.log.take_snapshot(end_offset, records)

    def _put(self, nodes: tuple[tuple[str, Node | None], ...]) -> None:
        for path, node in nodes:
            self.nodes_zxid = self.zxid
            if node is None:
                self.nodes.pop(path, None)
            else:
                self.nodes[path] = node

    def encode(self) -> bytes:
        """A snapshot."""
        made = _RegistrySnapshot
        return encode_versioned(
            made(
                zxid=self.zxid,
                nodes_zxid=self.nodes_zxid,
                next_session_id=self.next_session_id,
                sessions=[
                    made.Session(session_id=session_id, timeout_ms=timeout_ms)
                    for session_id, timeout_ms in self.sessions.items()
                ],
                nodes=[
                    made.SnapshotNode(
                        path=path,
                        data=node.data,
                        node_version=node.version,
                        owner_session_id=node.owner_session_id,
                        zxid=node.zxid,
                    )
                    for path, node in self.nodes.items()
                ],
                epochs=[
                    made.Epoch(controller_epoch=epoch, start_offset=start)
                    for epoch, start in self.log.epochs
                ],
                records=list(self.log.records),
                log_start_offset=self.log.start_offset,
                log_snapshot=list(self.log.snapshot),
            )
        )

    @staticmethod
    def decode(data: bytes) -> RegistryState:
        """The inverse. Raises ValueError."""
        found = decode_versioned(_RegistrySnapshot, data)
        state = RegistryState()
        state.zxid = found.zxid
        state.nodes_zxid = found.nodes_zxid
        state.next_session_id = found.next_session_id
        state.sessions = {each.session_id: each.timeout_ms for each in found.sessions}
        state.nodes = {
            n.path: Node(bytes(n.data), n.node_version, n.owner_session_id, n.zxid)
            for n in found.nodes
        }
        epochs = [(each.controller_epoch, each.start_offset) for each in found.epochs]
        state.log = RegistryLog(
            [bytes(each) for each in found.records],
            epochs,
            [bytes(each) for each in found.log_snapshot],
            found.log_start_offset,
        )
        return state
