"""Batches for other brokers: a request at a time to each, with all that came since the last.

Items that are added in a step leave in the next step, so that related items go together. A request
is answered, or lost with its connection, or it times out; in all three cases the next request
follows. So a broker that is away delays only the items for it.

Source: Kafka's `InterBrokerSendThread`, as `TransactionMarkerChannelManager` and
`AddPartitionsToTxnManager` use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from broker_sim.core.coordinator.timers import KeyedTimers
from broker_sim.core.effects import Effects
from broker_sim.core.peers import Peers
from txnlog_kafka.wire.messages import Message

REQUEST_TIMEOUT_MS = 30_000
"""request.timeout.ms"""
ITEMS_MAX = 10_000
"""In one request; the rest goes with the next one."""

I = TypeVar("I")  # noqa: E741


@dataclass(slots=True)
class _Queue(Generic[I]):
    waiting: list[I] = field(default_factory=list)
    asked: list[I] | None = None
    """Items in the request under way."""


class PeerBatches(Generic[I]):
    """The queues of one kind of request, by broker."""

    def __init__(
        self,
        name: str,
        peers: Peers,
        version: int,
        build: Callable[[Sequence[I]], Message],
        take: Callable[[Sequence[I], Message | None, Effects], None],
    ) -> None:
        """`name` is of the timers. `take` gets each batch once, with the answer, or with None
        when there is none: then the broker may have carried it out or not."""
        self._name = name
        self._peers = peers
        self._version = version
        self._build = build
        self._take = take
        self._timers = KeyedTimers()
        self.on_timer = self._timers.fire
        self._queues: dict[int, _Queue[I]] = {}

    def add(self, peer: int, item: I, effects: Effects) -> None:
        """Into the next request to this broker."""
        queue = self._queues.setdefault(peer, _Queue())
        queue.waiting.append(item)
        if queue.asked is None:
            send = partial(self._send_queue, peer, queue)
            self._timers.schedule((self._name, "send", str(peer)), 0, send, effects)

    def withdraw(self, matches: Callable[[I], bool]) -> list[I]:
        """Take out what has not left yet."""
        found: list[I] = []
        for queue in self._queues.values():
            found += filter(matches, queue.waiting)
            queue.waiting = [item for item in queue.waiting if not matches(item)]
        return found

    def _send_queue(self, peer: int, queue: _Queue[I], effects: Effects) -> None:
        if queue.asked is not None or not queue.waiting:
            return
        batch, queue.waiting = queue.waiting[:ITEMS_MAX], queue.waiting[ITEMS_MAX:]
        queue.asked = batch
        timed_out = partial(self._on_answer, peer, batch, None)
        key = (self._name, "timeout", str(peer))
        self._timers.schedule(key, REQUEST_TIMEOUT_MS, timed_out, effects)
        on_answer = partial(self._on_answer, peer, batch)
        self._peers.send(peer, self._build(batch), self._version, on_answer, effects)

    def _on_answer(
        self, peer: int, batch: list[I], answer: Message | None, effects: Effects
    ) -> None:
        queue = self._queues[peer]
        if queue.asked is not batch:
            return  # too late
        queue.asked = None
        self._timers.cancel((self._name, "timeout", str(peer)), effects)
        self._take(batch, answer, effects)
        self._send_queue(peer, queue, effects)
