"""When sessions expire: soft state, so that after a restart each has its whole timeout again. And
by which connection each asks.

A session expires when its timer fires and no request of it came for its timeout. A request moves
the deadline only; the timer is set again when it fires too early. A client may use any connections
for its session, one after another or at the same time; changes it asks for by one after another.
"""

from __future__ import annotations

from broker_sim.core.effects import CancelTimer, ConnectionId, Effects, TimerKey

SESSION_TIMER = "registry-session"


class SessionDeadlines:
    """The deadline of each open session, in ms of the host's monotonic clock."""

    def __init__(self) -> None:
        self._deadlines: dict[int, int] = {}

    def begin(self, session_id: int, timeout_ms: int, effects: Effects) -> None:
        """From here on the session may expire."""
        self.touch(session_id, timeout_ms, effects)
        effects.set_timer(SESSION_TIMER, str(session_id), after_ms=timeout_ms)

    def touch(self, session_id: int, timeout_ms: int, effects: Effects) -> None:
        """The session asks something: it has its whole timeout again."""
        self._deadlines[session_id] = effects.monotonic_ms + timeout_ms

    @property
    def next_ms(self) -> int | None:
        """Deadline that comes first; None without a session."""
        return min(self._deadlines.values(), default=None)

    def end(self, session_id: int, effects: Effects) -> None:
        """The session is closed."""
        del self._deadlines[session_id]
        effects.timers.append(CancelTimer((SESSION_TIMER, str(session_id))))

    def expired(self, key: TimerKey, effects: Effects) -> int | None:
        """The session of a timer that fired; None while its deadline has not come."""
        session_id = int(key[1])
        deadline_ms = self._deadlines.get(session_id)
        if deadline_ms is None:
            return None
        if effects.monotonic_ms < deadline_ms:
            after_ms = deadline_ms - effects.monotonic_ms
            effects.set_timer(*key, after_ms=after_ms)
            return None
        return session_id


class NewestConnections:
    """The newest connection by which each session has asked, but for waits.

    A request that its client has given up may be read after those of a connection that the client
    opened since. A change that comes so late is refused, for the client has seen by then that it
    was not carried out (ZooKeeper's SessionMovedException). The ids of connections grow.
    """

    def __init__(self) -> None:
        self._newest: dict[int, ConnectionId] = {}

    def is_newest(self, session_id: int, connection_id: ConnectionId) -> bool:
        """True if this is the session's newest connection; it counts from here on."""
        newest = max(connection_id, self._newest.get(session_id, connection_id))
        self._newest[session_id] = newest
        return newest == connection_id

    def end(self, session_id: int) -> None:
        """The session is closed."""
        self._newest.pop(session_id, None)
