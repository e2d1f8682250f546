"""Open connections: their number and its limits, and the connections that are idle.

A connection beyond a limit is closed at once and touches no other connection. A connection is idle
when no byte moves in either direction, whatever the broker still holds for it. So a connection
whose peer has vanished, or never reads its answers, is closed like an unused one. Kafka's idle
expiry, too, knows only what the socket did.
"""

from __future__ import annotations

import logging
import resource
from collections import Counter
from collections.abc import Iterator

from broker_sim.core.config import BrokerConfig
from broker_sim.server.client_connection import ClientConnection
from broker_sim.server.storage import OPEN_FILES_MAX

SPARE_DESCRIPTORS = 64
"""Descriptors that are neither connection nor log file: the event loop, the lock, the standard
streams."""


class Connections:
    """Open connections of a host, see the module."""

    def __init__(self, config: BrokerConfig, descriptors_max: int | None = None) -> None:
        """`descriptors_max` is the number of files that the process may have open; None asks the
        system."""
        if descriptors_max is None:
            descriptors_max = raise_descriptor_limit()
        self.idle_seconds_max = config.integer("connections.max.idle.ms") / 1000
        self._config = config
        self._descriptors_max = max(1, descriptors_max - OPEN_FILES_MAX - SPARE_DESCRIPTORS)
        self._by_id: dict[int, ClientConnection] = {}
        self._per_address: Counter[str] = Counter()
        self._in_handshake: set[int] = set()
        """Ids of connections that are accepted and not open yet."""
        self._still: dict[int, tuple[int, float]] = {}
        """Bytes moved when last seen, and the time since they are the same, by connection id."""
        self._client_left = False
        """True if a client's connection was closed since `clients_were_there` was last asked."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(list(self._by_id.values()))

    def get(self, connection_id: int) -> ClientConnection | None:
        """Return the open connection of this number."""
        return self._by_id.get(connection_id)

    def may_shake_hands(self, connection: ClientConnection) -> bool:
        """True if the connection may begin TLS; it is counted from here on."""
        if self._is_full() is not None:
            return False
        self._in_handshake.add(connection.connection_id)
        return True

    def add(self, connection: ClientConnection) -> None:
        """Add an accepted connection; close it if there are too many."""
        self._in_handshake.discard(connection.connection_id)
        refused = self._refused(connection.peer)
        if refused is not None:
            connection.abort(refused, level=logging.WARNING)
            return
        self._by_id[connection.connection_id] = connection
        self._per_address[connection.peer] += 1

    def remove(self, connection: ClientConnection) -> bool:
        """Remove a connection that is gone; return False if it was refused, or never open."""
        self._in_handshake.discard(connection.connection_id)
        if self._by_id.pop(connection.connection_id, None) is None:
            return False
        self._client_left |= not connection.is_of_broker
        self._still.pop(connection.connection_id, None)
        self._per_address[connection.peer] -= 1
        if not self._per_address[connection.peer]:
            del self._per_address[connection.peer]
        return True

    def clients_were_there(self) -> bool:
        """True if a client's connection is open, or was open since the last call.

        Other brokers of a cluster do not count: they would keep each other for ever. A connection
        that has sent no request yet counts as a client's.
        """
        client_left, self._client_left = self._client_left, False
        return client_left or any(not each.is_of_broker for each in self._by_id.values())

    def close_idle(self, now_seconds: float) -> None:
        """Close connections that stood still for connections.max.idle.ms; called at a fraction of
        that."""
        if self.idle_seconds_max <= 0:
            return
        for connection in self:
            moved = connection.bytes_moved
            seen, since = self._still.get(connection.connection_id, (-1, now_seconds))
            if moved != seen:
                self._still[connection.connection_id] = (moved, now_seconds)
            elif now_seconds - since >= self.idle_seconds_max:
                connection.abort("idle for connections.max.idle.ms")

    def _refused(self, peer: str) -> str | None:
        per_address_max = self._config.integer("max.connections.per.ip")
        reason = self._is_full()
        if reason is None and self._per_address[peer] >= per_address_max:
            reason = f"over max.connections.per.ip={per_address_max}"
        return reason

    def _is_full(self) -> str | None:
        # The limits may be changed while the broker runs.
        connections_max = self._config.integer("max.connections")
        count = len(self._by_id) + len(self._in_handshake)
        if count >= connections_max:
            return f"over max.connections={connections_max}"
        if count >= self._descriptors_max:
            return f"{count} connections are all that the limit of open files allows"
        return None


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 30
