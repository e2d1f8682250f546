"""Turns for connections to the staging server that have not yet proved the token.

Anyone can connect, and all tasks of a stage connect at the same moment. The server does not read
from a connection that waits for its turn, so a waiting connection costs one descriptor; TLS begins
with the turn. Connections are grouped by peer address, and the address with the fewest turns gets
the next turn. So a peer that opens many silent connections delays only the tasks of its own
address, and only for some turns.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from txnlog_kafka.wire.invariants import present

PROVING_MAX = 512
"""Most connections that may have a turn at once: with more, no proof would end in time."""
PROVING_BYTES = 512 * 1024
"""Memory of the server that each connection with a turn takes, in bytes. Most of it is asyncio's
TLS buffers and the connection's own buffer."""
OTHERS_PART = 4
"""Divisor of the turns: one turn in four is reserved for addresses other than the busiest one."""
UNPROVED_MAX = 3072
"""Most connections without a proof, waiting connections included. Even if all are of one address,
each has its turn within the two minutes that a task waits."""


@dataclass(eq=False, slots=True)
class _Peer:
    """Connections of one address, oldest first; `waiting` are the connections without a turn."""

    address: str
    tasks: dict[asyncio.Future[None], asyncio.Task[Any]] = field(default_factory=dict)
    waiting: dict[asyncio.Future[None], None] = field(default_factory=dict)

    @property
    def proving_count(self) -> int:
        return len(self.tasks) - len(self.waiting)


class Unproved:
    """Gives turns. A separate asyncio task serves each connection and asks here first."""

    def __init__(self, count_max: int = UNPROVED_MAX, proving_max: int = PROVING_MAX) -> None:
        self._count_max = count_max
        self._proving_max = proving_max
        self._proving_of_peer_max = proving_max - proving_max // OTHERS_PART
        self._peers: dict[str, _Peer] = {}

    @contextlib.asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for the turn of the calling task; within it the connection proves the token.

        If there are too many connections, the oldest connection of the address with the most
        connections is cancelled.
        """
        if sum(len(peer.tasks) for peer in self._peers.values()) >= self._count_max:
            most = max(self._peers.values(), key=lambda peer: len(peer.tasks))
            oldest, task = next(iter(most.tasks.items()))
            self._remove_peer(most, oldest)
            task.cancel()
        peer = self._peers.setdefault(address, _Peer(address))
        mine = asyncio.get_running_loop().create_future()
        peer.tasks[mine] = present(asyncio.current_task(), "a connection has a task")
        peer.waiting[mine] = None
        self._give_turns()
        try:
            await mine
            yield
        finally:
            self._remove_peer(peer, mine)
            self._give_turns()

    def _remove_peer(self, peer: _Peer, turn: asyncio.Future[None]) -> None:
        if peer.tasks.pop(turn, None) is None:
            return  # cancelled by `turn`, as one connection too many
        peer.waiting.pop(turn, None)
        if not peer.tasks:
            del self._peers[peer.address]

    def _give_turns(self) -> None:
        proving_count = sum(peer.proving_count for peer in self._peers.values())
        while proving_count < self._proving_max:
            waiting = (peer for peer in self._peers.values() if peer.waiting)
            peer = min(waiting, key=lambda peer: peer.proving_count, default=None)
            if peer is None or peer.proving_count >= self._proving_of_peer_max:
                return
            turn = next(iter(peer.waiting))
            del peer.waiting[turn]
            if not turn.cancelled():  # else its task has ended and calls `_remove_peer` next
                turn.set_result(None)
            proving_count += 1
