"""End of a transaction: PREPARE decides, and the markers follow; by EndTxn, or by fencing.

`end_txn` decides the answer to an EndTxn; this module carries the end out. The data is durable
before the decision is, and the client goes on with the producer id and epoch that COMPLETE will
hold.
"""

from __future__ import annotations

from broker_sim.core.config import BrokerConfig
from broker_sim.core.coordinator.partition_writer import PartitionWriter
from broker_sim.core.coordinator.runtime import flush_logs
from broker_sim.core.effects import Effects
from broker_sim.core.replies import Reply
from broker_sim.core.transaction.end_txn import (
    EndTxnDecision,
    EndTxnRequest,
    decide_end_txn_v1,
    decide_end_txn_v2,
)
from broker_sim.core.transaction.markers import MarkerManager
from broker_sim.core.transaction.metadata import (
    TRANSACTION_VERSION_2,
    TransactionEntry,
    TransactionMetadata,
    plan_end,
    plan_fencing_abort,
)
from broker_sim.core.transaction.producer_ids import ProducerIdManager
from broker_sim.core.transaction.results import ProducerIdResult
from broker_sim.core.transaction.state_manager import Found, TransactionStateManager
from broker_sim.core.transaction.states import TransactionState
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import NO_PRODUCER_ID

_S = TransactionState
_E = ErrorCode


class TransactionEnding:
    """See the module."""

    def __init__(
        self,
        config: BrokerConfig,
        writer: PartitionWriter,
        manager: TransactionStateManager,
        markers: MarkerManager,
        producer_ids: ProducerIdManager,
    ) -> None:
        self._config = config
        self._writer = writer
        self._manager = manager
        self._markers = markers
        self._producer_ids = producer_ids

    def end(
        self,
        found: Found,
        request: EndTxnRequest,
        client_transaction_version: int,
        reply: Reply[ProducerIdResult],
        effects: Effects,
    ) -> None:
        """EndTxn, see `TransactionCoordinator.end_txn`."""
        entry = found[1]
        bumps = client_transaction_version >= TRANSACTION_VERSION_2
        decision = self._decide_end_txn(entry, request, bumps=bumps)
        if isinstance(decision, ErrorCode):
            if decision is not _E.NONE or not bumps:
                return reply(ProducerIdResult(decision), effects)
            current = entry.committed
            ids = (current.producer_id, current.producer_epoch)
            return reply(ProducerIdResult(_E.NONE, *ids), effects)
        next_producer_id = self._next_producer_id(entry.committed, effects, bumps=bumps)
        if next_producer_id is None:
            return reply(ProducerIdResult(_E.COORDINATOR_LOAD_IN_PROGRESS), effects)
        target = plan_end(
            entry.committed,
            decision,
            effects.now_ms,
            client_transaction_version=client_transaction_version if bumps else 0,
            next_producer_id=next_producer_id,
        )
        return self._decide_transaction(found, target, reply, effects)

    def _decide_end_txn(
        self, entry: TransactionEntry, request: EndTxnRequest, *, bumps: bool
    ) -> EndTxnDecision:
        is_pending = entry.pending is not None
        if not bumps:
            return decide_end_txn_v1(entry.committed, request, is_pending=is_pending)
        return decide_end_txn_v2(
            entry.committed,
            request,
            is_pending=is_pending,
            fence_commit_after_abort=self._config.boolean("transaction.fence.commit.after.abort"),
        )

    def _next_producer_id(
        self, current: TransactionMetadata, effects: Effects, *, bumps: bool
    ) -> int | None:
        """Return the producer id for the client after an end that uses up the epoch, else -1.

        None when no producer id can be had now.
        """
        if not bumps or not current.is_epoch_exhausted:
            return NO_PRODUCER_ID
        return self._producer_ids.generate(effects)

    def _decide_transaction(
        self,
        found: Found,
        target: TransactionMetadata,
        reply: Reply[ProducerIdResult],
        effects: Effects,
    ) -> None:
        """Append PREPARE; once it is committed the transaction is decided. Then the markers."""
        shard, entry = found
        if target.state is _S.PREPARE_COMMIT and self._config.boolean("flush.on.commit"):
            # The decision says "all of it is there", so the data must be durable before it.
            flush_logs(self._writer, entry.committed.partitions, effects)

        def on_decided(error: ErrorCode, effects: Effects) -> None:
            if error is not _E.NONE:
                return reply(ProducerIdResult(error), effects)
            self._markers.begin(shard, entry, effects)
            if target.client_transaction_version < TRANSACTION_VERSION_2:
                return reply(ProducerIdResult(_E.NONE), effects)
            # What COMPLETE will hold, also while it is still pending: after the last epoch that
            # is the new producer id at 0 (KAFKA-18660), never the epoch 32767 of PREPARE.
            ends_with = entry.pending or entry.committed
            ids = (ends_with.producer_id, ends_with.producer_epoch)
            return reply(ProducerIdResult(_E.NONE, *ids), effects)

        self._manager.change(shard, entry, target, on_decided, effects)

    def fence_and_abort(
        self, found: Found, reply: Reply[ProducerIdResult], effects: Effects
    ) -> None:
        """Stop the producer of an ongoing transaction and abort it, as the server's version."""
        entry = found[1]
        version = self._config.integer("transaction.version")
        next_producer_id = self._next_producer_id(
            entry.committed, effects, bumps=version >= TRANSACTION_VERSION_2
        )
        if next_producer_id is None:
            return reply(ProducerIdResult(_E.COORDINATOR_LOAD_IN_PROGRESS), effects)
        target = plan_fencing_abort(
            entry.committed,
            effects.now_ms,
            transaction_version=version,
            next_producer_id=next_producer_id,
        )
        return self._decide_transaction(found, target, reply, effects)
