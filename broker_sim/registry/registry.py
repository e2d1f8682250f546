"""The registry as a function: `step(input, now) -> Step`, driven by the hosts as a broker is.

A request is checked against the state, which makes a change or an error; the change is written to
the journal, replayed, and answered, in one step: so an answer leaves after its change is flushed.
Then those who wait for what has changed are answered. No clock and no file, and no entropy but what
it is given.

A request of an open session keeps it alive, whatever becomes of the request. A wait ends after a
third of the timeout at the latest, so a client that waits again and again stays alive too. A
connection has one request at a time: a broker that wants to change something meanwhile has another
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from broker_sim.apis import OWN_APIS, RegistryApiKey
from broker_sim.apis.registry_codes import (
    ANY_VERSION,
    NO_SESSION,
    REGISTRY_IDS,
    NodeChange,
    OperationType,
    RegistryError,
    registry_of_session,
    session_of_registry,
)
from broker_sim.core.effects import (
    Close,
    Disconnected,
    Effects,
    Input,
    Request,
    Start,
    Step,
    Storage,
    StorageSpace,
    TimerFired,
    TimerKey,
)
from broker_sim.core.replies import answer_to
from broker_sim.registry.changes import (
    Change,
    RecordsAppended,
    SessionClosed,
    SessionOpened,
    SnapshotTaken,
)
from broker_sim.registry.config import RegistryConfig
from broker_sim.registry.journal import Journal
from broker_sim.registry.nodes import plan_multi
from broker_sim.registry.registry_log import fitting
from broker_sim.registry.registry_state import RegistryState
from broker_sim.registry.sessions import SESSION_TIMER, NewestConnections, SessionDeadlines
from broker_sim.registry.waits import Seen, Wait, Waits
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

if TYPE_CHECKING:
    from random import Random

_K = RegistryApiKey
WAITS_IN_TIMEOUT = 3
"""A wait takes this part of its session's timeout at most."""

_CHANGES = frozenset({_K.REGISTRY_MULTI, _K.REGISTRY_APPEND, _K.REGISTRY_WRITE_SNAPSHOT})
"""Requests by which a session changes the state."""
_NEEDS_SPACE = _CHANGES | {_K.REGISTRY_OPEN_SESSION}
_NEEDS_NO_SESSION = frozenset({_K.REGISTRY_GET_NODES, _K.REGISTRY_READ, _K.REGISTRY_READ_SNAPSHOT})
"""Requests that may be sent with NO_SESSION."""


class SnapshotParts:
    """Parts of a single snapshot at a time; a new snapshot begins with position 0."""

    def __init__(self) -> None:
        self._key: tuple[int, int] | None = None
        self._records: list[bytes] = []

    def add(
        self, key: tuple[int, int], position: int, records: Sequence[bytes]
    ) -> list[bytes] | None:
        """Add records; return all records so far, None when these do not follow them.

        `key` is the controller's epoch and the snapshot's end offset, `position` the number of
        records before these.
        """
        if position == 0:
            self.clear()
            self._key = key
        if key != self._key or position != len(self._records):
            return None
        self._records += records
        return self._records

    def clear(self) -> None:
        """Forget what has come."""
        self._key, self._records = None, []


class Registry:
    """See the module. Use: one `Start`, then inputs in the order they come, at last one `Stop`."""

    def __init__(self, config: RegistryConfig, storage: Storage, rng: Random) -> None:
        """`rng` is all the entropy there is; of one directory it is asked once."""
        self._config = config
        self._rng = rng
        self._journal = Journal(storage, config.journal_bytes_max)
        self._state = RegistryState()
        self._deadlines = SessionDeadlines()
        self._newest = NewestConnections()
        self._waits = Waits()
        self._snapshot_parts = SnapshotParts()
        self._space_is_low = False
        self._handlers: dict[RegistryApiKey, Callable[[Request, Effects], Message | None]] = {
            _K.REGISTRY_OPEN_SESSION: self._open_session,
            _K.REGISTRY_CLOSE_SESSION: self._close_session,
            _K.REGISTRY_HEARTBEAT: self._heartbeat,
            _K.REGISTRY_MULTI: self._multi,
            _K.REGISTRY_GET_NODES: self._get_nodes,
            _K.REGISTRY_APPEND: self._append,
            _K.REGISTRY_READ: self._read,
            _K.REGISTRY_WAIT: self._wait,
            _K.REGISTRY_WRITE_SNAPSHOT: self._write_snapshot,
            _K.REGISTRY_READ_SNAPSHOT: self._read_snapshot,
        }

    @property
    def next_expiry_ms(self) -> int | None:
        """Time on the host's monotonic clock at which the next session expires, unless its broker
        asks before; None without a session."""
        return self._deadlines.next_ms

    def step(self, item: Input, now_ms: int, monotonic_ms: int) -> Step:
        """Everything `item` causes; times as in `Broker.step`. A clean stop needs nothing done.

        Raises RegistryDamaged at `Start`.
        """
        effects = Effects(now_ms, monotonic_ms)
        match item:
            case Start():
                self._state = self._journal.recover(effects)
                for session_id, timeout_ms in self._state.sessions.items():
                    self._deadlines.begin(session_id, timeout_ms, effects)
            case Request():
                self._on_request(item, effects)
            case TimerFired(key):
                self._on_timer(key, effects)
            case Disconnected(connection_id):
                self._waits.forget_connection(connection_id, effects)
            case StorageSpace(is_low):
                self._space_is_low = is_low
        for wait in self._waits.take(effects, now=self._seen()):
            self._answer_wait(wait, RegistryError.NONE, effects)
        return effects.freeze()

    def _on_timer(self, key: TimerKey, effects: Effects) -> None:
        if key[0] == SESSION_TIMER:
            session_id = self._deadlines.expired(key, effects)
            if session_id is not None:
                effects.trace("registry-session-expired", session_id=session_id)
                self._end_session(session_id, effects)
            return
        wait = self._waits.due(key)
        if wait is not None:
            self._answer_wait(wait, RegistryError.NONE, effects)

    # ------------------------------------------------------------------ requests

    def _on_request(self, request: Request, effects: Effects) -> None:
        if request.api_key is ApiKey.API_VERSIONS:
            effects.responses.append(answer_to(request, _versions()))
            return
        if not isinstance(request.api_key, RegistryApiKey):
            reason = f"{request.api_key.name} is not a request of the registry"
            effects.responses.append(Close(request.connection_id, reason))
            return
        error = self._admit(request.api_key, request.message.session_id, effects)
        if error is not RegistryError.NONE:
            effects.responses.append(answer_to(request, _answer(request, error_code=error)))
            return
        if self._is_late(request.api_key, request):
            reason = f"a {request.api_key.name} of a session that has a newer connection"
            effects.responses.append(Close(request.connection_id, reason))
            return
        message = self._handlers[request.api_key](request, effects)
        if message is not None:
            effects.responses.append(answer_to(request, message))

    def _admit(self, key: RegistryApiKey, session_id: int, effects: Effects) -> RegistryError:
        timeout_ms = self._state.sessions.get(session_id)
        if timeout_ms is not None:
            self._deadlines.touch(session_id, timeout_ms, effects)
        elif session_id != NO_SESSION or key not in {*_NEEDS_NO_SESSION, _K.REGISTRY_OPEN_SESSION}:
            return RegistryError.SESSION_EXPIRED
        if self._space_is_low and key in _NEEDS_SPACE:
            return RegistryError.KAFKA_STORAGE_ERROR
        return RegistryError.NONE

    def _is_late(self, key: RegistryApiKey, request: Request) -> bool:
        session_id = request.message.session_id
        if key is _K.REGISTRY_WAIT or session_id == NO_SESSION:
            return False
        is_newest = self._newest.is_newest(session_id, request.connection_id)
        return key in _CHANGES and not is_newest

    def _open_session(self, request: Request, effects: Effects) -> Message:
        session_id = request.message.session_id
        if session_id == NO_SESSION:
            session_id = self._state.next_session_id
            if not registry_of_session(session_id):
                session_id = session_of_registry(self._rng.choice(REGISTRY_IDS), session_id)
            timeout_ms = max(request.message.timeout_ms, self._config.session_timeout_min_ms)
            timeout_ms = min(timeout_ms, self._config.session_timeout_max_ms)
            self._apply_change(SessionOpened(session_id, timeout_ms), effects)
            self._deadlines.begin(session_id, timeout_ms, effects)
        return _answer(request, session_id=session_id, timeout_ms=self._state.sessions[session_id])

    def _close_session(self, request: Request, effects: Effects) -> Message:
        self._end_session(request.message.session_id, effects)
        return _answer(request)

    def _heartbeat(self, request: Request, effects: Effects) -> Message:
        del effects
        return _answer(request)

    def _multi(self, request: Request, effects: Effects) -> Message:
        message, state = request.message, self._state
        operations = _operations(message)
        if operations is None:
            return _answer(request, error_code=RegistryError.BAD_ARGUMENTS)
        plan = plan_multi(
            state.nodes, operations, session_id=message.session_id, zxid=state.zxid + 1
        )
        if plan.change is not None:
            self._apply_change(plan.change, effects)
        result = OWN_APIS[_K.REGISTRY_MULTI].response.Result
        return _answer(
            request,
            error_code=plan.error,
            zxid=state.nodes_zxid,
            results=[result(error_code=r.error, node_version=r.version) for r in plan.results],
        )

    def _get_nodes(self, request: Request, effects: Effects) -> Message:
        del effects
        nodes, prefix = self._state.nodes, request.message.prefix
        paths = {path for path in request.message.paths if path in nodes}
        if prefix is not None:
            paths.update(path for path in nodes if path.startswith(prefix))
        made = OWN_APIS[_K.REGISTRY_GET_NODES].response.Node
        seen = self._seen()
        return _answer(
            request,
            zxid=seen.nodes_zxid,
            log_end_offset=seen.log_end_offset,
            nodes=[
                made(
                    path=path,
                    data=nodes[path].data,
                    node_version=nodes[path].version,
                    owner_session_id=nodes[path].owner_session_id,
                    zxid=nodes[path].zxid,
                )
                for path in sorted(paths)
            ],
        )

    def _append(self, request: Request, effects: Effects) -> Message:
        message, state = request.message, self._state
        epoch, offset = message.controller_epoch, message.expected_end_offset
        records = tuple(map(bytes, message.records))
        error = RegistryError.NONE
        if epoch < 0 or epoch != state.controller_epoch:
            error = RegistryError.STALE_CONTROLLER_EPOCH
        elif offset != state.log.end_offset:
            if not records or not state.log.holds(epoch, offset, records):
                error = RegistryError.BAD_OFFSET
        elif records:
            self._apply_change(RecordsAppended(epoch, records), effects)
        return _answer(request, error_code=error, log_end_offset=state.log.end_offset)

    def _read(self, request: Request, effects: Effects) -> Message:
        del effects
        message, log = request.message, self._state.log
        records = log.read(message.from_offset, message.max_bytes)
        error = RegistryError.OFFSET_OUT_OF_RANGE if records is None else RegistryError.NONE
        return _answer(
            request,
            error_code=error,
            log_start_offset=log.start_offset,
            log_end_offset=log.end_offset,
            record_epoch=log.epoch_at(message.from_offset),
            records=records or [],
        )

    def _write_snapshot(self, request: Request, effects: Effects) -> Message:
        message, state = request.message, self._state
        epoch, end_offset = message.controller_epoch, message.end_offset
        error = RegistryError.NONE
        if epoch < 0 or epoch != state.controller_epoch:
            error = RegistryError.STALE_CONTROLLER_EPOCH
        elif not state.log.start_offset <= end_offset <= state.log.end_offset:
            error = RegistryError.OFFSET_OUT_OF_RANGE
        elif end_offset > state.log.start_offset:  # else it is there already
            given = list(map(bytes, message.records))
            records = self._snapshot_parts.add((epoch, end_offset), message.position, given)
            if records is None:
                error = RegistryError.BAD_OFFSET
            elif message.is_last:
                self._snapshot_parts.clear()
                self._apply_change(SnapshotTaken(end_offset, tuple(records)), effects)
        return _answer(request, error_code=error)

    def _read_snapshot(self, request: Request, effects: Effects) -> Message:
        del effects
        message, log = request.message, self._state.log
        position = max(0, message.position) if message.end_offset == log.start_offset else 0
        return _answer(
            request,
            end_offset=log.start_offset,
            record_count=len(log.snapshot),
            position=position,
            records=fitting(log.snapshot, position, message.max_bytes),
        )

    def _wait(self, request: Request, effects: Effects) -> None:
        message = request.message
        timeout_ms = self._state.sessions[message.session_id]
        max_wait_ms = min(max(message.max_wait_ms, 0), timeout_ms // WAITS_IN_TIMEOUT)
        seen = Seen(message.zxid_seen, message.log_end_offset_seen)
        wait = Wait(request, message.session_id, seen)
        if seen != self._seen() or max_wait_ms == 0:
            self._answer_wait(wait, RegistryError.NONE, effects)
        else:
            self._waits.add(wait, max_wait_ms, effects)

    # ------------------------------------------------------------------ details

    def _apply_change(self, change: Change, effects: Effects) -> None:
        zxid = self._state.zxid + 1
        self._journal.append(zxid, change, effects)
        self._state.replay(zxid, change)
        self._journal.maybe_snapshot(self._state, effects)

    def _end_session(self, session_id: int, effects: Effects) -> None:
        self._apply_change(SessionClosed(session_id), effects)
        self._deadlines.end(session_id, effects)
        self._newest.end(session_id)
        for wait in self._waits.take(effects, session_id=session_id):
            self._answer_wait(wait, RegistryError.SESSION_EXPIRED, effects)

    def _seen(self) -> Seen:
        return Seen(self._state.nodes_zxid, self._state.log.end_offset)

    def _answer_wait(self, wait: Wait, error: RegistryError, effects: Effects) -> None:
        seen = self._seen()
        message = _answer(
            wait.request, error_code=error, zxid=seen.nodes_zxid, log_end_offset=seen.log_end_offset
        )
        effects.responses.append(answer_to(wait.request, message))


def _operations(message: Message) -> list[NodeChange] | None:
    """Read the operations; None when a type is unknown or an expected version cannot be."""
    types = {int(each) for each in OperationType}
    if any(e.type not in types or e.expected_version < ANY_VERSION for e in message.operations):
        return None
    return [
        NodeChange(OperationType(each.type), each.path, bytes(each.data), each.expected_version)
        for each in message.operations
    ]


def _answer(request: Request, **fields: Any) -> Message:
    return OWN_APIS[request.api_key].response(**fields)


def _versions() -> Message:
    """ApiVersions: what the registry answers."""
    response = APIS[ApiKey.API_VERSIONS].response
    own = APIS[ApiKey.API_VERSIONS]
    ranges = [(own.key, own.version_min, own.version_max), *((key, 0, 0) for key in OWN_APIS)]
    return response(
        api_keys=[
            response.ApiVersion(api_key=int(key), min_version=low, max_version=high)
            for key, low, high in ranges
        ]
    )
