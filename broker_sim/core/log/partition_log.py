"""One partition on this broker: append, read, high watermark, last stable offset, retention.

Its segments and files are in `local_log`, what it knows of producers in `producer_state`, the
questions to it in `log_view`; here all changes are decided.

Sources: Kafka's `UnifiedLog`. What it does not do: tiered storage, decoding of records on
the hot path (but for the keys of a topic that is compacted).
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_sim.core.effects import (
    Delete,
    Effects,
    Flush,
    Rename,
    Storage,
    check,
)
from broker_sim.core.log import files, loading, recovery, retention
from broker_sim.core.log.appends import AppendContext, DuplicateBatch, check_producers, stamp
from broker_sim.core.log.cleanable import Cleanable, find_cleanable
from broker_sim.core.log.cleaning import CleanerLimits, Cleaning
from broker_sim.core.log.compression import NO_CODECS, Codecs
from broker_sim.core.log.config import LogConfig
from broker_sim.core.log.log_view import LogView
from broker_sim.core.log.producer_state import (
    check_marker,
    check_producer_epoch,
)
from broker_sim.core.log.swap import finish_swaps
from broker_sim.core.log.validation import IncomingBatch, parse_append
from broker_sim.core.log.values import (
    AbortedTransaction,
    AppendOrigin,
    AppendResult,
    Rejection,
)
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.records import (
    BatchHeader,
    TransactionMarker,
    encode_marker,
    parse_header,
)


class PartitionLog(LogView):
    """The log of one partition. All offsets are as in the glossary: ends are exclusive."""

    @classmethod
    def create(
        cls,
        *,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        effects: Effects,
        storage: Storage | None = None,
        codecs: Codecs = NO_CODECS,
    ) -> PartitionLog:
        """A new, empty log. Removes any leftover files in its directory.

        Without `storage` only what stands in memory can be read: `read` works, lookups by
        timestamp are as coarse as a batch, and `batches` cannot be used.
        """
        directory = files.directory_name(topic, partition)
        effects.storage.append(Delete(directory))
        folder = loading.Folder(directory, topic_id, config, storage, codecs)
        loaded = recovery.create_log(folder, effects)
        return cls(topic, partition, folder, loaded, effects.now_ms)

    @classmethod
    def load(
        cls,
        *,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        storage: Storage,
        trust: loading.Trust,
        effects: Effects,
        codecs: Codecs = NO_CODECS,
    ) -> PartitionLog:
        """The log as its files say, repaired where a crash left them torn.

        An absent folder is created. Raises InconsistentTopicId for the folder of another topic,
        DamagedLog where `trust` says that damage may not be truncated.
        """
        directory = files.directory_name(topic, partition)
        storage = finish_swaps(directory, storage, effects)
        folder = loading.Folder(directory, topic_id, config, storage, codecs)
        loaded = recovery.load_log(folder, storage, trust, effects)
        return cls(topic, partition, folder, loaded, effects.now_ms)

    # ----------------------------------------------------------------------- appending

    def append(
        self,
        data: bytes | bytearray,
        *,
        origin: AppendOrigin,
        effects: Effects,
        verified: bool = True,
    ) -> AppendResult:
        """Append one or more record batches, all or none.

        CLIENT and COORDINATOR batches get offsets and the leader epoch; REPLICATION keeps both.
        `verified` says that the transaction coordinator has confirmed the partition (or that no
        verification is asked for). A refused append changes nothing.
        """
        batches = parse_append(
            bytes(data), origin=origin, config=self.config, effects=effects, codecs=self._codecs
        )
        if isinstance(batches, Rejection):
            return self._refused(batches)
        context = AppendContext(origin, verified)
        verdict = check_producers(self._producers, self._verification, batches, context)
        if isinstance(verdict, Rejection):
            return self._refused(verdict)
        if isinstance(verdict, DuplicateBatch):
            return self._duplicate(verdict)
        return self._write(batches, bytearray(data), origin, effects)

    def append_marker(
        self, marker: TransactionMarker, *, effects: Effects, transaction_version: int = 1
    ) -> AppendResult:
        """Append a COMMIT or ABORT marker; it decides the producer's open transaction, if any.

        Refused with INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED, by the rules of
        Kafka's `ProducerAppendInfo`. A marker that was written before is written again: it changes
        nothing for readers.
        """
        entry = self._producers.entry(marker.producer_id)
        rejection = check_marker(entry, marker, transaction_version)
        if rejection is not None:
            return self._refused(rejection)
        data = bytearray(encode_marker(marker, timestamp=effects.now_ms))
        batch = IncomingBatch(parse_header(data), 0, marker)
        return self._write([batch], data, AppendOrigin.COORDINATOR, effects)

    def begin_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        effects: Effects,
        *,
        supports_epoch_bump: bool,
    ) -> Rejection | None:
        """A batch that begins a transaction here has come, and the coordinator is asked next.

        Its sequence is remembered, so that none after it can be the first when it is refused. An
        epoch that is older than what the log knows need not be asked about (KAFKA-18042).
        """
        entry = self._producers.entry(producer_id)
        rejection = check_producer_epoch(entry, producer_epoch)
        if rejection is None:
            now_ms = effects.now_ms
            self._verification.begin(
                producer_id, producer_epoch, sequence, supports_epoch_bump, now_ms
            )
        return rejection

    def become_leader(self, leader_epoch: int) -> None:
        """Stamp later batches with this epoch, remembered with the first of them; never go back.

        The log may know a newer one than the caller: its files may be older than this log.
        """
        self.leader_epoch = max(self.leader_epoch, leader_epoch)

    def _write(
        self,
        batches: Sequence[IncomingBatch],
        buffer: bytearray,
        origin: AppendOrigin,
        effects: Effects,
    ) -> AppendResult:
        local, config = self._local, self._local.config
        append_time_ms = effects.now_ms if config.is_log_append_time else None
        if origin is AppendOrigin.REPLICATION:
            headers = [incoming.header for incoming in batches]
            first, end = headers[0].base_offset, local.end_offset
            check(first >= end, "replicated batch below the log end", first=first, end=end)
        else:
            headers = stamp(
                buffer,
                batches,
                next_offset=local.end_offset,
                leader_epoch=self.leader_epoch,
                log_append_time_ms=append_time_ms,
            )
        if local.must_roll(headers, len(buffer)):
            self.roll(effects)
        local.append(headers, bytes(buffer), effects)
        for incoming, header in zip(batches, headers, strict=True):
            if header.has_producer_id:
                self._replay(header, incoming.marker, effects)
        if self.single_replica:
            self.advance_high_watermark(local.end_offset, effects)
        if local.unflushed_count >= config.flush_messages:
            self.flush(effects)
        return AppendResult(
            ErrorCode.NONE,
            base_offset=headers[0].base_offset,
            last_offset=headers[-1].last_offset,
            log_append_time_ms=-1 if append_time_ms is None else append_time_ms,
            log_start_offset=self._log_start_offset,
        )

    def _replay(
        self, header: BatchHeader, marker: TransactionMarker | None, effects: Effects
    ) -> None:
        self._verification.replay(header)
        completed = self._producers.replay(header, marker)
        if completed is None:
            return
        if completed.aborted:
            entry = AbortedTransaction(
                completed.producer_id,
                completed.first_offset,
                completed.last_offset,
                self._producers.last_stable_offset_after(completed),
            )
            self._local.append_aborted(entry, effects)
        self._producers.complete(completed)

    def _refused(self, rejection: Rejection) -> AppendResult:
        text = f"{rejection.message} (partition {self.directory})"
        return AppendResult(
            rejection.error,
            text,
            log_start_offset=self.log_start_offset,
            record_indexes=rejection.record_indexes,
        )

    def _duplicate(self, duplicate: DuplicateBatch) -> AppendResult:
        batch = duplicate.batch
        return AppendResult(
            ErrorCode.NONE,
            base_offset=batch.first_offset,
            last_offset=batch.last_offset,
            log_append_time_ms=batch.timestamp,
            log_start_offset=self.log_start_offset,
            duplicate=True,
        )

    # ----------------------------------------------------------------------- segments

    def roll(self, effects: Effects) -> None:
        """Close the active segment and begin a new one at the log end."""
        self._local.roll(self._producers, effects)

    def apply_retention(self, effects: Effects) -> int:
        """Remove segments below the log start, and by retention.ms and retention.bytes; how many.

        Only below the high watermark, oldest first. An active segment that is due is rolled first.
        """
        below = self.remove_below_start(effects)
        due = retention.due_count
        hw, now_ms = self.high_watermark, effects.now_ms
        count = due(self._local.segments, self.config, high_watermark=hw, now_ms=now_ms)
        if count == 0:
            return below
        if count == len(self._local.segments):
            self.roll(effects)
        self._local.remove_oldest(count, effects)
        self._log_start_offset = max(self._log_start_offset, self.first_segment_offset)
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

    # ----------------------------------------------------------------------- compaction

    def find_cleanable(self, cleaned_to: int | None, now_ms: int) -> Cleanable:
        """What the cleaner may compact, when it has done so up to `cleaned_to` before."""
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
        return Cleaning(self._local, self._producers, plan, self._codecs, limits)

    # ----------------------------------------------------------------------- high watermark

    def advance_high_watermark(self, next_offset: int, effects: Effects) -> None:
        """All below `next_offset` is replicated. It never goes back, nor past the log end."""
        high_watermark = min(next_offset, self.log_end_offset)
        if high_watermark <= self.high_watermark:
            return
        self.high_watermark = high_watermark
        self._producers.on_high_watermark(high_watermark)
        effects.trace(
            "high-watermark", log=self.directory, hw=high_watermark, lso=self.last_stable_offset
        )

    # ----------------------------------------------------------------------- producers

    def expire_producers(self, effects: Effects) -> None:
        """Forget producers idle for producer.id.expiration.ms without an open transaction."""
        expiration_ms = self.config.producer_id_expiration_ms
        self._producers.remove_expired(effects.now_ms, expiration_ms)
        self._verification.remove_expired(effects.now_ms, expiration_ms)

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

    def flush_if_due(self, effects: Effects) -> None:
        """Flush when the last time was flush.ms ago."""
        if effects.now_ms - self._last_flush_ms >= self.config.flush_ms:
            self.flush(effects)

    @property
    def recovery_point(self) -> int:
        """After a crash the log is read from here on."""
        return self._local.recovery_point

    def checkpoint(self, effects: Effects) -> None:
        """Move the recovery point where that is worth it (see `LocalLog`)."""
        self._local.checkpoint(self._producers, effects)

    def close(self, effects: Effects) -> None:
        """A clean stop: all flushed, producer snapshot and segment states at the log end."""
        self._local.close(self._producers, effects)

    def delete(self, effects: Effects) -> None:
        """Remove the partition: renamed at once, so that a crash leaves no half of it in place."""
        deleted = files.deleted_directory_name(self.topic, self.partition, self.topic_id)
        effects.storage.append(Rename(self.directory, deleted))
        effects.storage.append(Delete(deleted))
        self._local.flushed()
