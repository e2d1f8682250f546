"""Several operations carried on side by side, as parts of one operation.

Each part is started with a key and runs until it waits; `next_done` waits for the first outcome
that any part needs. No part waits for another part: the group asks for all requests of all parts,
hands an answer to the part that sent the request, and turns a sleep into a time limit of its wait.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from txnlog_kafka.operations.effects import (
    Ask,
    Calls,
    Operation,
    Receive,
    Reply,
    Send,
    Sleep,
    Ticket,
    Unanswered,
)
from txnlog_kafka.wire.invariants import check

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Received = tuple[Ticket, Reply | Unanswered]


@dataclass(slots=True)
class _Part(Generic[K, T]):
    """Operation and the outcomes that it waits for."""

    key: K
    operation: Operation[T]
    tickets: tuple[Ticket, ...] = ()
    wakes_at_ms: int | None = None
    awaits_all: bool = False
    outcomes: dict[Ticket, Reply | Unanswered] = field(default_factory=dict)


class OperationGroup(Generic[K, T]):
    """Parts of an operation that run at the same time, by their keys.

    A caller that leaves while parts are unfinished abandons them, and the requests that they wait
    for.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._parts: dict[K, _Part[K, T]] = {}
        self._done: list[tuple[K, T]] = []

    @property
    def is_empty(self) -> bool:
        """True if there are neither parts nor results of parts."""
        return not self._parts and not self._done

    def start(self, key: K, operation: Operation[T]) -> Operation[None]:
        """Begin a part and run it until it waits. Raises what the part raises."""
        check(key not in self._parts, "a part has a key of its own", key=key)
        self._parts[key] = part = _Part(key, operation)
        yield from self._resume_part(part, None)

    def cancel(self, key: K) -> None:
        """Close a part that is not wanted any more; its requests are abandoned."""
        part = self._parts.pop(key, None)
        if part is not None:
            part.operation.close()

    def next_done(self) -> Operation[tuple[K, T]]:
        """Return the next finished part and its result. Raises what any part raises."""
        while not self._done:
            check(bool(self._parts), "somebody is waited for")
            tickets = frozenset(
                t for p in self._parts.values() for t in p.tickets if t not in p.outcomes
            )
            times = [p.wakes_at_ms for p in self._parts.values() if p.wakes_at_ms is not None]
            within_ms = max(0, min(times) - self._monotonic_ms()) if times else None
            received: Received | None = yield Receive(tickets, within_ms)
            if received is not None:
                yield from self._hand_over_outcome(*received)
            elif times:
                now_ms = self._monotonic_ms()
                for part in list(self._parts.values()):
                    if part.wakes_at_ms is not None and part.wakes_at_ms <= now_ms:
                        yield from self._resume_part(part, None)
        return self._done.pop(0)

    def _hand_over_outcome(self, ticket: Ticket, outcome: Reply | Unanswered) -> Operation[None]:
        part = next(p for p in self._parts.values() if ticket in p.tickets)
        if not part.awaits_all:
            yield from self._resume_part(part, (ticket, outcome))
            return
        part.outcomes[ticket] = outcome
        if len(part.outcomes) == len(part.tickets):
            yield from self._resume_part(part, tuple(part.outcomes[t] for t in part.tickets))

    def _resume_part(self, part: _Part[K, T], outcome: Any) -> Operation[None]:
        """Run a part until it waits or ends."""
        while True:
            try:
                ask = part.operation.send(outcome)
            except StopIteration as stop:
                del self._parts[part.key]
                self._done.append((part.key, stop.value))
                return
            except BaseException:
                del self._parts[part.key]
                raise
            if self._waits(part, ask):
                return
            if isinstance(ask, Calls) and ask.calls:
                tickets = []
                for call in ask.calls:
                    ticket: Ticket = yield Send(call)
                    tickets.append(ticket)
                part.tickets, part.awaits_all = tuple(tickets), True
                part.outcomes, part.wakes_at_ms = {}, None
                return
            outcome = yield ask

    def _waits(self, part: _Part[K, T], ask: Ask) -> bool:
        """Note what a part waits for; return False if it does not wait."""
        if isinstance(ask, Sleep):
            part.tickets, part.wakes_at_ms = (), self._monotonic_ms() + ask.duration_ms
        elif isinstance(ask, Receive):
            wakes_at_ms = None if ask.within_ms is None else self._monotonic_ms() + ask.within_ms
            part.tickets, part.wakes_at_ms = tuple(ask.tickets), wakes_at_ms
        else:
            return False
        part.awaits_all = False
        part.outcomes = {}
        return True


def side_by_side(monotonic_ms: Callable[[], int], *operations: Operation[Any]) -> Operation[Any]:
    """Return the results of operations that only ask, in their order. Raises what any raises."""
    parts: OperationGroup[int, Any] = OperationGroup(monotonic_ms)
    for number, operation in enumerate(operations):
        yield from parts.start(number, operation)
    results: dict[int, Any] = {}
    while not parts.is_empty:
        number, result = yield from parts.next_done()
        results[number] = result
    return tuple(results[number] for number in range(len(operations)))
