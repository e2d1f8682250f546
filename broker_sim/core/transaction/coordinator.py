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
from functools import partial

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.producer_ids import ProducerIdBlocks
from broker_sim.core.coordinator.marker_sender import MarkerSender
from broker_sim.core.coordinator.partition_writer import PartitionWriter
from broker_sim.core.coordinator.runtime import partition_for
from broker_sim.core.coordinator.timers import KeyedTimers
from broker_sim.core.effects import Effects
from broker_sim.core.log import PartitionLog
from broker_sim.core.replies import Reply
from broker_sim.core.transaction.checks import refuse_add, refuse_init, refuse_verify
from broker_sim.core.transaction.end_txn import EndTxnRequest
from broker_sim.core.transaction.ending import TransactionEnding
from broker_sim.core.transaction.listing import describe_transaction, list_transactions
from broker_sim.core.transaction.markers import MarkerManager
from broker_sim.core.transaction.metadata import (
    TransactionEntry,
    TransactionMetadata,
    new_transaction,
    plan_add_partitions,
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
from broker_sim.core.transaction.state_manager import (
    Found,
    TransactionShard,
    TransactionStateManager,
)
from broker_sim.core.transaction.states import PREPARED, TransactionState
from broker_sim.core.transaction.torn import TornTransactions
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from txnlog_kafka.wire.topic_partition import GROUP_METADATA_TOPIC, TopicPartition

TIMEOUT_TIMER = ("transaction-abort-timed-out",)
EXPIRATION_TIMER = ("transactional-id-expiration",)

_S = TransactionState
_E = ErrorCode


class TransactionCoordinator:
    """Coordinates the transactional ids of the partitions that were loaded."""

    def __init__(
        self,
        config: BrokerConfig,
        writer: PartitionWriter,
        sender: MarkerSender,
        producer_ids: ProducerIdBlocks,
    ) -> None:
        self._config = config
        self._offsets_partition_count = config.integer("offsets.topic.num.partitions")
        self._timers = KeyedTimers()
        self.on_timer = self._timers.fire
        self._producer_ids = ProducerIdManager(producer_ids)
        self._manager = TransactionStateManager(config, writer, self._timers)
        self.partition_for = self._manager.runtime.partition_for
        self._markers = MarkerManager(config, writer, sender, self._manager, self._timers)
        self._ending = TransactionEnding(
            config, writer, self._manager, self._markers, self._producer_ids
        )
        self._torn = TornTransactions(self._ending, self._timers)
        self._is_active = False

    # ---------------------------------------------------------------- life

    def start(self, effects: Effects, *, abort_open: bool = False) -> None:
        """Begin the periodic sweeps. Before this, DescribeTransactions and ListTransactions
        answer COORDINATOR_NOT_AVAILABLE. `abort_open` first aborts every ongoing transaction.
        """
        self._is_active = True
        if abort_open:
            self._torn.abort(self._manager.ongoing(), effects)
        self._schedule_abort(effects)
        self._schedule_expiration(effects)

    def resize(self, topic: str, partition_count: int) -> None:
        """An internal topic exists now, with so many partitions."""
        if topic == GROUP_METADATA_TOPIC:
            self._offsets_partition_count = partition_count
        else:
            self._manager.runtime.resize(partition_count)

    def load(
        self, partition: int, log: PartitionLog, effects: Effects, *, is_torn: bool = False
    ) -> None:
        """This broker leads the partition: replay its log, then, when that is committed, finish
        what was decided.

        The coordinator epoch is the log's leader epoch. Logs of the data partitions and the
        group coordinator must be loaded before, since markers are written at once.
        """
        self._markers.forget(partition)
        self._torn.forget(partition)
        on_loaded = partial(self._finish_decided, is_torn=is_torn)
        self._manager.runtime.load(partition, log, on_loaded, effects)

    def _finish_decided(self, shard: TransactionShard, effects: Effects, *, is_torn: bool) -> None:
        for _, entry in sorted(shard.entries.items()):
            if entry.committed.state in PREPARED:
                self._markers.begin(shard, entry, effects)
        if is_torn:
            found = [each for each in self._manager.ongoing() if each[0] is shard]
            self._torn.abort(found, effects)

    def announce(
        self, partition: int, log: PartitionLog, effects: Effects, *, is_torn: bool
    ) -> None:
        """This broker leads the partition from here on: it will be loaded. `is_torn`: nobody has
        gone on with it while this machine was down, so what is ongoing in it is aborted."""
        self.unload(partition, effects)
        load = partial(self.load, partition, log, is_torn=is_torn)
        self._manager.runtime.announce(partition, load, effects)

    def unload(self, partition: int, effects: Effects) -> None:
        """Another broker leads the partition now: forget it; requests get NOT_COORDINATOR."""
        self._markers.forget(partition)
        self._torn.forget(partition)
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
            return self._ending.fence_and_abort((shard, entry), partial(aborted, reply), effects)
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
        if not 0 < timeout_ms <= self._config.integer("transaction.max.timeout.ms"):
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
        """Check each partition: NONE if it is in the transaction, else TRANSACTION_ABORTABLE.

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
    ) -> None:
        """AddOffsetsToTxn: the group's partition of `__consumer_offsets` joins the transaction."""
        partition = partition_for(group_id, self._offsets_partition_count)
        self.add_partitions(
            transactional_id,
            [TopicPartition(GROUP_METADATA_TOPIC, partition)],
            reply,
            effects,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
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
        if committed and transactional_id in self._torn:
            return reply(ProducerIdResult(_E.COORDINATOR_LOAD_IN_PROGRESS), effects)
        request = EndTxnRequest(producer_id, producer_epoch, committed)
        return self._ending.end(found, request, client_transaction_version, reply, effects)

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
        interval_ms = self._config.integer(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms"
        )
        self._timers.schedule(TIMEOUT_TIMER, interval_ms, self._abort_sweep, effects)

    def _abort_sweep(self, effects: Effects) -> None:
        overdue = self._manager.timed_out(effects.monotonic_ms)
        self._abort_transactions("transaction-timed-out", overdue, effects)
        self._schedule_abort(effects)

    def _abort_transactions(self, why: str, found: Iterable[Found], effects: Effects) -> None:
        for each in found:
            traced = partial(trace_abort, why, each[1].committed.transactional_id)
            self._ending.fence_and_abort(each, traced, effects)

    def _schedule_expiration(self, effects: Effects) -> None:
        interval_ms = self._config.integer(
            "transaction.remove.expired.transaction.cleanup.interval.ms"
        )
        self._timers.schedule(EXPIRATION_TIMER, interval_ms, self._expiration_sweep, effects)

    def _expiration_sweep(self, effects: Effects) -> None:
        self._manager.remove_expired(effects)
        self._schedule_expiration(effects)
