"""Requests that wait for other replicas: until all have what was appended, or have deleted what is
to go. Kafka's purgatories of Produce and DeleteRecords."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from broker_sim.core.effects import CancelTimer, Effects, TimerKey
from broker_sim.core.replica.partition import Partition
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.topic_partition import TopicPartition

PRODUCE_TIMER = "produce"

Outcomes = dict[TopicPartition, ErrorCode]
Begin = Callable[[Partition, int, Reply[ErrorCode], Effects], None]
"""Has a partition reply when the replicas have come to an offset."""


class _Delayed:
    """Request that waits for partitions; each has the reply to forget when the request is late."""

    def __init__(self, reply: Reply[Outcomes]) -> None:
        self.reply = reply
        self.outcomes: Outcomes = {}
        self.waiting: dict[TopicPartition, tuple[Partition, Reply[ErrorCode]]] = {}


class DelayedProduces:
    """Delayed requests that are not answered yet, by number."""

    def __init__(self) -> None:
        self._next_number = 0
        self._by_number: dict[int, _Delayed] = {}

    def wait(
        self,
        wanted: Mapping[TopicPartition, tuple[Partition, int]],
        timeout_ms: int,
        reply: Reply[Outcomes],
        effects: Effects,
        begin: Begin = Partition.when_committed,
    ) -> None:
        """Call `reply` when the append of each partition, which ends with that offset, is
        committed; REQUEST_TIMED_OUT for those that are not in time. In this step when all are.
        With another `begin` it is something else that is waited for."""
        number = self._next_number
        self._next_number += 1
        delayed = self._by_number[number] = _Delayed(reply)
        replies = {name: partial(self._on_outcome, number, name) for name in wanted}
        for name, (partition, _) in wanted.items():
            delayed.waiting[name] = partition, replies[name]
        for name, (partition, last_offset) in wanted.items():
            begin(partition, last_offset, replies[name], effects)
        if number in self._by_number:
            effects.set_timer(PRODUCE_TIMER, str(number), after_ms=max(0, timeout_ms))

    def on_timer(self, key: TimerKey, effects: Effects) -> None:
        """The request's time is over; nothing when it was answered."""
        number = int(key[1])
        delayed = self._by_number.get(number)
        if delayed is None:
            return
        for name, (partition, reply) in list(delayed.waiting.items()):
            partition.forget(reply)
            self._on_outcome(number, name, ErrorCode.REQUEST_TIMED_OUT, effects)

    def _on_outcome(
        self, number: int, name: TopicPartition, error: ErrorCode, effects: Effects
    ) -> None:
        delayed = self._by_number[number]
        delayed.outcomes[name] = error
        del delayed.waiting[name]
        if not delayed.waiting:
            del self._by_number[number]
            effects.timers.append(CancelTimer((PRODUCE_TIMER, str(number))))
            delayed.reply(delayed.outcomes, effects)
