"""What the transaction coordinator asks of the broker around it."""

from __future__ import annotations

from typing import Protocol

from broker_sim.core.coordinator.runtime import CoordinatorHost
from broker_sim.core.effects import Effects
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.records import TransactionMarker


class TransactionHost(CoordinatorHost, Protocol):
    """The broker as the transaction coordinator sees it.

    `append_marker` is the seam for other brokers: here it is local and answers at once.
    """

    def append_marker(
        self,
        topic: str,
        partition: int,
        marker: TransactionMarker,
        effects: Effects,
        *,
        transaction_version: int,
    ) -> ErrorCode:
        """Append a marker at the partition's leader, as WriteTxnMarkers would.

        The high watermark moves and readers wake; for a partition of `__consumer_offsets` the
        group coordinator has materialised or dropped the pending offsets before this returns.
        UNKNOWN_TOPIC_OR_PARTITION together with `log() is None` means that the topic was
        deleted: the partition is left out. Any other error is retried, or cancels (see markers).
        """

    def allocate_producer_id_block(self, effects: Effects) -> tuple[int, int] | None:
        """(first id, count) of a fresh block, durable before any id of it is used.

        None when it cannot be persisted now.
        """
