"""Scripted brokers that take their time: each handles its requests one after another.

Only requests of `Send` are delayed; `Calls` are answered at once, as `ScriptedCluster` does it. A
request without an answer breaks its connection: what was sent behind it has no answer either, and
was carried out or not.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from support.scripted.scripted_broker import ScriptedCluster

from txnlog_kafka.operations.effects import Call, Reply, Ticket, Unanswered


@dataclass
class VirtualCluster(ScriptedCluster):
    """`delay_ms` says how long a node takes for a request; `on_wait` is called before each wait."""

    delay_ms: Callable[[Call], int] = lambda _call: 1
    seed: int = 0
    on_wait: Callable[[], None] = lambda: None
    queues: dict[int, deque[tuple[int, Ticket]]] = field(default_factory=lambda: defaultdict(deque))
    """By node: when each of its requests will be handled."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rng = random.Random(self.seed)

    def in_flight(self, node: int) -> int:
        """The requests that this node has not handled."""
        return len(self.queues[node])

    def _send(self, call: Call) -> Ticket:
        ticket = Ticket(len(self.sent) + 1)
        self.sent[ticket] = call
        queue = self.queues[call.node]
        begins_ms = max(self.now_ms, queue[-1][0] if queue else 0)
        queue.append((begins_ms + self.delay_ms(call), ticket))
        self.most_in_flight[call.node] = max(len(queue), self.most_in_flight[call.node])
        return ticket

    def _receive(
        self, tickets: frozenset[Ticket], within_ms: int | None
    ) -> tuple[Ticket, Reply | Unanswered] | None:
        self.on_wait()
        until_ms = None if within_ms is None else self.now_ms + within_ms
        while not tickets & self.open.keys():
            heads = [(queue[0], node) for node, queue in self.queues.items() if queue]
            if until_ms is not None and (not heads or min(heads)[0][0] > until_ms):
                self.now_ms = max(self.now_ms, until_ms)
                return None
            (at_ms, ticket), node = min(heads)
            self.now_ms = max(self.now_ms, at_ms)
            self._handle(node, ticket)
        ticket = min(tickets & self.open.keys())
        return ticket, self.open.pop(ticket)

    def _handle(self, node: int, ticket: Ticket) -> None:
        self.queues[node].popleft()
        self.open[ticket] = outcome = self._call(self.sent[ticket])
        if not isinstance(outcome, Unanswered):
            return
        for _, behind in self.queues[node]:
            if self._rng.random() < 0.5:
                self._call(self.sent[behind])
            self.open[behind] = Unanswered("the connection broke", sent=True)
        self.queues[node].clear()
