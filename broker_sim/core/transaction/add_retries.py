"""Asks a transaction coordinator again whether partitions may join a transaction.

EndTxn is answered before the markers are written. A producer that goes on at once would get
CONCURRENT_TRANSACTIONS meanwhile, and some clients then wait for seconds. So the leader asks again
for a while before it answers the producer.

Source: Kafka's `ReplicaManager.handleProduceAppend` (KAFKA-18575).
"""

from __future__ import annotations

from collections.abc import Callable

from broker_sim.core.effects import Effects, TimerKey
from broker_sim.core.replies import Reply
from broker_sim.core.transaction.verifier import Verdicts
from txnlog_kafka.wire.error_codes import ErrorCode

RETRY_TIMER = "add-partitions-to-txn-retry"
BACKOFF_MS = 20
"""Milliseconds between two questions (the default of add.partitions.to.txn.retry.backoff.ms)."""
RETRIES_MS_MAX = 100
"""Milliseconds after which the producer gets the error (the default of
add.partitions.to.txn.retry.backoff.max.ms)."""

Ask = Callable[[Reply[Verdicts], Effects], None]


class AddRetries:
    """Questions that wait to be asked again."""

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[Effects], None]] = {}
        self._count = 0

    def ask(self, ask: Ask, reply: Reply[Verdicts], effects: Effects) -> None:
        """Ask until the answer is another than CONCURRENT_TRANSACTIONS, or the time is over."""
        began_ms = effects.monotonic_ms

        def on_verdicts(verdicts: Verdicts, effects: Effects) -> None:
            is_over = effects.monotonic_ms - began_ms >= RETRIES_MS_MAX
            if is_over or ErrorCode.CONCURRENT_TRANSACTIONS not in verdicts.values():
                return reply(verdicts, effects)
            self._count += 1
            name = str(self._count)
            self._waiting[name] = lambda later: ask(on_verdicts, later)
            return effects.set_timer(RETRY_TIMER, name, after_ms=BACKOFF_MS)

        ask(on_verdicts, effects)

    def on_timer(self, key: TimerKey, effects: Effects) -> None:
        """A timer fired; keys of others are ignored."""
        if key[0] == RETRY_TIMER:
            self._waiting.pop(key[1])(effects)
