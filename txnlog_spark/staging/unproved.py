"""Connections to the staging server that have not proved the token: whose turn it is to do so.

Anybody can connect, and all tasks of a stage do at the same moment. One that waits for its turn is
not read from, so it costs a descriptor; TLS begins with its turn. Peers are distinguished by their
addresses, and the one that has the fewest turns gets the next: a peer that opens many connections
and says nothing holds up the tasks of that address, for some turns, and nobody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from txnlog_kafka.wire.invariants import present

PROVING_MAX = 512
"""So many have their turn at once: with more, none would be done in time."""
PROVING_BYTES = 512 * 1024
"""What each of these takes of the server's memory: most of it are asyncio's buffers for TLS, and
the connection's own."""
OTHERS_PART = 4
"""One turn in so many is for other addresses than the one that has the most."""
UNPROVED_MAX = 3072
"""So many, waiting ones included: of one address all have had their turn within two minutes, which
is what a task waits."""


@dataclass(eq=False, slots=True)
class _Peer:
    """The connections of one address, the oldest first, and which of them wait for their turn."""

    address: str
    tasks: dict[asyncio.Future[None], asyncio.Task[Any]] = field(default_factory=dict)
    waiting: dict[asyncio.Future[None], None] = field(default_factory=dict)

    @property
    def proving_count(self) -> int:
        return len(self.tasks) - len(self.waiting)


class Unproved:
    """Gives turns. Each connection is served by a task of its own, which asks here first."""

    def __init__(self, count_max: int = UNPROVED_MAX, proving_max: int = PROVING_MAX) -> None:
        self._count_max = count_max
        self._proving_max = proving_max
        self._proving_of_peer_max = proving_max - proving_max // OTHERS_PART
        self._peers: dict[str, _Peer] = {}

    @contextlib.asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for the turn of the task that calls this; within it the connection is proved.

        With one connection too many the oldest of the address that has the most is cancelled.
        """
        if sum(len(peer.tasks) for peer in self._peers.values()) >= self._count_max:
            most = max(self._peers.values(), key=lambda peer: len(peer.tasks))
            oldest, task = next(iter(most.tasks.items()))
            self._remove(most, oldest)
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
            self._remove(peer, mine)
            self._give_turns()

    def _remove(self, peer: _Peer, turn: asyncio.Future[None]) -> None:
        if peer.tasks.pop(turn, None) is None:
            return  # one too many
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
            if not turn.cancelled():  # its task has ended, and is about to say so
                turn.set_result(None)
            proving_count += 1
