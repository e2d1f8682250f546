"""Memory for requests that are being received, over all connections: `queued.max.request.bytes`.

Each connection may hold `FREE_BYTES` of an incomplete frame; further bytes come out of one account.
When the account is used up, connections in the middle of a large frame are not read from until
others are done. One connection always may go on, whatever it takes, or all could wait for each
other; if the connection with this turn sends nothing, it is closed after a while (`close_stalled`).

Kafka reserves the size that a frame claims before it reads the frame; here only bytes that arrived
count, so a claim costs nothing.
"""

from __future__ import annotations

from collections import deque

from broker_sim.server.client_connection import ClientConnection

FREE_BYTES = 64 * 1024
STALLED_SECONDS_MAX = 10.0


class RequestMemory:
    """Account of memory. `limit_bytes` -1: unlimited."""

    def __init__(self, limit_bytes: int) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._waiting: deque[ClientConnection] = deque()
        self._turn: ClientConnection | None = None
        self._turn_seen = (0, 0.0)
        """Tuple (bytes moved, time) of the last progress of the turn's holder."""

    def account(self, member: ClientConnection) -> None:
        """Account for a change of `member.buffered_bytes`; call after each change."""
        held = max(0, member.buffered_bytes - FREE_BYTES)
        if not (held or member.memory_held_bytes or self._waiting or member is self._turn):
            return  # as most of the time: it has nothing of the account, and nobody waits
        self.held_bytes += held - member.memory_held_bytes
        member.memory_held_bytes = held
        if not held:
            self._give_up_turn(member)
        elif member is not self._turn and not member.memory_waits and self._is_full():
            member.memory_waits = True
            self._waiting.append(member)
        self._admit()

    def forget(self, member: ClientConnection) -> None:
        """Remove a connection that is gone."""
        self.held_bytes -= member.memory_held_bytes
        member.memory_held_bytes = 0
        if member.memory_waits:
            member.memory_waits = False
            self._waiting.remove(member)
        self._give_up_turn(member)
        self._admit()

    def close_stalled(self, now_seconds: float) -> None:
        """Close the holder of the turn if others wait and it sends nothing; call now and then."""
        turn = self._turn
        if turn is None or not self._waiting:
            return
        moved, since = self._turn_seen
        if turn.bytes_moved != moved or since == 0.0:
            self._turn_seen = (turn.bytes_moved, now_seconds)
        elif now_seconds - since > STALLED_SECONDS_MAX:
            turn.abort("stalled in the middle of a large frame while others wait for memory")

    def _is_full(self) -> bool:
        return 0 <= self._limit_bytes < self.held_bytes

    def _give_up_turn(self, member: ClientConnection) -> None:
        if member is self._turn:
            self._turn = None

    def _admit(self) -> None:
        while self._waiting and (self._turn is None or not self._is_full()):
            member = self._waiting.popleft()
            if self._is_full():
                self._turn = member
                self._turn_seen = (member.bytes_moved, 0.0)
            member.memory_waits = False
            member.regulate()
