"""State of a recovery: the folder, the part known to be flushed, the segments opened so far.

`open_segments` decides how much of a segment is known flushed. Reading the rest, and bringing the
files in order, belongs to `recovery`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from broker_sim.core.effects import Delete, Effects, Storage
from broker_sim.core.log import files, segment_states
from broker_sim.core.log.compression import NO_CODECS, Codecs
from broker_sim.core.log.config import INT64_MAX, LogConfig
from broker_sim.core.log.indexes import OffsetIndex, TimeIndex, TransactionIndex
from broker_sim.core.log.leader_epochs import LeaderEpochs
from broker_sim.core.log.producer_state import ProducerStates
from broker_sim.core.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
)
from broker_sim.core.log.segment_states import SegmentState, decode_states

_OFFSET_NAME = re.compile(r"^(\d{20})(\.\w+)$")


@dataclass(frozen=True, slots=True)
class Folder:
    """A partition's directory, and what its files should be."""

    topic: str
    partition: int
    topic_id: bytes
    config: LogConfig
    storage: Storage
    codecs: Codecs = NO_CODECS
    is_replicated: bool = False
    """In a cluster: what is committed is not known before the leader has heard of the others."""

    @property
    def directory(self) -> str:
        """Such as `orders-0`."""
        return files.directory_name(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class KnownAtStart:
    """Facts that the broker knows of a log before it looks at the log's files."""

    recovery_point: int = 0
    """Below it everything was flushed (Kafka's checkpoint); 0 when nothing is known."""
    clean_shutdown: bool = False
    """Every log was closed before the process ended."""
    leader_epoch_max: int = INT64_MAX
    """No batch can have a higher one."""
    log_start_offset: int = 0
    """Log start that DeleteRecords has moved; the log's files do not record it."""
    was_cleaned: bool = False
    """Segments may have been compacted, whatever the policy is now: offsets may be missing."""
    may_truncate: bool = True
    """False: only an incomplete write may be truncated, other damage raises DamagedLog."""
    has_other_replicas: bool = False
    """Damage ends the log, whatever comes after it: another broker has that."""
    high_watermark: int = 0
    """Checkpointed high watermark of a log with other replicas: all below it was committed."""

    @property
    def end_offset(self) -> int:
        """Segment states are good up to here."""
        return INT64_MAX if self.clean_shutdown else self.recovery_point


@dataclass(slots=True)
class LoadedLog:
    """The parts of a log in memory, equal to what the files say after the effects."""

    segments: list[Segment]
    producers: ProducerStates
    epochs: LeaderEpochs
    snapshots: set[int]
    dirty: tuple[str, ...] = ()
    recovery_point: int = 0
    """Up to here the segment states are stored and good."""
    scanned_bytes: int = 0
    """Bytes of the log that were read to find its whole batches."""
    has_states: bool = False
    """The stored segment states are good up to the recovery point."""
    recovered: tuple[Segment, ...] = ()
    """Closed segments whose indexes may have been rebuilt."""
    log_start_offset: int = 0
    """The first offset that may be read; it lies in the first segment, or at its base."""
    truncations: tuple[int, ...] = ()
    """Offsets that the log was being truncated to when the broker went down: one at most."""
    high_watermark: int = 0
    """High watermark that `KnownAtStart` names."""


@dataclass(slots=True)
class Loading:
    """A log while it is loaded: the facts known so far, and the work still to do."""

    folder: Folder
    effects: Effects
    known: KnownAtStart = field(default_factory=KnownAtStart)
    segments: list[Segment] = field(default_factory=list)
    states: dict[int, SegmentState] = field(default_factory=dict)
    producers: ProducerStates = field(default_factory=ProducerStates)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    recovered: list[Segment] = field(default_factory=list)
    scanned_bytes: int = 0
    has_states: bool = False
    truncates: bool = False
    """A truncation was begun: the last segment may be a compacted one, no state may be true."""

    @property
    def storage(self) -> Storage:
        """The files."""
        return self.folder.storage

    @property
    def may_skip_offsets(self) -> bool:
        """Compaction may have left gaps."""
        return self.folder.config.compacts or self.known.was_cleaned

    def path(self, name: str) -> str:
        """A file of the folder."""
        return f"{self.folder.directory}/{name}"

    def stored_bytes(self, segment: Segment) -> int:
        """Return the size of the segment's log file, damaged bytes included."""
        return self.storage.size_bytes(segment.path()) or 0


def offsets_of(names: Sequence[str], suffix: str) -> list[int]:
    """The offsets that files of one kind are named by, rising."""
    matches = (_OFFSET_NAME.match(name) for name in names)
    return sorted(int(m.group(1)) for m in matches if m is not None and m.group(2) == suffix)


def with_next_bases(segments: Sequence[Segment]) -> Iterator[tuple[Segment, int | None]]:
    """Each segment with the base offset of the next; None for the last."""
    next_bases = (segment.base_offset for segment in segments[1:])
    return zip_longest(segments, next_bases)


def open_segments(loading: Loading, bases: list[int]) -> None:
    """Each segment as far as it is known flushed, which may be nothing of it."""
    path = loading.path(segment_states.FILE_NAME)
    data = files.read_whole(loading.storage, path)
    decoded = None if data is None else decode_states(data)
    if decoded is not None:
        epochs, loading.states = decoded
        loading.epochs = LeaderEpochs(epochs)
        # Without those that no batch has above the log start: the next may be lower than they.
        loading.epochs.truncate_start(loading.known.log_start_offset)
        ends = [state.next_offset for state in loading.states.values()]
        loading.epochs.truncate_end(max(ends, default=0))
    is_good = decoded is not None and not loading.truncates
    folder = loading.folder
    interval_bytes = folder.config.index_interval_bytes
    loading.segments += [Segment(folder.directory, base, interval_bytes) for base in bases]
    for segment, next_base in with_next_bases(loading.segments):
        state = loading.states.get(segment.base_offset)
        if state is None:
            continue
        if not loading.truncates and _is_usable(loading, segment, state, next_base):
            segment.restore(state, loading.storage)
        else:
            is_good = False
    loading.has_states = is_good
    if data is not None and not is_good:
        # Before anything is truncated or written: it would be taken for true at the next start.
        loading.effects.trace("segment-states-dropped", path=path)
        loading.effects.storage.append(Delete(path))


def _is_usable(
    loading: Loading, segment: Segment, state: SegmentState, next_base: int | None
) -> bool:
    """True if the files can hold what the state records, and were flushed before it was written.

    A recovery point above the segment's base is enough. States are written after the flush, and the
    recovery point after all states.
    """
    end_offset = loading.known.end_offset
    if state.next_offset > end_offset and end_offset <= segment.base_offset:
        return False
    if next_base is not None and state.next_offset > next_base:
        return False
    wanted = (
        (LOG_SUFFIX, state.log_bytes),
        (INDEX_SUFFIX, state.index_count * OffsetIndex.layout.size),
        (TIME_INDEX_SUFFIX, state.time_count * TimeIndex.layout.size),
        (TRANSACTION_INDEX_SUFFIX, state.aborted_count * TransactionIndex.layout.size),
    )
    for suffix, wanted_bytes in wanted:
        size_bytes = loading.storage.size_bytes(segment.path(suffix)) or 0
        if size_bytes < wanted_bytes:
            reason = f"{size_bytes} bytes are left of {wanted_bytes}"
            loading.effects.trace("damaged-file", path=segment.path(suffix), reason=reason)
            return False
    return True
