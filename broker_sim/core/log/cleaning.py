"""Compacting one log once: first the latest offset of each key is learned, then all is rewritten.

Rules for this file
- A key's latest record stays, older ones go; a tombstone goes delete.retention.ms after the round
  that first saw it, by the horizon which that round wrote into its batch (KIP-534).
- Records of aborted transactions go at once. A marker goes when nothing of its transaction was
  left in an earlier round, and its horizon has passed.
- The last batch of each producer that is remembered stays, emptied, for its sequence and epoch; if
  that is a marker it stays whole, for recovery learns nothing from an emptied one. The last batch
  of each new segment stays too, so that a segment always ends where the next begins.
- No offset changes. The read_committed latest value of every key is the same before and after.

The work is divided into steps of a bounded number of bytes, so that the broker serves in between.
What is not yet swapped in is in files of its own, and a crash or an end of the work loses only
work.

Sources: Kafka's `Cleaner`, `MemoryRecords.filterTo`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from broker_sim.core.effects import Effects, Flush, Storage
from broker_sim.core.log.batch_filter import RawRecord, empty_batch, filtered_batch, raw_records
from broker_sim.core.log.cleanable import Cleanable, group_segments
from broker_sim.core.log.cleaned_transactions import CleanedTransactions
from broker_sim.core.log.compression import Codecs
from broker_sim.core.log.config import INT64_MAX
from broker_sim.core.log.local_log import LocalLog
from broker_sim.core.log.offset_map import OffsetMap
from broker_sim.core.log.reads import collect_aborted
from broker_sim.core.log.retention import remove_segments
from broker_sim.core.log.scan import scan_batches
from broker_sim.core.log.segment import Segment
from broker_sim.core.log.swap import CLEANED
from broker_sim.core.log.values import AbortedTransaction
from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.records import BatchHeader, decode_marker, parse_header

FLUSH_BYTES = 8 << 20
"""Bytes of a new segment that are written between two flushes."""
SEGMENT_BYTES_MAX = 2**31 - 1
"""Kafka's indexes have positions of 32 bits."""


@dataclass(frozen=True, slots=True)
class CleanerLimits:
    """Limits of the memory and the time that the cleaner may take."""

    step_bytes: int
    """Log bytes read in one step; a larger batch is a step of its own."""
    keys_max: int
    """Keys remembered in one round; a log with more is compacted in several rounds."""


class CannotClean(ValueError):
    """The log cannot be compacted; the text says why."""


class Cleaning:
    """A single compaction round over a log. Call `step` until it returns True."""

    def __init__(
        self, local: LocalLog, plan: Cleanable, codecs: Codecs, limits: CleanerLimits
    ) -> None:
        self.end_offset = plan.first_dirty_offset
        """Up to here the log is compacted, once the round is done."""
        self._local = local
        self._plan = plan
        self._codecs = codecs
        self._limits = limits
        self._map = OffsetMap(limits.keys_max)
        self._sources = [s for s in local.segments if s.base_offset < plan.end_offset]
        """Segments that are still to be rewritten."""
        self._target: Segment | None = None
        self._effects = Effects(0, 0)
        self._left_bytes = 0
        self._now_ms: int | None = None
        self._steps = self._run()

    def step(self, effects: Effects) -> bool:
        """Do some of the work; True when the round is done.

        Raises CannotClean, and CorruptBatch at damaged bytes: then call `abandon`.
        """
        self._effects = effects
        self._left_bytes = self._limits.step_bytes
        if self._now_ms is None:
            self._now_ms = effects.now_ms
        return next(self._steps, True)

    @property
    def is_valid(self) -> bool:
        """Nothing has removed what is still to be rewritten, and the log is still compacted."""
        present = set(map(id, self._local.segments))
        return self._local.config.compacts and all(id(s) in present for s in self._sources)

    def abandon(self, effects: Effects) -> None:
        """Give the round up: its unfinished files go, what was swapped in stays."""
        if self._target is not None:
            remove_segments([self._target], effects)
            self._target = None

    # ----------------------------------------------------------------------- the two passes

    def _run(self) -> Iterator[bool]:
        storage = self._local.storage
        if any(segment.damaged for segment in self._sources):
            raise CannotClean("the files are damaged")
        yield from self._learn_keys(storage)
        self.end_offset = self._map.latest_offset + 1
        if self.end_offset <= self._plan.first_dirty_offset:
            raise CannotClean(f"one batch has more than {self._limits.keys_max} keys")
        transactions = CleanedTransactions()
        sources = [s for s in self._sources if s.base_offset < self.end_offset]
        self._sources = sources
        for group in group_segments(sources, self._local.config):
            yield from self._rewrite_group(group, transactions, storage)
            yield False

    def _spend_bytes(self, size_bytes: int) -> bool:
        """Count the bytes that were read; return True when the step has used up its share."""
        self._left_bytes -= size_bytes
        return self._left_bytes <= 0

    def _learn_keys(self, storage: Storage) -> Iterator[bool]:
        """Fill the map from the dirty part, in order, until the end or until it is full."""
        start = self._plan.first_dirty_offset
        transactions = CleanedTransactions()
        segments = self._local.segments
        transactions.add_aborted(
            collect_aborted(segments, start, self._plan.end_offset, self._local.rebuild_aborted)
        )
        for segment in [s for s in self._sources if s.next_offset > start]:
            position = segment.find(max(start, segment.base_offset), storage)
            path, end = segment.path(), segment.size_bytes
            for header, _, batch in scan_batches(storage, path, position, end):
                if not self._learn_batch(header, batch, transactions):
                    return
                self._map.latest_offset = header.last_offset
                if self._spend_bytes(header.size_bytes):
                    yield False

    def _learn_batch(
        self, header: BatchHeader, batch: bytes, transactions: CleanedTransactions
    ) -> bool:
        if header.is_control:
            transactions.on_control(header, decode_marker(batch, 0, header))
            return True
        if transactions.on_data(header):
            return True
        start = self._plan.first_dirty_offset
        for record in raw_records(self._codecs.plain_records(header, batch), header):
            if record.key is None or record.record_offset < start:
                continue
            if not self._map.put(record.key, record.record_offset):
                return False
        return True

    def _rewrite_group(
        self, group: Sequence[Segment], transactions: CleanedTransactions, storage: Storage
    ) -> Iterator[bool]:
        """Make one segment of the group and put it in its place."""
        local = self._local
        target = Segment(local.directory, group[0].base_offset, local.config.index_interval_bytes)
        target.name_suffix = CLEANED
        self._target = target
        target.create_files(self._effects)
        last_records = local.producers.last_records()
        last_offset = group[-1].next_offset - 1
        batches: list[bytes] = []
        flushed_bytes = 0
        for segment in group:
            aborted = collect_aborted(
                local.segments, segment.base_offset, segment.next_offset, local.rebuild_aborted
            )
            transactions.add_aborted(aborted)
            path, end = segment.path(), segment.size_bytes
            for header, _, batch in scan_batches(storage, path, 0, end):
                is_last = _is_last(header, last_records)
                kept, entry = self._clean_batch(header, batch, transactions)
                if kept is None and (is_last or header.last_offset == last_offset):
                    kept = batch if is_last and header.is_control else empty_batch(header)
                if kept is not None:
                    batches.append(kept)
                if entry is not None:
                    target.append_aborted(entry, self._effects)
                if self._spend_bytes(header.size_bytes):
                    flushed_bytes = _write_batches(target, batches, flushed_bytes, self._effects)
                    yield False
        _write_batches(target, batches, flushed_bytes, self._effects)
        local.replace(group, target, self._effects)
        self._target = None
        self._sources = self._sources[len(group) :]

    # ----------------------------------------------------------------------- one batch

    def _clean_batch(
        self, header: BatchHeader, batch: bytes, transactions: CleanedTransactions
    ) -> tuple[bytes | None, AbortedTransaction | None]:
        """Return the part of the batch that stays, None to drop it; and an ABORT's index entry."""
        if not header.is_control:
            if transactions.on_data(header):
                return None, None
            return self._clean_data(header, batch), None
        marker = decode_marker(batch, 0, header)
        may_go, entry = transactions.on_control(header, marker)
        horizon_ms = header.delete_horizon_ms
        if header.record_count == 0 or (may_go and self._has_passed(horizon_ms)):
            return None, entry
        if may_go and horizon_ms is None:
            plain = self._codecs.plain_records(header, batch)
            return self._filtered(header, plain, [*raw_records(plain, header)], sets=True), entry
        return batch, entry

    def _clean_data(self, header: BatchHeader, batch: bytes) -> bytes | None:
        if header.record_count == 0:
            return None
        plain = self._codecs.plain_records(header, batch)
        horizon_ms = header.delete_horizon_ms
        tombstones_go = self._has_passed(horizon_ms)
        records = [*raw_records(plain, header)]
        kept = [record for record in records if self._stays(record, tombstones_go)]
        if not kept:
            return None
        sets = horizon_ms is None and not all(record.has_value for record in kept)
        if len(kept) == len(records) and not sets:
            return batch
        return self._filtered(header, plain, kept, sets=sets)

    def _stays(self, record: RawRecord, tombstones_go: bool) -> bool:
        if record.record_offset > self._map.latest_offset:
            return True
        if record.key is None or (tombstones_go and not record.has_value):
            return False
        return self._map.is_latest(record.key, record.record_offset)

    @property
    def _started_ms(self) -> int:
        return present(self._now_ms, "the first step sets the time of a cleaning")

    def _has_passed(self, horizon_ms: int | None) -> bool:
        return horizon_ms is not None and horizon_ms <= self._started_ms

    def _filtered(
        self, header: BatchHeader, plain: bytes, kept: Sequence[RawRecord], *, sets: bool
    ) -> bytes:
        horizon_ms = min(self._started_ms + self._local.config.delete_retention_ms, INT64_MAX)
        return filtered_batch(
            header, plain, kept, self._codecs, new_delete_horizon_ms=horizon_ms if sets else None
        )


def _is_last(header: BatchHeader, last_records: dict[int, tuple[int | None, int]]) -> bool:
    """The batch tells the last sequence of its producer or, where it has none, its epoch."""
    if not header.has_producer_id or header.producer_id not in last_records:
        return False
    last_offset, producer_epoch = last_records[header.producer_id]
    if last_offset is not None:
        return header.last_offset == last_offset
    return header.is_control and header.producer_epoch == producer_epoch


def _write_batches(
    target: Segment, batches: list[bytes], flushed_bytes: int, effects: Effects
) -> int:
    """Append what has come together, and forget it; up to where the segment is flushed.

    It is flushed on the way, so that the flush before the swap does not keep the broker for long.
    Raises CannotClean when indexes cannot hold its positions: with horizons set, batches may grow.
    """
    if target.size_bytes + sum(map(len, batches)) > SEGMENT_BYTES_MAX:
        raise CannotClean(f"the new segment would be over {SEGMENT_BYTES_MAX} bytes")
    if batches:
        headers = [parse_header(batch) for batch in batches]
        target.append(headers, b"".join(batches), effects)
        batches.clear()
    if target.size_bytes - flushed_bytes < FLUSH_BYTES:
        return flushed_bytes
    effects.storage.append(Flush((target.path(),)))
    return target.size_bytes
