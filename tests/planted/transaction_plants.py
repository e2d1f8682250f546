"""Bugs of transactions and of the log beneath them, planted in one broker: the only one there is,
or one of three (see `one_planted`).

The number in front is that of the table in docs/internals/faults.md.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from broker_sim.core.coordinator.runtime import CoordinatorResult
from broker_sim.core.effects import Effects
from broker_sim.core.group.coordinator import GroupCoordinator
from broker_sim.core.group.requests import OffsetFetchResult
from broker_sim.core.handlers import produce
from broker_sim.core.log import appends, partition_log, producer_state, recovery, scan
from broker_sim.core.log.cleaning import Cleaning
from broker_sim.core.log.partition_log import PartitionLog
from broker_sim.core.log.producer_state import ProducerStateEntry
from broker_sim.core.log.values import AbortedTransaction, Rejection
from broker_sim.core.replies import Reply
from broker_sim.core.transaction.coordinator import EXPIRATION_TIMER, TransactionCoordinator
from broker_sim.core.transaction.ending import TransactionEnding
from broker_sim.core.transaction.markers import MarkerManager
from broker_sim.core.transaction.metadata import (
    TransactionEntry,
    TransactionMetadata,
    plan_complete,
)
from broker_sim.core.transaction.results import ProducerIdResult
from broker_sim.core.transaction.state_manager import (
    Found,
    TransactionRecord,
    TransactionShard,
    TransactionStateManager,
)
from broker_sim.core.transaction.states import TransactionState
from planted.commit_plants import replaced
from planted.one_planted import Broken, in_one_broker
from simulation.world import Plant
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import BatchHeader, MarkerType, TransactionMarker, decode_marker
from txnlog_kafka.wire.topic_partition import TopicPartition

LATE_OFFSETS_MS = 2_000
FORGOTTEN_AFTER_MS = 1_000

# --------------------------------------------------------------------------- producers


def _no_rejection(*_: object) -> None:
    """Do nothing, in place of a check that refuses."""


def _unless_added(_: Broken, parts: object, *, adds: bool) -> bool:
    """Skip the verification of producers whose Produce does not add the partition (before
    KIP-890)."""
    del parts
    return adds


def _epoch_not_checked(check: Broken, *args: Any) -> Any:
    """(1) A batch of any epoch is taken."""
    with replaced(producer_state, "check_producer_epoch", _no_rejection):
        return check(*args)


def _only_that_of_the_marker(
    check: Broken, entry: ProducerStateEntry, producer_epoch: int
) -> Rejection | None:
    """(2) The epoch that the latest marker ended is refused, and those before it are not."""
    rejection: Rejection | None = check(entry, producer_epoch)
    return rejection if producer_epoch == entry.producer_epoch - 1 else None


def _epoch_of_the_marker(check: Broken, *args: Any) -> Any:
    original = producer_state.check_producer_epoch

    def check_epoch(entry: ProducerStateEntry, producer_epoch: int) -> Rejection | None:
        return _only_that_of_the_marker(original, entry, producer_epoch)

    with replaced(producer_state, "check_producer_epoch", check_epoch):
        return check(*args)


def _window_of(count: int) -> Broken:
    """(10) So many batches of a producer are remembered, instead of five."""

    def replay(replay_data: Broken, entry: ProducerStateEntry, header: BatchHeader) -> bool:
        began: bool = replay_data(entry, header)
        entry.batches = entry.batches[-max(count, 1) :]
        return began

    return replay


# --------------------------------------------------------------------------- the coordinator


def _answered_early(
    decide: Broken,
    ending: TransactionEnding,
    found: Found,
    target: TransactionMetadata,
    reply: Reply[ProducerIdResult],
    effects: Effects,
) -> None:
    """(3) EndTxn is answered when the decision is appended, and not yet on the other replicas."""
    answers: list[ProducerIdResult] = []

    def once(result: ProducerIdResult, effects: Effects) -> None:
        if not answers:
            answers.append(result)
            reply(result, effects)

    decide(ending, found, target, once, effects)
    ends_with = plan_complete(target, effects.now_ms)
    once(ProducerIdResult(ErrorCode.NONE, ends_with.producer_id, ends_with.producer_epoch), effects)


def _open_ones_forgotten(on_loaded: Broken, shard: TransactionShard, effects: Effects) -> None:
    """(4) A coordinator that loads its log knows nothing of what is not decided."""
    shard.entries = {
        name: entry
        for name, entry in shard.entries.items()
        if entry.committed.state is not TransactionState.ONGOING
    }
    on_loaded(shard, effects)


def _no_leader_is_done(
    on_marker: Broken,
    markers: MarkerManager,
    decided: Any,
    partition: TopicPartition,
    error: ErrorCode,
    effects: Effects,
) -> None:
    """(7) A marker that was refused with NOT_LEADER_OR_FOLLOWER counts as written."""
    if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        error = ErrorCode.NONE
    on_marker(markers, decided, partition, error, effects)


def _complete_first(
    append_marker: Broken,
    markers: MarkerManager,
    decided: Any,
    partition: TopicPartition,
    effects: Effects,
) -> None:
    """(8) COMPLETE is written before the last marker is."""
    if decided.entry.unmarked == {partition} and not decided.is_completing:
        late = dataclasses.replace(decided, entry=TransactionEntry(decided.entry.committed))
        markers._append_complete(decided, effects)
        decided = late
    append_marker(markers, decided, partition, effects)


def _any_coordinator(
    check: Broken, entry: ProducerStateEntry, marker: TransactionMarker, version: int
) -> Any:
    """(9) A marker of an older coordinator epoch is taken."""
    newest = max(entry.coordinator_epoch, marker.coordinator_epoch)
    return check(entry, dataclasses.replace(marker, coordinator_epoch=newest), version)


def _expired_soon(_: Broken, coordinator: TransactionCoordinator, effects: Effects) -> None:
    """Look for expired transactional ids often enough that a run sees them go."""
    coordinator._timers.schedule(
        EXPIRATION_TIMER, FORGOTTEN_AFTER_MS, coordinator._expiration_sweep, effects
    )


def _expired_while_open(remove: Broken, manager: TransactionStateManager, effects: Effects) -> None:
    """(17) An id may expire inside a transaction, by when it was last used."""
    remove(manager, effects)
    deadline_ms = effects.now_ms - FORGOTTEN_AFTER_MS
    for shard, entry in manager.ongoing():
        if entry.committed.last_update_ms <= deadline_ms:
            tombstone = TransactionRecord(entry.committed.transactional_id, None)
            result = CoordinatorResult(records=[tombstone], reply=_no_rejection, flush=True)
            manager.runtime.write(shard, result, effects)


def _timed_out_by_wall_clock(
    _: Broken, coordinator: TransactionCoordinator, effects: Effects
) -> None:
    """(18) The wall clock says how long a transaction has gone on."""
    overdue = [
        found
        for found in coordinator._manager.ongoing()
        if found[1].committed.start_ms + found[1].committed.timeout_ms < effects.now_ms
    ]
    coordinator._abort_transactions("transaction-timed-out", overdue, effects)
    coordinator._schedule_abort(effects)


# --------------------------------------------------------------------------- group offsets


def _never_unstable(
    fetch: Broken, groups: GroupCoordinator, *args: Any, require_stable: bool, **options: Any
) -> OffsetFetchResult:
    """(15) What waits for a marker is not looked at: the old offset is given for a stable one."""
    del require_stable
    found: OffsetFetchResult = fetch(groups, *args, require_stable=False, **options)
    return found


def _materialised_later(
    on_marker: Broken,
    groups: GroupCoordinator,
    partition: int,
    producer_id: int,
    committed: bool,
    effects: Effects,
) -> None:
    """(16) Offsets become visible some time after their marker was answered (KAFKA-17507)."""

    def later(effects: Effects) -> None:
        on_marker(groups, partition, producer_id, committed, effects)

    key = ("late-offsets", f"{partition}-{producer_id}-{effects.monotonic_ms}")
    groups._timers.schedule(key, LATE_OFFSETS_MS, later, effects)


# --------------------------------------------------------------------------- the log


def _aborted_from_its_start_only(
    read: Broken, log: PartitionLog, start_offset: int, **options: Any
) -> Any:
    """(6) The aborted transactions are missing where a read begins inside of a segment."""
    found = read(log, start_offset, **options)
    begins = any(segment.base_offset == start_offset for segment in log._local.segments)
    return found if begins or found.aborted is None else dataclasses.replace(found, aborted=())


def _crc_not_checked(whole_batches: Broken, *args: Any) -> Any:
    """(20) After a crash the log ends where its index says, be its last batches whole or not."""
    with replaced(scan, "check_crc", _no_rejection):
        yield from whole_batches(*args)


def _abort_marker_dropped(
    clean: Broken, cleaning: Cleaning, header: BatchHeader, batch: bytes, *rest: Any
) -> tuple[bytes | None, AbortedTransaction | None]:
    """(30) Compaction takes an ABORT marker at once, and not after delete.retention.ms: a replica
    that has the transaction, and not the marker yet, never learns how it ended."""
    found: tuple[bytes | None, AbortedTransaction | None] = clean(cleaning, header, batch, *rest)
    marker = decode_marker(batch, 0, header) if header.is_control else None
    is_abort = marker is not None and marker.marker_type is MarkerType.ABORT
    return (None, None) if is_abort else found


_BEFORE_KIP_890 = (produce, "needs_verification", _unless_added)

TRANSACTION_PLANTS: dict[str, Plant] = {
    "epoch-not-checked": in_one_broker(
        _BEFORE_KIP_890,
        (appends, "check_producer_epoch", _no_rejection),
        (appends, "check_data_batch", _epoch_not_checked),
    ),
    "epoch-of-the-last-marker-only": in_one_broker(
        _BEFORE_KIP_890,
        (appends, "check_producer_epoch", _only_that_of_the_marker),
        (appends, "check_data_batch", _epoch_of_the_marker),
    ),
    "end-answered-before-replication": in_one_broker(
        (TransactionEnding, "_decide_transaction", _answered_early)
    ),
    "open-transactions-forgotten": in_one_broker(
        (TransactionShard, "on_loaded", _open_ones_forgotten)
    ),
    "aborted-list-missing-inside-a-segment": in_one_broker(
        (PartitionLog, "read", _aborted_from_its_start_only)
    ),
    "marker-dropped-at-a-former-leader": in_one_broker(
        (MarkerManager, "_on_marker", _no_leader_is_done)
    ),
    "complete-before-the-last-marker": in_one_broker(
        (MarkerManager, "_append_marker", _complete_first)
    ),
    "any-coordinator-epoch": in_one_broker((partition_log, "check_marker", _any_coordinator)),
    "window-of-four-batches": in_one_broker((ProducerStateEntry, "replay_data", _window_of(4))),
    "window-of-no-batch": in_one_broker((ProducerStateEntry, "duplicate_of", _no_rejection)),
    "pending-offsets-ignored": in_one_broker((GroupCoordinator, "offset_fetch", _never_unstable)),
    "offsets-materialised-later": in_one_broker(
        (GroupCoordinator, "on_marker", _materialised_later)
    ),
    "id-expires-inside-a-transaction": in_one_broker(
        (TransactionCoordinator, "_schedule_expiration", _expired_soon),
        (TransactionStateManager, "remove_expired", _expired_while_open),
    ),
    "timeouts-from-the-wall-clock": in_one_broker(
        (TransactionCoordinator, "_abort_sweep", _timed_out_by_wall_clock)
    ),
    "late-produce-joins-the-next": in_one_broker(_BEFORE_KIP_890),
    "recovered-without-crc": in_one_broker((recovery, "whole_batches", _crc_not_checked)),
    "abort-marker-compacted-early": in_one_broker(
        (Cleaning, "_clean_batch", _abort_marker_dropped)
    ),
}
"""Plants by name, for any scenario; some show only with several brokers."""
