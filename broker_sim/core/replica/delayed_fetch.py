"""Long-polling fetches that wait for bytes: Kafka's fetch purgatory.

A delayed fetch is looked at again when one of its partitions changed, and answered at its deadline
whatever there is. It keeps the request, not a half-made answer: everything is read again on
completion, so that a marker that arrived meanwhile is in the aborted list (KAFKA-5376).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from broker_sim.core.effects import CancelTimer, ConnectionId, Effects, Request, TimerKey
from broker_sim.core.replica.changes import Changes
from broker_sim.core.replica.fetch_session import FetchContext, FetchSession
from txnlog_kafka.wire.topic_partition import TopicPartition

FETCH_TIMER = "fetch"
_Key = TypeVar("_Key", TopicPartition, ConnectionId)


@dataclass(frozen=True, slots=True)
class DelayedFetch:
    """Request that waits, and the partitions it waits for: its own, or its session's."""

    number: int
    request: Request
    context: FetchContext
    partitions: frozenset[TopicPartition]
    is_for_replica: bool

    @property
    def timer_key(self) -> TimerKey:
        """The key of its deadline."""
        return (FETCH_TIMER, str(self.number))


class DelayedFetches:
    """Delayed fetches, found by number, by partition and by connection."""

    def __init__(self) -> None:
        self._next_number = 0
        self._by_number: dict[int, DelayedFetch] = {}
        self._by_partition: dict[TopicPartition, set[int]] = {}
        self._by_connection: dict[ConnectionId, set[int]] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def connections(self) -> frozenset[ConnectionId]:
        """Whose fetches they are."""
        return frozenset(self._by_connection)

    def add(
        self,
        request: Request,
        context: FetchContext,
        partitions: Iterable[TopicPartition],
        effects: Effects,
        *,
        is_for_replica: bool,
    ) -> None:
        """Keep the request until `remove`."""
        session = context.session
        own = frozenset(partitions if session is None else ())
        delayed = DelayedFetch(self._next_number, request, context, own, is_for_replica)
        self._next_number += 1
        self._by_number[delayed.number] = delayed
        if session is not None:
            session.delayed = delayed.number
        for partition in delayed.partitions:
            self._by_partition.setdefault(partition, set()).add(delayed.number)
        self._by_connection.setdefault(request.connection_id, set()).add(delayed.number)
        effects.set_timer(*delayed.timer_key, after_ms=request.message.max_wait_ms)

    def waiting_for(self, changes: Changes, sessions: Iterable[FetchSession]) -> list[DelayedFetch]:
        """Return the fetches that may read more now, oldest first; `sessions` have news."""
        if not self._by_number:
            return []
        numbers = {each.delayed for each in sessions if each.delayed is not None}
        for partition in changes.all if self._by_partition else ():
            is_for_consumers = partition in changes.for_consumers
            for number in self._by_partition.get(partition, ()):
                if is_for_consumers or self._by_number[number].is_for_replica:
                    numbers.add(number)
        return [self._by_number[number] for number in sorted(numbers)]

    def due(self, key: TimerKey) -> DelayedFetch | None:
        """The fetch whose deadline this is, None when it was answered meanwhile."""
        return self._by_number.get(int(key[1]))

    def remove(self, delayed: DelayedFetch, effects: Effects) -> None:
        """Remove the fetch: it is answered, or its connection is gone."""
        del self._by_number[delayed.number]
        session = delayed.context.session
        if session is not None and session.delayed == delayed.number:
            session.delayed = None
        for partition in delayed.partitions:
            _discard_fetch(self._by_partition, partition, delayed.number)
        _discard_fetch(self._by_connection, delayed.request.connection_id, delayed.number)
        effects.timers.append(CancelTimer(delayed.timer_key))

    def forget_connection(self, connection_id: ConnectionId, effects: Effects) -> None:
        """Drop all fetches of a connection that is gone."""
        for number in sorted(self._by_connection.get(connection_id, ())):
            self.remove(self._by_number[number], effects)


def _discard_fetch(index: dict[_Key, set[int]], key: _Key, number: int) -> None:
    numbers = index[key]
    numbers.discard(number)
    if not numbers:
        del index[key]
