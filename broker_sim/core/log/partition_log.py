"""Partition log of this broker: append, read, high watermark, last stable offset, retention.

`PartitionLog` decides. Segments and files are in `local_log`, the walks of a read in `reads`, and
the state of producers is in `producer_state`.

Sources: Kafka's `UnifiedLog`. Not here: tiered storage, and decoding of records on the hot path
(except for the keys of a compacted topic).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from broker_sim.core.effects import Delete, Effects, FileSlice, Flush
from broker_sim.core.log import cut_damage, loading, recovery, retention
from broker_sim.core.log.appends import check_producers, not_appended, stamp
from broker_sim.core.log.cleanable import Cleanable, find_cleanable
from broker_sim.core.log.cleaning import CleanerLimits, Cleaning
from broker_sim.core.log.compression import Decompress
from broker_sim.core.log.config import LogConfig
from broker_sim.core.log.local_log import LocalLog
from broker_sim.core.log.producer_state import check_marker
from broker_sim.core.log.reads import ReadRange, batches_from, collect_aborted, collect_slices
from broker_sim.core.log.swap import finish_swaps
from broker_sim.core.log.timestamps import ReadBudget, find_timestamp
from broker_sim.core.log.validation import IncomingBatch, parse_append
from broker_sim.core.log.values import (
    AbortedTransaction,
    AppendOrigin,
    AppendResult,
    LogRead,
    ProducerStateView,
    Rejection,
)
from broker_sim.core.log.verification import VerificationStates
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.records import (
    BatchHeader,
    CorruptBatch,
    TransactionMarker,
    encode_marker,
    parse_header,
)
from txnlog_kafka.wire.topic_partition import TopicPartition


class PartitionLog:
    """The log of one partition. All offsets are as in the glossary: ends are exclusive."""

    def __init__(self, folder: loading.Folder, loaded: loading.LoadedLog, now_ms: int) -> None:
        self.topic = folder.topic
        self.partition = folder.partition
        self.name = TopicPartition(folder.topic, folder.partition)
        self.topic_id = folder.topic_id
        self.directory = folder.directory
        self.single_replica = not folder.is_replicated
        """The high watermark follows the log end; in a cluster it is moved from outside."""
        self._codecs = folder.codecs
        self._local = LocalLog(folder, loaded)
        self._reported_damage: set[str] = set()
        self._producers = loaded.producers
        self._log_start_offset = loaded.log_start_offset
        self.verification = VerificationStates(self._producers)
        self._last_flush_ms = now_ms
        self.leader_epoch = self._local.epochs.latest or 0
        self._loaded_end = self.log_end_offset if folder.is_replicated else 0
        """Log end at load: transactions decided below it may not be replicated (see the LSO)."""
        self.high_watermark = self.log_end_offset
        self._producers.on_high_watermark(self.high_watermark)
        if folder.is_replicated:
            reached = min(loaded.high_watermark, self.log_end_offset)
            self.high_watermark = max(reached, self.log_start_offset)

    @classmethod
    def create(cls, folder: loading.Folder, effects: Effects) -> PartitionLog:
        """A new, empty log. Removes any leftover files in its directory."""
        effects.storage.append(Delete(folder.directory))
        return cls(folder, recovery.create_log(folder, effects), effects.now_ms)

    @classmethod
    def load(
        cls, folder: loading.Folder, known: loading.KnownAtStart, effects: Effects
    ) -> PartitionLog:
        """The log as its files say, repaired where a crash left them torn.

        An absent folder is created. Raises InconsistentTopicId for the folder of another topic,
        DamagedLog where `known` says that damage may not be truncated.
        """
        storage = finish_swaps(folder.directory, folder.storage, effects)
        folder = dataclasses.replace(folder, storage=storage)
        loaded = cut_damage.load_by_policy(folder, known, effects)
        log = cls(folder, loaded, effects.now_ms)
        for offset in loaded.truncations:
            log._truncate(offset, effects)
        return log

    @property
    def config(self) -> LogConfig:
        """Its settings; appends obey a new value at once."""
        return self._local.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._local.config = config

    # ----------------------------------------------------------------------- offsets

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read. It may lie inside the first segment."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The next offset to be assigned."""
        return self._local.end_offset

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest transaction that is undecided or not yet replicated."""
        first = self._producers.first_unstable_offset()
        return None if first is None else max(first, self.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Offset below which all records are decided and replicated."""
        if self.high_watermark < self._loaded_end:
            return self.log_start_offset
        first = self.first_unstable_offset
        return self.high_watermark if first is None else min(first, self.high_watermark)

    @property
    def size_bytes(self) -> int:
        """Size of all log files in bytes."""
        return self._local.size_bytes

    @property
    def latest_epoch(self) -> int:
        """The leader epoch of the last batch, -1 when there never was one."""
        latest = self._local.epochs.latest
        return -1 if latest is None else latest

    # ----------------------------------------------------------------------- reading

    def read(
        self,
        start_offset: int,
        *,
        max_bytes: int,
        read_committed: bool,
        at_least_one_batch: bool,
        to_log_end: bool = False,
    ) -> LogRead:
        """Whole batches from `start_offset` on, below the LSO or else the high watermark, or with
        `to_log_end` all that there is, which is for other replicas.

        OFFSET_OUT_OF_RANGE outside [log start, log end]; CORRUPT_MESSAGE when the file is damaged
        there. With `at_least_one_batch` the first batch is given though it is over `max_bytes`
        (KIP-74).
        """
        local, stable = self._local, self.last_stable_offset
        offsets = (self.high_watermark, stable, self.log_start_offset)
        if not self.log_start_offset <= start_offset <= self.log_end_offset:
            return LogRead(ErrorCode.OFFSET_OUT_OF_RANGE, (), None, *offsets, 0)
        end_offset = stable if read_committed else self.high_watermark
        end_offset = self.log_end_offset if to_log_end else end_offset
        error, report = ErrorCode.NONE, ""
        slices: tuple[FileSlice, ...] = ()
        aborted: tuple[AbortedTransaction, ...] | None = None
        if read_committed or start_offset < end_offset:
            wanted = ReadRange(start_offset, end_offset, max_bytes, at_least_one_batch)
            try:
                slices, next_offset = collect_slices(local.segments, wanted, local.storage)
                if read_committed:
                    rebuild = local.rebuild_aborted
                    aborted = collect_aborted(local.segments, start_offset, next_offset, rebuild)
            except CorruptBatch as corrupt:
                slices = ()
                error, report = ErrorCode.CORRUPT_MESSAGE, self._report_damage(corrupt)
        size_bytes = sum(part.length for part in slices)
        return LogRead(error, slices, aborted, *offsets, size_bytes, report)

    def _report_damage(self, corrupt: CorruptBatch) -> str:
        """The damage, the first time that it is met; "" later."""
        report = str(corrupt)
        if report in self._reported_damage:
            return ""
        self._reported_damage.add(report)
        return report

    def offset_for_timestamp(
        self,
        timestamp_ms: int,
        decompress: Decompress | None = None,
        budget: ReadBudget | None = None,
    ) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record that is not older; None when all are.

        Looks up to the log end: the caller compares with the high watermark or the LSO. In a
        compressed batch the answer is as coarse as the batch unless `decompress` is given, and
        everywhere when the `budget`, which several lookups may share, is used up.
        Raises CorruptBatch when the file is damaged where it must be read.
        """
        return find_timestamp(
            self._local.segments,
            timestamp_ms,
            start_offset=self.log_start_offset,
            storage=self._local.storage,
            decompress=decompress,
            budget=budget or ReadBudget(),
        )

    def max_timestamp_offset(
        self, decompress: Decompress | None = None, budget: ReadBudget | None = None
    ) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record with the highest timestamp (KIP-734)."""
        newest = max(segment.max_timestamp for segment in self._local.segments)
        return None if newest < 0 else self.offset_for_timestamp(newest, decompress, budget)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) when it is not known (KIP-101)."""
        epochs, end_offset = self._local.epochs, self.log_end_offset
        if leader_epoch == self.leader_epoch >= (epochs.latest or 0):
            return leader_epoch, end_offset
        if not self.single_replica and self.latest_epoch < leader_epoch < self.leader_epoch:
            # This leader's epoch began at the log end: an epoch between has nothing here.
            return self.latest_epoch, end_offset
        return epochs.end_offset_for(leader_epoch, end_offset)

    def batches(self, start_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Whole batches from `start_offset` to the log end, read from the files, CRC checked.

        For loading a coordinator: valid while the files hold all appends, so at start, before
        anything is appended in the same step. Raises CorruptBatch at damaged bytes.
        """
        return batches_from(self._local.segments, start_offset, self._local.storage)

    # ----------------------------------------------------------------------- appending

    def append_as_leader(
        self, data: bytes, *, origin: AppendOrigin, effects: Effects, guard: int | None = None
    ) -> AppendResult:
        """Append record batches, all or none: they get offsets and the leader epoch. `origin` is
        CLIENT or COORDINATOR; `guard` is that of `verification` when the coordinator was asked,
        None where nothing needs to be verified. A refused append changes nothing.
        """
        batches = parse_append(
            bytes(data), origin=origin, config=self.config, effects=effects, codecs=self._codecs
        )
        if isinstance(batches, Rejection):
            return not_appended(batches, self.directory, self.log_start_offset)
        found = check_producers(self._producers, self.verification, batches, origin, guard)
        if found is not None:
            return not_appended(found, self.directory, self.log_start_offset)
        return self._append_stamped(batches, bytearray(data), effects)

    def append_as_follower(self, data: bytes, effects: Effects) -> AppendResult:
        """Append what the leader has in its log, with its offsets and leader epochs.

        Refused only when the bytes are not whole, valid batches: the leader has checked the rest.
        """
        origin = AppendOrigin.REPLICATION
        batches = parse_append(data, origin=origin, config=self.config, effects=effects)
        if isinstance(batches, Rejection):
            return not_appended(batches, self.directory, self.log_start_offset)
        first, end = batches[0].header.base_offset, self.log_end_offset
        check(first >= end, "replicated batch below the log end", first=first, end=end)
        return self._append_batches(
            batches, [incoming.header for incoming in batches], data, effects
        )

    def append_marker(
        self, marker: TransactionMarker, *, effects: Effects, transaction_version: int = 1
    ) -> AppendResult:
        """Append a COMMIT or ABORT marker; it decides the producer's open transaction, if any.

        Refused with INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED. A marker that was
        written before is written again: it changes nothing for readers.
        """
        entry = self._producers.entry(marker.producer_id)
        rejection = check_marker(entry, marker, transaction_version)
        if rejection is not None:
            return not_appended(rejection, self.directory, self.log_start_offset)
        data = bytearray(encode_marker(marker, timestamp=effects.now_ms))
        batch = IncomingBatch(parse_header(data), 0, marker)
        return self._append_stamped([batch], data, effects)

    def become_leader(self, leader_epoch: int) -> None:
        """Stamp later batches with this epoch, remembered with the first of them; never go back.

        The log may know a newer one than the caller: its files may be older than this log.
        """
        self.leader_epoch = max(self.leader_epoch, leader_epoch)

    def _append_stamped(
        self, batches: Sequence[IncomingBatch], buffer: bytearray, effects: Effects
    ) -> AppendResult:
        """Append with the next offsets, this leader's epoch and, if so configured, its time."""
        append_time_ms = effects.now_ms if self.config.is_log_append_time else None
        headers = stamp(buffer, batches, self.log_end_offset, self.leader_epoch, append_time_ms)
        return self._append_batches(batches, headers, bytes(buffer), effects, append_time_ms)

    def _append_batches(
        self,
        batches: Sequence[IncomingBatch],
        headers: Sequence[BatchHeader],
        data: bytes,
        effects: Effects,
        append_time_ms: int | None = None,
    ) -> AppendResult:
        """`headers` are those of `batches` as `data` has them, to be stored as they are."""
        local = self._local
        if local.must_roll(headers, len(data)):
            self.roll(effects)
        local.append(headers, data, effects)
        for incoming, header in zip(batches, headers, strict=True):
            if header.has_producer_id:
                self._replay_batch(header, incoming.marker, effects)
        if self.single_replica:
            self.advance_high_watermark(local.end_offset, effects)
        self.flush_if_many(effects)
        return AppendResult(
            ErrorCode.NONE,
            base_offset=headers[0].base_offset,
            last_offset=headers[-1].last_offset,
            log_append_time_ms=-1 if append_time_ms is None else append_time_ms,
            log_start_offset=self._log_start_offset,
        )

    def _replay_batch(
        self, header: BatchHeader, marker: TransactionMarker | None, effects: Effects
    ) -> None:
        self.verification.replay(header)
        aborted = self._producers.replay(header, marker)
        if aborted is not None:
            self._local.active.append_aborted(aborted, effects)

    # ----------------------------------------------------------------------- segments

    def roll(self, effects: Effects) -> None:
        """Close the active segment and begin a new one at the log end."""
        self._local.roll(effects)

    def apply_retention(self, effects: Effects) -> int:
        """Remove segments below the log start, and by retention.ms and retention.bytes; how many.

        Only below the high watermark, oldest first. An active segment that is due is rolled first.
        """
        below = self.remove_below_start(effects)
        limits = {"high_watermark": self.high_watermark, "now_ms": effects.now_ms}
        count = retention.due_count(self._local.segments, self.config, **limits)
        if count == 0:
            return below
        if count == len(self._local.segments):
            self.roll(effects)
        self._local.remove_oldest(count, effects)
        self._log_start_offset = max(self._log_start_offset, self._local.segments[0].base_offset)
        self._local.forget_before(self.log_start_offset, effects)
        effects.trace("log-retention", log=self.directory, start_offset=self.log_start_offset)
        return below + count

    def increase_log_start(self, log_start_offset: int, effects: Effects) -> bool:
        """Nothing below the offset may be read from now on; False when it may not already.

        Only up to the high watermark. Producers keep their states: what they wrote is gone, not
        undone. The caller makes the offset durable, then calls `remove_below_start`.
        """
        check(log_start_offset <= self.high_watermark, "log start above the high watermark")
        if log_start_offset <= self._log_start_offset:
            return False
        self._log_start_offset = log_start_offset
        self._producers.on_high_watermark(log_start_offset)
        effects.trace("log-start", log=self.directory, start_offset=log_start_offset)
        return True

    def remove_below_start(self, effects: Effects) -> int:
        """Remove the segments that lie wholly below the log start; how many."""
        return self._local.remove_below(self.log_start_offset, effects)

    # ----------------------------------------------------------------------- truncation

    def truncate_to(self, offset: int, effects: Effects) -> None:
        """Remove all batches from the one that holds the offset on, as a follower does.

        The log then ends at the offset, or below it where a batch or a gap lies around it; when it
        ends there already, only a leader epoch without a batch is forgotten. Producers,
        transactions, leader epochs and lookups are as they were when the log ended there; the high
        watermark is not above its end. When that is below the log start, the log becomes an empty
        one that begins at the offset.

        The caller sees to it before that no round of compaction is under way, that neither
        `cleaner-offset-checkpoint` nor `log-start-offset-checkpoint` is above the offset, and that
        nothing was appended in this step, for the files are read. Raises CorruptBatch, and changes
        nothing, when they are damaged where it must look. Of a crash see `LocalLog.truncate`.
        Sources: Kafka's `UnifiedLog.truncateTo`, `truncateFullyAndStartAt`.
        """
        if offset < self.log_end_offset:
            self._truncate(offset, effects)
        else:
            self._local.forget_epochs_at_end(effects)

    def _truncate(self, offset: int, effects: Effects) -> None:
        local, start = self._local, self._log_start_offset
        point = local.truncation_point(offset) if offset >= start else None
        if point is None or point.end_offset < start:
            return self.truncate_fully_and_start_at(offset, effects)
        local.truncate(offset, point, effects)
        return self._truncated()

    def truncate_fully_and_start_at(self, offset: int, effects: Effects) -> None:
        """Remove everything: the log is empty and begins at the offset, wherever it was before.

        The caller's duties are those of `truncate_to`.
        """
        self._local.truncate_fully(offset, effects)
        self._log_start_offset = offset
        self._truncated()

    def _truncated(self) -> None:
        end_offset = self.log_end_offset
        self._loaded_end = min(self._loaded_end, end_offset)
        self.high_watermark = max(min(self.high_watermark, end_offset), self.log_start_offset)
        self.leader_epoch = self._local.epochs.latest or 0

    # ----------------------------------------------------------------------- compaction

    def find_cleanable(self, cleaned_to: int | None, now_ms: int) -> Cleanable:
        """Return the range that the cleaner may compact; it has compacted up to `cleaned_to`."""
        return find_cleanable(
            self._local.segments,
            self.config,
            cleaned_to=cleaned_to,
            log_start_offset=self.log_start_offset,
            last_stable_offset=self.last_stable_offset,
            now_ms=now_ms,
        )

    def start_cleaning(self, plan: Cleanable, limits: CleanerLimits) -> Cleaning:
        """A round of compaction; the caller takes its steps, one round at a time."""
        return Cleaning(self._local, plan, self._codecs, limits)

    # ----------------------------------------------------------------------- high watermark

    def advance_high_watermark(self, next_offset: int, effects: Effects) -> None:
        """Note that all below `next_offset` is replicated: never go back, nor past the log end."""
        high_watermark = min(next_offset, self.log_end_offset)
        if high_watermark <= self.high_watermark:
            return
        self.high_watermark = high_watermark
        self._producers.on_high_watermark(high_watermark)
        lso = self.last_stable_offset
        effects.trace("high-watermark", log=self.directory, hw=high_watermark, lso=lso)

    # ----------------------------------------------------------------------- producers

    def producers(self) -> tuple[ProducerStateView, ...]:
        """Return the state of each producer, by id."""
        return self._producers.views()

    def has_open_transaction(self, producer_id: int, producer_epoch: int | None = None) -> bool:
        """True if the producer (in this epoch) has undecided data here."""
        return self._producers.has_open_transaction(producer_id, producer_epoch)

    def expire_producers(self, effects: Effects) -> None:
        """Forget producers idle for producer.id.expiration.ms without an open transaction."""
        expiration_ms = self.config.producer_id_expiration_ms
        self._producers.remove_expired(effects.now_ms, expiration_ms)
        self.verification.remove_expired(effects.now_ms, expiration_ms)

    # ----------------------------------------------------------------------- durability

    def flush_paths(self) -> tuple[str, ...]:
        """Log files with appends that are not flushed; what else there is, recovery rebuilds."""
        return self._local.flush_paths()

    def flushed(self, effects: Effects) -> None:
        """The caller has emitted a Flush of `flush_paths` after the last append."""
        self._local.flushed()
        self._last_flush_ms = effects.now_ms

    def flush(self, effects: Effects) -> None:
        """Emit a Flush of what is not flushed."""
        if self.flush_paths():
            effects.storage.append(Flush(self.flush_paths()))
            self.flushed(effects)

    def flush_if_many(self, effects: Effects) -> None:
        """Flush when flush.messages of records are not flushed."""
        if self._local.unflushed_count >= self.config.flush_messages:
            self.flush(effects)

    def flush_if_due(self, effects: Effects) -> None:
        """Flush when the last time was flush.ms ago."""
        if effects.now_ms - self._last_flush_ms >= self.config.flush_ms:
            self.flush(effects)

    @property
    def recovery_point(self) -> int:
        """After a crash the log is read from here on."""
        return self._local.recovery_point

    def checkpoint(self, effects: Effects) -> bool:
        """Move the recovery point where that is worth it (see `LocalLog`)."""
        return self._local.checkpoint(effects)

    def close(self, effects: Effects) -> None:
        """A clean stop: all flushed, producer snapshot and segment states at the log end."""
        self._local.close(effects)

    def delete(self, effects: Effects) -> None:
        """Remove the partition."""
        self._local.delete(effects)
