"""The transaction coordinator: each request checked in Kafka's order, then one change appended.

Rules for this file: a request is answered by a value, never by an exception; it changes nothing
but through `TransactionStateManager.change`. A request that may change something has a `reply`,
called once: in this step, or when its record is committed. Source of every check and its order:
Kafka's `TransactionCoordinator`, the 4.x line. What the codes become in old request versions
(PRODUCER_FENCED to INVALID_PRODUCER_EPOCH) is the handlers' business.

The decision is PREPARE in the log. Once that is committed, with one replica in the same step, the
markers follow, and COMPLETE when they are committed: after it in the order of storage operations,
so a crash may leave any prefix of them; a load goes on from there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial

from broker_sim.core.controller.producer_ids import ProducerIdBlocks
from broker_sim.core.coordinator.marker_sender import MarkerSender
from broker_sim.core.coordinator.partition_writer import PartitionWriter
from broker_sim.core.coordinator.runtime import flush_logs, partition_for
from broker_sim.core.coordinator.timers import KeyedTimers
from broker_sim.core.effects import Effects, TimerKey
from broker_sim.core.log import PartitionLog
from broker_sim.core.replies import Reply
from broker_sim.core.transaction.checks import refuse_add, refuse_init, refuse_verify
from broker_sim.core.transaction.config import TransactionConfig
from broker_sim.core.transaction.end_txn import (
    EndTxnDecision,
    EndTxnRequest,
    decide_end_txn_v1,
    decide_end_txn_v2,
)
from broker_sim.core.transaction.listing import describe_transaction, list_transactions
from broker_sim.core.transaction.markers import MarkerManager
from broker_sim.core.transaction.metadata import (
    TRANSACTION_VERSION_2,
    TransactionEntry,
    TransactionMetadata,
    new_transaction,
    plan_add_partitions,
    plan_end,
    plan_fence,
    plan_fencing_abort,
    plan_producer_epoch_bump,
    plan_producer_id_rotation,
)
from broker_sim.core.transaction.producer_ids import ProducerIdManager
from broker_sim.core.transaction.results import (
    ProducerIdResult,
    TransactionDescription,
    TransactionFilters,
    TransactionListing,
    aborted,
    given,
    trace_abort,
)
from broker_sim.core.transaction.state_manager import TransactionShard, TransactionStateManager
from broker_sim.core.transaction.states import PREPARED, TransactionState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from txnlog_spark.wire.topics import GROUP_METADATA_TOPIC, TopicPartition

TIMEOUT_TIMER = ("transaction-abort-timed-out",)
EXPIRATION_TIMER = ("transactional-id-expiration",)
LOAD_TIMER = "transaction-load"

_S = TransactionState
_E = ErrorCode
Found = tuple[TransactionShard, TransactionEntry]


class TransactionCoordinator:
    """Coordinates the transactional ids of the partitions that were loaded."""

    def __init__(
        self,
        config: TransactionConfig,
        writer: PartitionWriter,
        sender: MarkerSender,
        producer_ids: ProducerIdBlocks,
    ) -> None:
        self._config = config
        self._writer = writer
        self._timers = KeyedTimers()
        self._producer_ids = ProducerIdManager(producer_ids)
        self._manager = TransactionStateManager(config, writer)
        self._markers = MarkerManager(config, writer, sender, self._manager, self._timers)
        self._is_active = False

    # ---------------------------------------------------------------- life

    def start(self, effects: Effects, *, abort_open: bool = False) -> None:
        """Begin the periodic sweeps. Before this, DescribeTransactions and ListTransactions
        answer COORDINATOR_NOT_AVAILABLE. `abort_open` first aborts every ongoing transaction.
        """
        self._is_active = True
        if abort_open:
            self._abort_all("transaction-torn", self._manager.ongoing(), effects)
        self._schedule_abort(effects)
        self._schedule_expiration(effects)

    def on_timer(self, key: TimerKey, effects: Effects) -> None:
        """A timer fired; keys of others, stale and unknown keys are ignored."""
        self._timers.fire(key, effects)

    def resize(self, topic: str, partition_count: int) -> None:
        """An internal topic exists now, with so many partitions."""
        if topic == GROUP_METADATA_TOPIC:
            self._config = replace(self._config, offsets_partition_count=partition_count)
        else:
            self._manager.runtime.resize(partition_count)

    def partition_for(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` whose leader coordinates this id."""
        return self._manager.runtime.partition_for(transactional_id)

    def load(self, partition: int, log: PartitionLog, effects: Effects) -> None:
        """This broker leads the partition: replay its log, then, when that is committed, finish
        what was decided.

        The coordinator epoch is the log's leader epoch. Logs of the data partitions and the
        group coordinator must be loaded before, since markers are written at once.
        """
        self._markers.forget(partition)
        self._manager.runtime.load(partition, log, self._finish_decided, effects)

    def _finish_decided(self, shard: TransactionShard, effects: Effects) -> None:
        for _, entry in sorted(shard.entries.items()):
            if entry.committed.state in PREPARED:
                self._markers.begin(shard, entry, effects)

    def announce(self, partition: int, log: PartitionLog, effects: Effects) -> None:
        """This broker leads the partition from here on: load it in a step of its own, in which
        the files hold all that was appended."""
        self.unload(partition, effects)
        self._manager.runtime.announce(partition, effects)
        load = partial(self.load, partition, log)
        self._timers.schedule((LOAD_TIMER, str(partition)), 0, load, effects)

    def unload(self, partition: int, effects: Effects) -> None:
        """Another broker leads the partition now: forget it; requests get NOT_COORDINATOR."""
        self._timers.cancel((LOAD_TIMER, str(partition)), effects)
        self._markers.forget(partition)
        self._manager.runtime.unload(partition, effects)

    # ---------------------------------------------------------------- InitProducerId

    def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        reply: Reply[ProducerIdResult],
        effects: Effects,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> None:
        """A producer id and epoch that fence every older holder of `transactional_id`.

        `producer_id` and `producer_epoch` are what the client holds (KIP-360), both or neither.
        An ongoing transaction is aborted and the answer is CONCURRENT_TRANSACTIONS: the client
        asks again.
        """
        if (producer_id == NO_PRODUCER_ID) != (producer_epoch == NO_PRODUCER_EPOCH):
            return reply(ProducerIdResult(_E.INVALID_REQUEST), effects)
        if transactional_id is None:
            return reply(self._init_idempotent(effects), effects)
        shard = self._find_to_init(transactional_id, timeout_ms)
        if isinstance(shard, ErrorCode):
            return reply(ProducerIdResult(shard), effects)
        entry = shard.entries.get(transactional_id)
        expected = None if producer_id == NO_PRODUCER_ID else (producer_id, producer_epoch)
        if entry is None:
            # What the client believes to hold does not matter: the id is new, or has expired.
            entry, expected = self._new_entry(transactional_id, timeout_ms, effects), None
        if entry is None:
            return reply(ProducerIdResult(_E.COORDINATOR_LOAD_IN_PROGRESS), effects)
        refusal = refuse_init(entry, expected)
        if refusal is not _E.NONE:
            return reply(ProducerIdResult(refusal), effects)
        if entry.committed.state is _S.ONGOING:
            return self._fence_and_abort(shard, entry, partial(aborted, reply), effects)
        expected_epoch = None if expected is None else producer_epoch
        target = self._plan_init(entry.committed, timeout_ms, expected_epoch, effects)
        if isinstance(target, ErrorCode):
            return reply(ProducerIdResult(target), effects)
        ids = ProducerIdResult(_E.NONE, target.producer_id, target.producer_epoch)
        on_written = partial(given, reply, ids)
        return self._manager.change(shard, entry, target, on_written, effects)

    def _init_idempotent(self, effects: Effects) -> ProducerIdResult:
        producer_id = self._producer_ids.generate(effects)
        if producer_id is None:
            return ProducerIdResult(_E.COORDINATOR_LOAD_IN_PROGRESS)
        return ProducerIdResult(_E.NONE, producer_id, 0)

    def _find_to_init(self, transactional_id: str, timeout_ms: int) -> TransactionShard | ErrorCode:
        if not transactional_id:
            return _E.INVALID_REQUEST
        if not 0 < timeout_ms <= self._config.timeout_ms_max:
            return _E.INVALID_TRANSACTION_TIMEOUT
        return self._manager.find(transactional_id)

    def _new_entry(
        self, transactional_id: str, timeout_ms: int, effects: Effects
    ) -> TransactionEntry | None:
        """An id that is not in the log; None when no producer id can be had now."""
        producer_id = self._producer_ids.generate(effects)
        if producer_id is None:
            return None
        return TransactionEntry(
            new_transaction(transactional_id, producer_id, timeout_ms, effects.now_ms)
        )

    def _plan_init(
        self,
        current: TransactionMetadata,
        timeout_ms: int,
        expected_epoch: int | None,
        effects: Effects,
    ) -> TransactionMetadata | ErrorCode:
        if current.is_epoch_exhausted:
            if expected_epoch not in (None, current.producer_epoch):
                return _E.UNKNOWN_SERVER_ERROR  # Kafka has no better word for any other epoch
            producer_id = self._producer_ids.generate(effects)
            if producer_id is None:
                return _E.COORDINATOR_LOAD_IN_PROGRESS
            return plan_producer_id_rotation(
                current,
                producer_id,
                timeout_ms,
                effects.now_ms,
                keep_last_epoch=expected_epoch is not None,
            )
        target = plan_producer_epoch_bump(
            current, timeout_ms, effects.now_ms, expected_epoch=expected_epoch
        )
        return _E.PRODUCER_FENCED if target is None else target

    # ---------------------------------------------------------------- partitions

    def add_partitions(
        self,
        transactional_id: str,
        partitions: Collection[TopicPartition],
        reply: Reply[ErrorCode],
        effects: Effects,
        *,
        producer_id: int,
        producer_epoch: int,
        client_transaction_version: int = 0,
    ) -> None:
        """AddPartitionsToTxn; also the implicit add of Produce v12 and TxnOffsetCommit v5.

        `client_transaction_version` is 2 when the client speaks version 2, else 0. One answer
        for all partitions; NONE means that they are in the transaction, durably.
        """
        found = self._manager.find_entry(transactional_id)
        if isinstance(found, ErrorCode):
            return reply(found, effects)
        shard, entry = found
        refusal = refuse_add(entry, producer_id, producer_epoch)
        current = entry.committed
        is_there = current.state is _S.ONGOING and current.partitions.issuperset(partitions)
        if refusal is not _E.NONE or is_there:
            return reply(refusal, effects)
        target = plan_add_partitions(
            current,
            partitions,
            effects.now_ms,
            client_transaction_version=client_transaction_version,
        )
        return self._manager.change(shard, entry, target, reply, effects)

    def verify_partitions(
        self,
        transactional_id: str,
        partitions: Collection[TopicPartition],
        *,
        producer_id: int,
        producer_epoch: int,
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether each partition is in the transaction: NONE or TRANSACTION_ABORTABLE.

        A transition under way is not looked at: the append itself checks once more (KAFKA-14904).
        """
        found = self._manager.find_entry(transactional_id)
        if isinstance(found, ErrorCode):
            return dict.fromkeys(partitions, found)
        current = found[1].committed
        refusal = refuse_verify(current, producer_id, producer_epoch)
        if refusal is not _E.NONE:
            return dict.fromkeys(partitions, refusal)
        return {
            partition: _E.NONE if partition in current.partitions else _E.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def add_offsets(
        self,
        transactional_id: str,
        group_id: str,
        reply: Reply[ErrorCode],
        effects: Effects,
        *,
        producer_id: int,
        producer_epoch: int,
        client_transaction_version: int = 0,
    ) -> None:
        """AddOffsetsToTxn: the group's partition of `__consumer_offsets` joins the transaction."""
        partition = partition_for(group_id, self._config.offsets_partition_count)
        self.add_partitions(
            transactional_id,
            [TopicPartition(GROUP_METADATA_TOPIC, partition)],
            reply,
            effects,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            client_transaction_version=client_transaction_version,
        )

    # ---------------------------------------------------------------- EndTxn

    def end_txn(
        self,
        transactional_id: str,
        reply: Reply[ProducerIdResult],
        effects: Effects,
        *,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        client_transaction_version: int = 0,
    ) -> None:
        """EndTxn. Version 2 (request version 5 on) answers the ids to go on with.

        NONE means decided and durable, or the retry of what was decided so.
        """
        found = self._manager.find_entry(transactional_id)
        if isinstance(found, ErrorCode):
            return reply(ProducerIdResult(found), effects)
        shard, entry = found
        request = EndTxnRequest(producer_id, producer_epoch, committed)
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
        return self._decide(shard, entry, target, reply, effects)

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
            fence_commit_after_abort=self._config.fence_commit_after_abort,
        )

    def _next_producer_id(
        self, current: TransactionMetadata, effects: Effects, *, bumps: bool
    ) -> int | None:
        """Where the client goes on after an end that uses up the epoch, -1 when it does not.

        None when no producer id can be had now.
        """
        if not bumps or not current.is_epoch_exhausted:
            return NO_PRODUCER_ID
        return self._producer_ids.generate(effects)

    def _decide(
        self,
        shard: TransactionShard,
        entry: TransactionEntry,
        target: TransactionMetadata,
        reply: Reply[ProducerIdResult],
        effects: Effects,
    ) -> None:
        """Append PREPARE; once it is committed the transaction is decided. Then the markers."""
        if target.state is _S.PREPARE_COMMIT and self._config.flush_on_commit:
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

    def _fence_and_abort(
        self,
        shard: TransactionShard,
        entry: TransactionEntry,
        reply: Reply[ProducerIdResult],
        effects: Effects,
    ) -> None:
        """Stop the producer of an ongoing transaction and abort it, as the server's version."""
        version = self._config.transaction_version
        fenced = entry.prepare(plan_fence(entry.committed))
        try:
            next_producer_id = self._next_producer_id(
                entry.committed, effects, bumps=version >= TRANSACTION_VERSION_2
            )
        finally:
            # The fence itself is never stored: it goes on as PREPARE_ABORT, with the raised epoch.
            entry.cancel()
        if next_producer_id is None:
            return reply(ProducerIdResult(_E.COORDINATOR_LOAD_IN_PROGRESS), effects)
        target = plan_fencing_abort(
            entry.committed,
            fenced,
            effects.now_ms,
            transaction_version=version,
            next_producer_id=next_producer_id,
        )
        return self._decide(shard, entry, target, reply, effects)

    # ---------------------------------------------------------------- admin

    def describe(self, transactional_id: str) -> TransactionDescription:
        """DescribeTransactions, for one id."""
        if not self._is_active:
            return TransactionDescription(_E.COORDINATOR_NOT_AVAILABLE, transactional_id)
        return describe_transaction(self._manager, transactional_id)

    def list_transactions(self, now_ms: int, filters: TransactionFilters) -> TransactionListing:
        """ListTransactions: all that pass every filter that is given."""
        if not self._is_active:
            return TransactionListing(_E.COORDINATOR_NOT_AVAILABLE)
        if self._manager.runtime.is_loading():
            return TransactionListing(_E.COORDINATOR_LOAD_IN_PROGRESS)
        return list_transactions(self._manager, now_ms, filters)

    # ---------------------------------------------------------------- sweeps

    def _schedule_abort(self, effects: Effects) -> None:
        self._timers.schedule(
            TIMEOUT_TIMER, self._config.abort_timed_out_interval_ms, self._abort_sweep, effects
        )

    def _abort_sweep(self, effects: Effects) -> None:
        overdue = self._manager.timed_out(effects.monotonic_ms)
        self._abort_all("transaction-timed-out", overdue, effects)
        self._schedule_abort(effects)

    def _abort_all(self, why: str, found: Iterable[Found], effects: Effects) -> None:
        for shard, entry in found:
            traced = partial(trace_abort, why, entry.committed.transactional_id)
            self._fence_and_abort(shard, entry, traced, effects)

    def _schedule_expiration(self, effects: Effects) -> None:
        self._timers.schedule(
            EXPIRATION_TIMER,
            self._config.remove_expired_interval_ms,
            self._expiration_sweep,
            effects,
        )

    def _expiration_sweep(self, effects: Effects) -> None:
        self._manager.remove_expired(effects)
        self._schedule_expiration(effects)
