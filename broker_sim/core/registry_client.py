"""A broker's side of the registry: typed questions and answers, sent through `Peers`.

A reply gets None when the connection was lost first: then a change may have been carried out or
not. After a multi the nodes it wanted to change say which; an append is asked again as it was. A
session whose answer was lost expires by itself.

A connection has one request at a time, so waits have one of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from broker_sim.apis import OWN_API_VERSION, OWN_APIS, RegistryApiKey
from broker_sim.apis.registry_codes import NO_SESSION, Node, NodeChange, RegistryError
from broker_sim.core.effects import Effects
from broker_sim.core.peers import Peers
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.messages import Message

REGISTRY_PEER = -1
"""The peer id of the registry, which no broker has."""
REGISTRY_WAIT_PEER = -2
"""The same process by another connection."""

A = TypeVar("A")
_K = RegistryApiKey


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """The session, and its timeout as the registry keeps to it."""

    error: RegistryError
    session_id: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class MultiAnswer:
    """`error` is that of the operation that failed."""

    error: RegistryError
    zxid: int


@dataclass(frozen=True, slots=True)
class Position:
    """Position of the registry that the next wait has seen."""

    error: RegistryError
    zxid: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """Records of the metadata log from the offset on; OFFSET_OUT_OF_RANGE below its start, where
    there is a snapshot instead."""

    error: RegistryError
    log_start_offset: int
    log_end_offset: int
    record_epoch: int
    """Epoch of the controller that appended the record at the offset, also in a snapshot; or -1."""
    records: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Records of the metadata log's snapshot, from a position on."""

    end_offset: int
    position: int
    records: tuple[bytes, ...]
    is_last: bool


class RegistryClient:
    """The session of one broker, or none before `open_session` was answered."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.session_id = NO_SESSION

    def open_session(
        self, timeout_ms: int, reply: Reply[SessionAnswer | None], effects: Effects
    ) -> None:
        """A new session, or the one there is: it may have expired meanwhile."""

        def read(message: Message) -> SessionAnswer:
            answer = SessionAnswer(_error(message), message.session_id, message.timeout_ms)
            if answer.error is RegistryError.NONE:
                self.session_id = answer.session_id
            elif answer.error is RegistryError.SESSION_EXPIRED:
                self.session_id = NO_SESSION
            return answer

        self._ask(_K.REGISTRY_OPEN_SESSION, {"timeout_ms": timeout_ms}, read, reply, effects)

    def close_session(self, reply: Reply[RegistryError | None], effects: Effects) -> None:
        """End it, and with it its ephemeral nodes."""
        self._ask(_K.REGISTRY_CLOSE_SESSION, {}, _error, reply, effects)

    def heartbeat(self, reply: Reply[RegistryError | None], effects: Effects) -> None:
        """Keep the session alive, as any request does."""
        self._ask(_K.REGISTRY_HEARTBEAT, {}, _error, reply, effects)

    def multi(
        self,
        operations: Sequence[NodeChange],
        reply: Reply[MultiAnswer | None],
        effects: Effects,
    ) -> None:
        """Carry out all operations, or none."""
        made = OWN_APIS[_K.REGISTRY_MULTI].request.Operation
        fields = [
            made(type=each.type, path=each.path, data=each.data, expected_version=each.version)
            for each in operations
        ]
        self._ask(_K.REGISTRY_MULTI, {"operations": fields}, _read_multi, reply, effects)

    def get_nodes(
        self,
        paths: Sequence[str],
        prefix: str | None,
        reply: Reply[tuple[Position, Mapping[str, Node]] | None],
        effects: Effects,
    ) -> None:
        """Get the nodes at the paths and under the prefix, and the position to wait from."""
        fields = {"paths": list(paths), "prefix": prefix}
        self._ask(_K.REGISTRY_GET_NODES, fields, _read_nodes, reply, effects)

    def append(
        self,
        controller_epoch: int,
        expected_end_offset: int,
        records: Sequence[bytes],
        reply: Reply[tuple[RegistryError, int] | None],
        effects: Effects,
    ) -> None:
        """To the metadata log; answered with the log's end, whatever became of it."""
        fields = {
            "controller_epoch": controller_epoch,
            "expected_end_offset": expected_end_offset,
            "records": list(records),
        }
        self._ask(
            _K.REGISTRY_APPEND,
            fields,
            lambda message: (_error(message), int(message.log_end_offset)),
            reply,
            effects,
        )

    def read(
        self, from_offset: int, max_bytes: int, reply: Reply[ReadAnswer | None], effects: Effects
    ) -> None:
        """Read the records of the metadata log that fit, at least one."""
        fields = {"from_offset": from_offset, "max_bytes": max_bytes}
        self._ask(_K.REGISTRY_READ, fields, _read_records, reply, effects)

    def write_snapshot(
        self,
        controller_epoch: int,
        part: SnapshotPart,
        reply: Reply[RegistryError | None],
        effects: Effects,
    ) -> None:
        """Write a part of a snapshot; the last part makes the snapshot complete."""
        fields = {
            "controller_epoch": controller_epoch,
            "end_offset": part.end_offset,
            "position": part.position,
            "is_last": part.is_last,
            "records": list(part.records),
        }
        self._ask(_K.REGISTRY_WRITE_SNAPSHOT, fields, _error, reply, effects)

    def read_snapshot(
        self,
        end_offset: int,
        position: int,
        max_bytes: int,
        reply: Reply[tuple[RegistryError, SnapshotPart] | None],
        effects: Effects,
    ) -> None:
        """The part of the snapshot that begins there; the first part of another one that is there
        now."""
        fields = {"end_offset": end_offset, "position": position, "max_bytes": max_bytes}
        self._ask(_K.REGISTRY_READ_SNAPSHOT, fields, _read_part, reply, effects)

    def wait(
        self, seen: Position, max_wait_ms: int, reply: Reply[Position | None], effects: Effects
    ) -> None:
        """Answered when there is something else than what was seen, or after the time."""
        fields = {
            "zxid_seen": seen.zxid,
            "log_end_offset_seen": seen.log_end_offset,
            "max_wait_ms": max_wait_ms,
        }
        peer = REGISTRY_WAIT_PEER
        self._ask(_K.REGISTRY_WAIT, fields, _read_position, reply, effects, peer)

    def _ask(
        self,
        key: RegistryApiKey,
        fields: Mapping[str, Any],
        read: Callable[[Message], A],
        reply: Reply[A | None],
        effects: Effects,
        peer: int = REGISTRY_PEER,
    ) -> None:
        def take(message: Message | None, effects: Effects) -> None:
            reply(None if message is None else read(message), effects)

        request = OWN_APIS[key].request
        message = request(session_id=self.session_id, **fields)
        self._peers.send(peer, message, OWN_API_VERSION, take, effects)


def _error(message: Message) -> RegistryError:
    return RegistryError(message.error_code)


def _read_multi(message: Message) -> MultiAnswer:
    return MultiAnswer(_error(message), message.zxid)


def _read_position(message: Message) -> Position:
    return Position(_error(message), message.zxid, message.log_end_offset)


def _read_nodes(message: Message) -> tuple[Position, Mapping[str, Node]]:
    nodes = {
        each.path: Node(bytes(each.data), each.node_version, each.owner_session_id, each.zxid)
        for each in message.nodes
    }
    return _read_position(message), nodes


def _read_records(message: Message) -> ReadAnswer:
    records = tuple(map(bytes, message.records))
    return ReadAnswer(
        _error(message),
        message.log_start_offset,
        message.log_end_offset,
        message.record_epoch,
        records,
    )


def _read_part(message: Message) -> tuple[RegistryError, SnapshotPart]:
    records = tuple(map(bytes, message.records))
    is_last = message.position + len(records) >= message.record_count
    return _error(message), SnapshotPart(message.end_offset, message.position, records, is_last)
