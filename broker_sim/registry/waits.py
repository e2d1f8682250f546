"""Requests that wait for a change: one-shot watches, each the answer of a request that is pending.

A client says what it has seen, and is answered as soon as something else is there: so nothing
happens between two waits that the second one does not report. It then reads what it cares for.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_sim.core.effects import CancelTimer, ConnectionId, Effects, Request, TimerKey

WAIT_TIMER = "registry-wait"


@dataclass(frozen=True, slots=True)
class Seen:
    """Position of a client or of the registry: the last change of any node, and the log's end."""

    nodes_zxid: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A pending request; a connection has a single pending request at a time."""

    request: Request
    session_id: int
    seen: Seen


class Waits:
    """Pending requests, by connection."""

    def __init__(self) -> None:
        self._by_connection: dict[ConnectionId, Wait] = {}

    def add(self, wait: Wait, max_wait_ms: int, effects: Effects) -> None:
        """Wait for so long."""
        connection_id = wait.request.connection_id
        self._by_connection[connection_id] = wait
        effects.set_timer(WAIT_TIMER, str(connection_id), after_ms=max_wait_ms)

    def forget_connection(self, connection_id: ConnectionId, effects: Effects) -> None:
        """Nobody is there to be answered."""
        if self._by_connection.pop(connection_id, None) is not None:
            effects.timers.append(CancelTimer((WAIT_TIMER, str(connection_id))))

    def due(self, key: TimerKey) -> Wait | None:
        """The one whose time is over."""
        return self._by_connection.pop(int(key[1]), None)

    def take(
        self, effects: Effects, *, now: Seen | None = None, session_id: int | None = None
    ) -> list[Wait]:
        """Remove and return the waits that have seen something else than `now`, or of a session."""
        found = [
            wait
            for wait in self._by_connection.values()
            if (now is not None and wait.seen != now) or wait.session_id == session_id
        ]
        for wait in found:
            self.forget_connection(wait.request.connection_id, effects)
        return found
