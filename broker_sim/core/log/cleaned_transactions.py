"""Decide, batch by batch, which data is of aborted transactions and which markers may go.

The cleaner walks a log from its start. Data of an aborted transaction may go at once. A marker may
go if the walk met no batch of its transaction before it. As long as such a batch is left, readers
and recovery need the marker; for an abort they also need the entry in the transaction index.

Source: Kafka's `CleanedTransactionMetadata`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from broker_sim.core.log.values import AbortedTransaction
from txnlog_kafka.wire.records import BatchHeader, MarkerType, TransactionMarker


class CleanedTransactions:
    """The transactions that are open at the place the walk has come to."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, AbortedTransaction]] = []
        """Aborted ones that begin further on: a heap by first offset."""
        self._aborted: dict[int, AbortedTransaction] = {}
        self._aborted_seen: set[int] = set()
        """Producers of aborted transactions of which a batch was met."""
        self._committed: set[int] = set()

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Tell of the aborted transactions of the next part of the log; again does no harm."""
        for entry in transactions:
            heapq.heappush(self._waiting, (entry.first_offset, entry.producer_id, entry))

    def on_data(self, header: BatchHeader) -> bool:
        """A data batch is next. True when it belongs to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._aborted_seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def on_control(
        self, header: BatchHeader, marker: TransactionMarker | None
    ) -> tuple[bool, AbortedTransaction | None]:
        """A control batch is next: (may it go, the index entry that must stay with it).

        An emptied one may go: its transaction was gone when it was emptied. One of a kind we do
        not know stays.
        """
        self._begin_up_to(header.last_offset)
        if marker is None:
            return header.record_count == 0, None
        producer_id = header.producer_id
        if marker.marker_type is MarkerType.COMMIT:
            had_data = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_data, None
        entry = self._aborted.pop(producer_id, None)
        if entry is None or producer_id not in self._aborted_seen:
            return True, None
        self._aborted_seen.discard(producer_id)
        return False, entry

    def _begin_up_to(self, record_offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= record_offset:
            _, producer_id, entry = heapq.heappop(self._waiting)
            self._aborted.setdefault(producer_id, entry)
