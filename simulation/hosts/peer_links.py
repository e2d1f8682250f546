"""The way from one simulated process to its peers: performs `Step.sends` on the virtual network.

As `server/peer_connections.py` does it on sockets, by the same rules: a connection to each peer for
each kind of request (`core/peers.py`), made at the first one and again at the first one after a
loss; answers in the order of the requests; whatever ends a connection loses the peer, and the core
hears it once if it waits. All requests and answers are bytes.

A marker that comes late ends the next transaction of its producer, where transactions do not raise
the epoch (transaction version 1, and older clients): so it is in Kafka, and KIP-890 is what helps.
So with these no marker comes after its sender has given its connection up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from broker_sim.apis.frames import encode_peer_request
from broker_sim.core.effects import PeerAnswer, PeerLost, Send
from broker_sim.core.peers import ConnectionKind, connection_kind
from simulation.hosts.network import BrokerEnd, Network, SimulatedConnection
from simulation.hosts.scheduler import Event, Later, Scheduler
from simulation.trace import Trace
from txnlog_kafka.wire.conversation import Asked, Conversation
from txnlog_kafka.wire.messages import Message

RECONNECT_US = 50_000
CONNECT_US = (500_000, 2_000_000)
"""Microseconds that an attempt to connect takes where nothing comes through."""


@dataclass(slots=True, eq=False)
class _Asked(Asked):
    deadline_us: int


@dataclass(eq=False, slots=True)
class _Link:
    """A connection, from the attempt to make it."""

    peer: int
    may_be_late: bool
    """True if requests may arrive after this end is closed."""
    conversation: Conversation[_Asked]
    connection: SimulatedConnection | None = None
    unsent: deque[Send] = field(default_factory=deque)
    overdue: Event | None = None
    is_closed: bool = False


def never_late(_message: Message) -> bool:
    """Return False: only the weather delays requests."""
    return False


@dataclass(frozen=True, slots=True)
class Peers:
    """Peers of all processes of a cluster, and the rules of the way to them."""

    network: Network
    ends: Mapping[int, BrokerEnd]
    """Processes by peer id; whole when the first process starts."""
    answer_us_max: int
    """Microseconds that a peer may take for an answer."""
    late_markers: bool
    """True if markers may arrive after the next request of their sender."""
    is_late: Callable[[Message], bool]
    """True for a request that is late for sure, besides requests that the weather delays."""


class PeerLinks:
    """Links of one process to its peers."""

    def __init__(
        self,
        name: str,
        peers: Peers,
        scheduler: Scheduler,
        trace: Trace,
        *,
        submit: Callable[[PeerAnswer | PeerLost], None],
        later: Later,
        guarded: Callable[[Callable[[], None]], None],
        knows: Callable[[int], bool],
    ) -> None:
        """`submit` hands an input to the core, and `guarded` does an action when the process goes
        on; `knows` is True of a peer whose address the core knows."""
        self.name = name
        self._submit, self._knows = submit, knows
        self._later, self._guarded = later, guarded
        self._peers = peers
        self._network = peers.network
        self._scheduler = scheduler
        self._trace = trace
        self._links: dict[int, dict[ConnectionKind, _Link]] = {}
        """Links by peer and kind of request."""
        self._not_before_us: dict[int, int] = {}

    def send(self, request: Send) -> None:
        """Send a request; its answer, or the loss of the peer, is submitted later."""
        kind = connection_kind(request.message)
        links = self._links.setdefault(request.peer, {})
        link = links.get(kind)
        if link is None:
            may_be_late = self._peers.late_markers or kind is not ConnectionKind.MARKERS
            link = links[kind] = _Link(request.peer, may_be_late, Conversation(self.name))
            wait_us = self._not_before_us.get(request.peer, 0) - self._scheduler.now_us
            self._later(max(0, wait_us), partial(self._connect, link))
        link.unsent.append(request)
        self._write(link)

    def close(self) -> None:
        """Drop all connections and tell nobody; what was sent still goes."""
        links = [link for by_kind in self._links.values() for link in by_kind.values()]
        self._links.clear()
        for link in links:
            self._close(link)

    # ------------------------------------------------------------------ ClientEnd

    def on_frame(self, connection: SimulatedConnection, frame: bytes) -> None:
        """Submit an answer that has arrived."""
        self._guarded(lambda: self._on_frame(connection, frame))

    def on_closed(self, connection: SimulatedConnection) -> None:
        """Lose the peer of a connection that is broken."""
        self._guarded(lambda: self._on_closed(connection))

    def _on_frame(self, connection: SimulatedConnection, frame: bytes) -> None:
        link = self._link_of(connection)
        if link is None:
            return
        asked = link.conversation.oldest(frame)
        link.conversation.unanswered.popleft()
        self._submit(PeerAnswer(link.peer, asked.correlation_id, asked.decode(frame)))

    def _on_closed(self, connection: SimulatedConnection) -> None:
        link = self._link_of(connection)
        if link is not None:
            self._lose(link, "the connection broke")

    def _link_of(self, connection: SimulatedConnection) -> _Link | None:
        links = (link for by_kind in self._links.values() for link in by_kind.values())
        return next((link for link in links if link.connection is connection), None)

    # ------------------------------------------------------------------ details

    def _connect(self, link: _Link) -> None:
        if link.is_closed:
            return
        end = self._peers.ends[link.peer]
        if not self._knows(link.peer):
            self._lose(link, "its address is not known")
        elif not self._network.reaches(self.name, end.name):
            wait_us = self._network.rng.randint(*CONNECT_US)
            self._later(wait_us, lambda: self._lose(link, "no connection in time"))
        else:
            link.connection = self._network.connect(self, end)
            if link.connection is None:
                self._lose(link, "connection refused")
            else:
                self._write(link)

    def _write(self, link: _Link) -> None:
        while link.unsent and link.connection is not None and not link.is_closed:
            request = link.unsent.popleft()
            frame, decode = encode_peer_request(
                request.message,
                request.api_version,
                request.correlation_id,
                self.name,
                link.connection.decode,
            )
            deadline_us = self._scheduler.now_us + self._peers.answer_us_max
            link.conversation.expect(_Asked(deadline_us), request.correlation_id, decode)
            if link.overdue is None:
                check_overdue = partial(self._check_overdue, link)
                link.overdue = self._later(self._peers.answer_us_max, check_overdue)
            is_late = self._peers.is_late(request.message)
            link.connection.request(frame[4:], may_be_late=link.may_be_late, is_late=is_late)

    def _check_overdue(self, link: _Link) -> None:
        link.overdue = None
        unanswered = link.conversation.unanswered
        if not unanswered or link.is_closed:
            return
        left_us = unanswered[0].deadline_us - self._scheduler.now_us
        if left_us <= 0:
            self._lose(link, "no answer in time")
        else:
            link.overdue = self._later(left_us, partial(self._check_overdue, link))

    def _lose(self, lost: _Link, reason: str) -> None:
        """Lose a peer: when one connection to it has ended, all others end too."""
        if lost.is_closed:
            return
        peer = lost.peer
        self._trace.line(self.name, "peer-lost", {"peer": peer, "reason": reason})
        links = self._links.pop(peer)
        self._not_before_us[peer] = self._scheduler.now_us + RECONNECT_US
        for link in links.values():
            self._close(link)
        if any(link.unsent or link.conversation.unanswered for link in links.values()):
            self._submit(PeerLost(peer))

    @staticmethod
    def _close(link: _Link) -> None:
        link.is_closed = True
        if link.overdue is not None:
            link.overdue.cancel()
        if link.connection is not None and link.may_be_late:
            link.connection.close()
        elif link.connection is not None:
            link.connection.cut()
