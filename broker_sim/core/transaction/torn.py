"""Transactions that were open when the machine went down: records of them may be gone.

Produce is acknowledged before it is flushed, as in Kafka, so what is left of such a transaction
must not be committed. Each is aborted when its coordinator is loaded. Until that is decided a
commit is refused; it is not at once where the producer needs a new id, and none is there yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from broker_sim.core.coordinator.timers import KeyedTimers
from broker_sim.core.effects import Effects
from broker_sim.core.transaction.ending import TransactionEnding
from broker_sim.core.transaction.results import ProducerIdResult, trace_abort
from broker_sim.core.transaction.state_manager import Found
from broker_sim.core.transaction.states import TransactionState
from txnlog_kafka.wire.error_codes import ErrorCode

TORN_TIMER = ("transactions-torn",)
RETRY_MS = 100


class TornTransactions:
    """Torn transactions that are not aborted yet."""

    def __init__(self, ending: TransactionEnding, timers: KeyedTimers) -> None:
        self._ending = ending
        self._timers = timers
        self._torn: dict[str, Found] = {}

    def __contains__(self, transactional_id: str) -> bool:
        return transactional_id in self._torn

    def abort(self, found: Iterable[Found], effects: Effects) -> None:
        """Abort these ongoing transactions, now or as soon as that can be."""
        for each in found:
            self._torn[each[1].committed.transactional_id] = each
        self._abort_torn(effects)

    def forget(self, partition: int) -> None:
        """The transaction log partition is unloaded: its next coordinator decides."""
        self._torn = {
            name: each for name, each in self._torn.items() if each[0].partition != partition
        }

    def _abort_torn(self, effects: Effects) -> None:
        for name, each in sorted(self._torn.items()):
            entry = each[1]
            if entry.committed.state is not TransactionState.ONGOING:
                del self._torn[name]  # its client, or the timeout, was first
            elif entry.pending is None:
                self._ending.fence_and_abort(each, partial(self._on_aborted, name), effects)
        if self._torn and TORN_TIMER not in self._timers:
            self._timers.schedule(TORN_TIMER, RETRY_MS, self._abort_torn, effects)

    def _on_aborted(self, name: str, result: ProducerIdResult, effects: Effects) -> None:
        trace_abort("transaction-torn", name, result, effects)
        if result.error is ErrorCode.NONE:
            self._torn.pop(name, None)
