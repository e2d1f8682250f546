"""A broker's session with the registry, and what the registry has, as far as it was read.

Theory of operation: there are five things to ask (a session, heartbeats, nodes, records of the
metadata log or its snapshot, a wait for what changes), each by one request at a time. `pump` asks
for what is missing; every answer changes what is known and pumps again. When a connection is lost
nothing is asked for a moment, then everything that is still missing: the session is the same, so
this is all that a reconnect takes. Only the registry says that a session has expired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker_sim.apis.registry_codes import NO_SESSION, Node, RegistryError, registry_of_session
from broker_sim.core.config import DataDirectoryError
from broker_sim.core.effects import Effects, TimerKey
from broker_sim.core.membership.cluster_metadata import ClusterMetadata
from broker_sim.core.membership.registration import BROKERS_PREFIX, NODE_PATHS
from broker_sim.core.membership.registry_snapshots import SnapshotReader
from broker_sim.core.registry_client import (
    MultiAnswer,
    Position,
    ReadAnswer,
    RegistryClient,
    SessionAnswer,
    SnapshotPart,
)

HEARTBEAT_TIMER = ("registry-heartbeat",)
RECONNECT_TIMER = ("registry-reconnect",)
RECONNECT_MS = 100
READ_BYTES_MAX = 1 << 20
MAX_WAIT_MS = 30_000
"""The registry answers after a third of the session's timeout at the latest."""


class RegistryLink:
    """See the module. `nodes` are the brokers', the controller's and its epoch."""

    def __init__(
        self,
        client: RegistryClient,
        metadata: ClusterMetadata,
        timeouts_ms: tuple[int, int],
        on_progress: Callable[[Effects], None],
        on_session_expired: Callable[[Effects], None],
    ) -> None:
        """`timeouts_ms` are the session's and the time between heartbeats.

        `on_progress`: nodes or records were read, or the registry can be asked again.
        """
        self.nodes: Mapping[str, Node] = {}
        self.is_paused = False
        """A connection was lost a moment ago: nothing is asked now."""
        self._client = client
        self._metadata = metadata
        self._timeout_ms, self._heartbeat_ms = timeouts_ms
        self._on_progress = on_progress
        self._on_session_expired = on_session_expired
        self._snapshot = SnapshotReader()
        self._registry_id = 0
        """By the session that was opened last; 0 when none has said it."""
        self._heard_zxid = 0
        self._heard_end = 0
        self._nodes_zxid = -1
        """Zxid that `nodes` were read at; -1 when they must be read."""
        self._asking: set[str] = set()
        self._is_closed = False

    @property
    def session_id(self) -> int:
        """NO_SESSION before the first one, and between two."""
        return self._client.session_id

    @property
    def has_fresh_nodes(self) -> bool:
        """True if `nodes` are as new as any change that is known of."""
        return self.session_id != NO_SESSION and self._nodes_zxid >= self._heard_zxid

    @property
    def has_all_records(self) -> bool:
        """True if the image has all records that are known of."""
        return self.has_fresh_nodes and self._metadata.next_offset >= self._heard_end

    @property
    def _known_end(self) -> int:
        """End of the metadata log: as far as it was read, or as an answer has named it."""
        return max(self._heard_end, self._metadata.next_offset)

    def start(self, effects: Effects) -> None:
        """Open a session."""
        effects.set_timer(*HEARTBEAT_TIMER, after_ms=self._heartbeat_ms)
        self.pump(effects)

    def close(self, effects: Effects) -> None:
        """End the session, so that nobody has to wait for its end."""
        if self.session_id != NO_SESSION:
            self._client.close_session(lambda _error, _effects: None, effects)
        self._is_closed = True

    def on_multi(self, asked: int, answer: MultiAnswer | None, effects: Effects) -> None:
        """This broker has changed nodes, or has tried to: read what there is now."""
        if answer is None:
            self._nodes_zxid = -1
        else:
            self._heard_zxid = max(self._heard_zxid, answer.zxid)
        self.answered(asked, None if answer is None else answer.error, effects)
        self.pump(effects)

    def heard_of_end(self, log_end_offset: int) -> None:
        """The metadata log is as long as this at least."""
        self._heard_end = max(self._heard_end, log_end_offset)

    def pause(self, effects: Effects) -> None:
        """A connection was lost: ask again after a moment."""
        if not self.is_paused and not self._is_closed:
            self.is_paused = True
            effects.set_timer(*RECONNECT_TIMER, after_ms=RECONNECT_MS)

    def on_timer(self, key: TimerKey, effects: Effects) -> bool:
        """Handle the timer; return True if it belongs to this module."""
        if key == RECONNECT_TIMER:
            self.is_paused = False
            self.pump(effects)
            self._on_progress(effects)
        elif key == HEARTBEAT_TIMER:
            effects.set_timer(*HEARTBEAT_TIMER, after_ms=self._heartbeat_ms)
            if self.session_id != NO_SESSION and self._may_ask("heartbeat"):
                asked = self.session_id
                self._client.heartbeat(
                    lambda error, effects: self._on_heartbeat(asked, error, effects), effects
                )
        return key in (HEARTBEAT_TIMER, RECONNECT_TIMER)

    def pump(self, effects: Effects) -> None:
        """Ask for what is missing."""
        if self.session_id == NO_SESSION:
            if self._may_ask("session"):
                self._client.open_session(self._timeout_ms, self._on_session, effects)
            return
        asked, known = self.session_id, self._known_end
        if not self.has_fresh_nodes and self._may_ask("nodes"):
            self._client.get_nodes(
                NODE_PATHS,
                BROKERS_PREFIX,
                lambda answer, effects: self._on_nodes(asked, known, answer, effects),
                effects,
            )
        self._ask_records(asked, effects)
        if self._nodes_zxid >= 0 and self._may_ask("wait"):
            self._client.wait(
                Position(RegistryError.NONE, self._heard_zxid, self._heard_end),
                MAX_WAIT_MS,
                lambda answer, effects: self._on_wait(asked, known, answer, effects),
                effects,
            )

    def _ask_records(self, asked: int, effects: Effects) -> None:
        offset, snapshot, known = self._metadata.next_offset, self._snapshot, self._known_end
        if known <= offset:
            return
        if offset < snapshot.log_start_offset:
            if self._may_ask("snapshot"):
                self._client.read_snapshot(
                    snapshot.end_offset,
                    len(snapshot.records),
                    READ_BYTES_MAX,
                    lambda answer, effects: self._on_snapshot(asked, answer, effects),
                    effects,
                )
        elif self._may_ask("records"):
            self._client.read(
                offset,
                READ_BYTES_MAX,
                lambda answer, effects: self._on_records(asked, offset, known, answer, effects),
                effects,
            )

    def _may_ask(self, what: str) -> bool:
        """Claim a request of this kind; True if none is under way, so the caller asks now."""
        if self.is_paused or self._is_closed or what in self._asking:
            return False
        self._asking.add(what)
        return True

    # ------------------------------------------------------------------ answers

    def answered(self, asked: int, error: RegistryError | None, effects: Effects) -> bool:
        """Handle a session error or a lost connection; True for an answer of the present session.

        `asked` is the session that the request was sent in; `error` is None if no answer came.
        """
        if error is None:
            self.pause(effects)
        elif error is RegistryError.SESSION_EXPIRED and asked == self.session_id != NO_SESSION:
            effects.trace("session-expired", session_id=asked)
            self._client.session_id = NO_SESSION
            self.nodes, self._nodes_zxid = {}, -1
            self._on_session_expired(effects)
            self.pump(effects)
        return error is not None and asked == self.session_id

    def _on_session(self, answer: SessionAnswer | None, effects: Effects) -> None:
        self._asking.discard("session")
        if answer is None or answer.error is not RegistryError.NONE:
            self.pause(effects)
        else:
            effects.trace("session-opened", session_id=answer.session_id)
            self._check_registry(registry_of_session(answer.session_id))
        self.pump(effects)

    def _check_registry(self, registry_id: int) -> None:
        """Before anything is read from, or changed at, a registry that is not this cluster's: one
        takes the session of before for expired. Raises DataDirectoryError."""
        if self._registry_id not in (0, registry_id):
            raise DataDirectoryError(
                f"the registry has the id {registry_id}, and had {self._registry_id} when this "
                "broker opened its last session: it was started with the data directory of another "
                "cluster, or with a new one. Nothing was changed: stop all brokers and put the "
                "registry's own one back"
            )
        self._registry_id = registry_id

    def _on_heartbeat(self, asked: int, error: RegistryError | None, effects: Effects) -> None:
        self._asking.discard("heartbeat")
        self.answered(asked, error, effects)

    def _on_nodes(
        self,
        asked: int,
        known: int,
        answer: tuple[Position, Mapping[str, Node]] | None,
        effects: Effects,
    ) -> None:
        self._asking.discard("nodes")
        error = None if answer is None else answer[0].error
        if self.answered(asked, error, effects) and answer is not None:
            position, self.nodes = answer
            _check_end(known, position.log_end_offset)
            self._nodes_zxid = position.zxid
            self._heard(position)
            self.pump(effects)
            self._on_progress(effects)
        else:
            self.pump(effects)

    def _on_records(
        self,
        asked: int,
        offset: int,
        known: int,
        answer: ReadAnswer | None,
        effects: Effects,
    ) -> None:
        self._asking.discard("records")
        error = None if answer is None else answer.error
        if self.answered(asked, error, effects) and answer is not None:
            _check_end(known, answer.log_end_offset)
            self.heard_of_end(answer.log_end_offset)
            self._snapshot.log_start_offset = answer.log_start_offset
            if answer.error is RegistryError.NONE and offset == self._metadata.next_offset:
                self._metadata.replay(answer.records, effects)
            self.pump(effects)
            self._on_progress(effects)
        else:
            self.pump(effects)

    def _on_snapshot(
        self, asked: int, answer: tuple[RegistryError, SnapshotPart] | None, effects: Effects
    ) -> None:
        self._asking.discard("snapshot")
        error = None if answer is None else answer[0]
        if self.answered(asked, error, effects) and answer is not None:
            part, snapshot = answer[1], self._snapshot
            if snapshot.take(part):
                if part.end_offset > self._metadata.next_offset:
                    self._metadata.restore(part.end_offset, snapshot.records, effects)
                snapshot.clear()
            self.pump(effects)
            self._on_progress(effects)
        else:
            self.pump(effects)

    def _on_wait(self, asked: int, known: int, answer: Position | None, effects: Effects) -> None:
        self._asking.discard("wait")
        if self.answered(asked, None if answer is None else answer.error, effects) and answer:
            _check_end(known, answer.log_end_offset)
            self._heard(answer)
        self.pump(effects)

    def _heard(self, position: Position) -> None:
        """Answers come by two connections, so an older one may come later."""
        self._heard_zxid = max(self._heard_zxid, position.zxid)
        self.heard_of_end(position.log_end_offset)


def _check_end(known: int, log_end_offset: int) -> None:
    """`known` is the end that this broker knew of when it asked. Raises DataDirectoryError."""
    if log_end_offset < known:
        raise DataDirectoryError(
            f"the registry's metadata log ends at offset {log_end_offset}, and by an earlier "
            f"answer of the registry it ended at {known}: the registry was started with another "
            "data directory, or with an older copy of its own. Stop all brokers and put the newest "
            "one back"
        )
