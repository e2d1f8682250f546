"""The segments of one partition and the files next to them: roll, removal, flush.

What it keeps in memory is what its files say; every change is emitted as storage operations in an
order of which any prefix recovers (see `recovery`):
1. a segment is flushed whole, with its indexes, before the next one is created, and the producer
   snapshot at the boundary is written in between; so only the last segment can be torn;
2. the log file is appended before its indexes;
3. old segments go oldest first, the log file before its indexes;
4. segment states are written when all they tell of was flushed, and removed before any of it is
   written again (`forget_states`);
5. a truncation is decided by an empty file named after its offset, and is finished at the next
   start as long as that is there (`truncate`).

Sources: Kafka's `LocalLog`, `LogSegments`. What it does not do: decide who may append or read
(`partition_log`), preallocated index files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from broker_sim.core.effects import Delete, Effects, Flush, Rename, WriteFile
from broker_sim.core.log import files, leader_epochs, loading, recovery, retention, segment_states
from broker_sim.core.log.indexes import RELATIVE_OFFSET_MAX, OffsetIndex, TransactionIndex
from broker_sim.core.log.producer_snapshots import encode_snapshot, snapshot_name
from broker_sim.core.log.segment import Segment
from broker_sim.core.log.swap import swap_in
from txnlog_kafka.wire.records import BatchHeader

CHECKPOINT_BYTES = 1 << 20
"""A checkpoint flushes a log when more bytes than this would have to be read after a crash."""


class TruncationPoint(NamedTuple):
    """Segment index, file position and offset at which a truncated log ends."""

    segment_index: int
    position: int
    end_offset: int
    highest: tuple[int, int]
    """The highest timestamp of what is left of the segment, and its batch's last offset."""


class LocalLog:
    """Segments in the order of their offsets; the last one is active, the only one written to."""

    def __init__(self, folder: loading.Folder, loaded: loading.LoadedLog) -> None:
        self.directory = folder.directory
        self.config = folder.config
        self.storage = folder.storage
        self.producers = loaded.producers
        """Producers at the log end."""
        self._folder = folder
        self._adopt_log(loaded)

    def _adopt_log(self, loaded: loading.LoadedLog) -> None:
        self.segments = loaded.segments
        self.epochs = loaded.epochs
        self.snapshots = loaded.snapshots
        """Offsets that a producer snapshot exists for."""
        self.recovery_point = loaded.recovery_point
        """After a crash the log is read from here."""
        self.flushed_offset = loaded.recovery_point
        """Offset below which all batches are on disk."""
        self._dirty = dict.fromkeys(loaded.dirty)
        self._unchecked_bytes = loaded.scanned_bytes
        """Log bytes above the recovery point."""
        self._has_states = loaded.has_states
        """The file of segment states is good up to the recovery point."""
        self._recovered = list(loaded.recovered)
        """Closed segments whose indexes were rebuilt and are not flushed."""

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.segments[-1]

    @property
    def end_offset(self) -> int:
        """The next offset to be assigned."""
        return self.segments[-1].next_offset

    @property
    def size_bytes(self) -> int:
        """Size of all log files in bytes."""
        return sum(segment.size_bytes for segment in self.segments)

    # ----------------------------------------------------------------------- appending

    def append(self, headers: Sequence[BatchHeader], data: bytes, effects: Effects) -> None:
        """Put batches with assigned offsets into the active segment."""
        self._assign_epochs(headers, effects)
        self.active.append(headers, data, effects)
        self._dirty[self.active.path()] = None
        self._unchecked_bytes += len(data)

    def must_roll(self, headers: Sequence[BatchHeader], size_bytes: int) -> bool:
        """True if these batches need a new segment (Kafka's `LogSegment.shouldRoll`)."""
        active, config = self.active, self.config
        if active.size_bytes == 0:
            return False
        newest = headers[0].max_timestamp
        if len(headers) > 1:
            newest = max(header.max_timestamp for header in headers)
        oldest = active.first_timestamp
        aged = oldest is not None and oldest >= 0 and newest - oldest > config.segment_ms_max
        index_bytes_max = config.segment_index_bytes - OffsetIndex.layout.size
        return (
            aged
            or active.size_bytes + size_bytes > config.segment_bytes
            or active.offset_index.size_bytes > index_bytes_max
            or headers[-1].last_offset - active.base_offset > RELATIVE_OFFSET_MAX
        )

    def roll(self, effects: Effects) -> None:
        """Close the active segment and begin a new one at the log end."""
        active = self.active
        if active.next_offset == active.base_offset:
            return
        active.seal(effects)
        self._flush_active(effects)
        self._take_snapshot(effects)
        segment = Segment(self.directory, self.end_offset, self.config.index_interval_bytes)
        segment.create_files(effects)
        self.segments.append(segment)
        effects.trace("log-roll", log=self.directory, base_offset=segment.base_offset)

    def _take_snapshot(self, effects: Effects) -> None:
        if self.end_offset in self.snapshots:
            return
        path = f"{self.directory}/{snapshot_name(self.end_offset)}"
        data = encode_snapshot(self.producers.entries.values())
        effects.storage.append(WriteFile(path, data))
        self.snapshots.add(self.end_offset)

    def _assign_epochs(self, headers: Sequence[BatchHeader], effects: Effects) -> None:
        if headers[-1].leader_epoch == self.epochs.latest:
            return  # epochs never fall within an append
        assigned = [self.epochs.assign(h.leader_epoch, h.base_offset) for h in headers]
        if any(assigned):
            self._write_epochs(effects)

    def _write_epochs(self, effects: Effects) -> None:
        path = f"{self.directory}/{leader_epochs.FILE_NAME}"
        effects.storage.append(WriteFile(path, self.epochs.encode()))

    # ----------------------------------------------------------------------- removal

    def remove_oldest(self, count: int, effects: Effects) -> None:
        """Remove so many of the oldest segments, never the active one.

        That one has to be there for certain before the others go: without any segment a log would
        begin again at 0, and give its offsets out a second time.
        """
        effects.storage.append(Flush((self.active.path(),)))
        removed, self.segments = self.segments[:count], self.segments[count:]
        retention.remove_segments(removed, effects)
        for segment in removed:
            self._dirty.pop(segment.path(), None)

    def remove_below(self, log_start_offset: int, effects: Effects) -> int:
        """Remove the segments that lie wholly below the offset; how many. The active one stays."""
        bases = [segment.base_offset for segment in self.segments[1:]]
        count = bisect_right(bases, log_start_offset)
        if count:
            self.remove_oldest(count, effects)
            self.forget_before(log_start_offset, effects)
        return count

    def forget_before(self, log_start_offset: int, effects: Effects) -> None:
        """Leader epochs below the offset are of no use, nor snapshots below the first segment."""
        start = self.segments[0].base_offset
        self._forget_snapshots([at for at in self.snapshots if at < start], effects)
        if self.epochs.truncate_start(log_start_offset):
            self._write_epochs(effects)

    def replace(self, replaced: Sequence[Segment], cleaned: Segment, effects: Effects) -> None:
        """Put a compacted segment, not yet flushed, in the place of these neighbours.

        Segment states go first, and snapshots below its end: one of them may say that a transaction
        is open whose marker is no longer in the log. Later snapshots stay.

        The active segment is flushed first: only closed segments may have gaps, and a cleaned
        segment must never become the last one, or the only trace of a producer, after a crash.
        """
        cleaned.seal(effects)
        effects.storage.append(Flush(cleaned.paths()))
        self._flush_active(effects)
        self.forget_states(effects)
        self._forget_snapshots([at for at in self.snapshots if at < cleaned.next_offset], effects)
        swap_in(cleaned, replaced, effects)
        at = self.segments.index(replaced[0])
        self.segments[at : at + len(replaced)] = [cleaned]
        self._write_states(effects)
        effects.trace(
            "log-cleaned",
            log=self.directory,
            base_offset=cleaned.base_offset,
            segments=len(replaced),
            from_bytes=sum(segment.size_bytes for segment in replaced),
            to_bytes=cleaned.size_bytes,
        )

    # ----------------------------------------------------------------------- truncation

    def forget_epochs_at_end(self, effects: Effects) -> None:
        """Drop the last epoch if it has no batch left: the log start has come to the log end.

        A leader that lacks that epoch would ask for a truncation at each fetch (as in Kafka's
        `UnifiedLog.truncateTo`).
        """
        if self.epochs.truncate_end(self.end_offset):
            self._write_epochs(effects)

    def truncation_point(self, offset: int) -> TruncationPoint:
        """Find the end of the batches wholly below `offset`, which is at or above the first offset.

        Raises CorruptBatch when the part of the file that must be read is damaged.
        """
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
        segment = self.segments[at]
        segment.load_indexes(self.storage, self.rebuild_aborted)
        position = segment.find(offset, self.storage)
        end_offset = segment.next_offset
        if position < segment.size_bytes:
            _, end_offset = segment.slice_end(0, position, self.storage)
        highest = segment.max_timestamp_below(position, end_offset, self.storage)
        return TruncationPoint(at, position, end_offset, highest)

    def truncate(self, offset: int, point: TruncationPoint, effects: Effects) -> None:
        """Remove all from the point of the offset on, and begin a new segment there.

        A crash leaves the log as it was when it comes before the first operation, and otherwise as
        it is after the last one: an empty file tells the next start to finish the truncation. Only
        what was not flushed below the offset may be lost, as by any loss of power.

        A new segment, because closed ones may have gaps and the active one may not; and because
        then, as at any roll, what is kept is flushed and has a producer snapshot at its end.
        """
        marker = f"{self.directory}/{files.truncation_name(offset)}"
        effects.storage.append(WriteFile(marker, b""))
        self.forget_states(effects)
        self._forget_snapshots([at for at in self.snapshots if at > point.end_offset], effects)
        retention.remove_segments(self.segments[: point.segment_index : -1], effects)
        del self.segments[point.segment_index + 1 :]
        self.active.truncate(point.position, point.end_offset, point.highest)
        self.active.store_truncated(effects)
        self.epochs.truncate_end(point.end_offset)
        self._write_epochs(effects)
        states = recovery.replay_producers(self._folder, self.segments, self.snapshots, effects)
        self.producers.truncate(states, point.end_offset)
        self.producers.remove_expired(effects.now_ms, self.config.producer_id_expiration_ms)
        self.roll(effects)
        self._write_states(effects)
        effects.storage.append(Delete(marker))
        effects.trace("log-truncated", log=self.directory, offset=point.end_offset)

    def truncate_fully(self, offset: int, effects: Effects) -> None:
        """Remove everything; the log is empty and begins at the offset.

        A crash leaves the log as it was, or empty: beginning at the offset or, when it comes
        before the first file is there, where the log start is known to be.
        """
        self.delete(effects)
        loaded = recovery.create_log(self._folder, effects, base_offset=offset)
        # Without any segment it would begin elsewhere at the next start.
        effects.storage.append(Flush(loaded.segments[0].paths()))
        self._adopt_log(loaded)
        self.producers.truncate((), offset)
        effects.trace("log-truncated", log=self.directory, offset=offset)

    def delete(self, effects: Effects) -> None:
        """Remove the directory: renamed at once, so that a crash leaves no half of it in place."""
        folder = self._folder
        deleted = files.deleted_directory_name(folder.topic, folder.partition, folder.topic_id)
        effects.storage += [Rename(self.directory, deleted), Delete(deleted)]
        self._dirty.clear()

    # ----------------------------------------------------------------------- durability

    @property
    def unflushed_count(self) -> int:
        """Offsets that a loss of power might take back."""
        return self.end_offset - self.flushed_offset

    def flush_paths(self) -> tuple[str, ...]:
        """Log files with appends that are not flushed; what else there is, recovery rebuilds."""
        return tuple(self._dirty)

    def flushed(self) -> None:
        """A Flush of `flush_paths` was emitted after the last append."""
        self._dirty.clear()
        self.flushed_offset = self.end_offset

    def checkpoint(self, effects: Effects) -> bool:
        """Move the recovery point to the log end, where that is worth it or costs little; whether
        it was moved.

        Little: all is flushed anyway. Worth it: a crash would have much to be read again.
        """
        if self.end_offset == self.recovery_point:
            return False
        if self._dirty and self._unchecked_bytes < CHECKPOINT_BYTES:
            return False
        self.active.save_indexes(effects)
        self._write_states(effects)
        return True

    def close(self, effects: Effects) -> None:
        """A clean stop: all flushed, producer snapshot and segment states at the log end."""
        if self._has_states and self.end_offset == self.recovery_point:
            return
        self.active.seal(effects)
        self._write_states(effects)

    def forget_states(self, effects: Effects) -> None:
        """To be called before bytes of any segment are replaced: their states are not true then."""
        self.recovery_point = self.segments[0].base_offset
        if self._has_states:
            self._has_states = False
            path = f"{self.directory}/{segment_states.FILE_NAME}"
            effects.storage.append(Delete(path))

    def _flush_active(self, effects: Effects) -> None:
        effects.storage.append(Flush(self.active.paths()))
        self.flushed()

    def _write_states(self, effects: Effects) -> None:
        """Flush what is not, and remember what all segments hold."""
        for segment in self.segments[:-1]:
            if segment.save_indexes(effects) or segment in self._recovered:
                effects.storage.append(Flush(segment.paths()))
        self._recovered.clear()
        self._flush_active(effects)
        self._take_snapshot(effects)
        states = [segment.state() for segment in self.segments]
        data = segment_states.encode_states(self.epochs.entries, states)
        effects.storage.append(WriteFile(f"{self.directory}/{segment_states.FILE_NAME}", data))
        self._has_states = True
        former, self.recovery_point = self.recovery_point, self.end_offset
        self._drop_snapshot(former, effects)
        self._unchecked_bytes = 0

    def _drop_snapshot(self, next_offset: int, effects: Effects) -> None:
        """Forget a snapshot inside a segment: it is useless once the recovery point has moved."""
        kept = {self.end_offset, *(segment.base_offset for segment in self.segments)}
        self._forget_snapshots([*({next_offset} & self.snapshots - kept)], effects)

    def _forget_snapshots(self, offsets: Sequence[int], effects: Effects) -> None:
        for next_offset in sorted(offsets):
            effects.storage.append(Delete(f"{self.directory}/{snapshot_name(next_offset)}"))
            self.snapshots.discard(next_offset)

    # ----------------------------------------------------------------------- repair

    def rebuild_aborted(self, segment: Segment) -> TransactionIndex:
        """The transaction index of a segment whose file is damaged. Raises CorruptBatch."""
        return recovery.rebuild_aborted(self._folder, self.segments, segment)
