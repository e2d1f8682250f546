"""Making a log from its files, after a clean stop or after a crash at any byte.

What is trusted. After a clean stop: everything that is well formed. After a crash: all segments but
the last, for each was flushed before the next was created. What is not trusted is read from its
first byte, every CRC checked, cut at the first batch that is not whole, and its indexes are built
again. Producer states come from the newest good snapshot below that point, and from replaying the
log after it; the aborted-transaction index of a rebuilt segment comes from the same replay.

Sources: Kafka's `LogLoader`, `LogSegment.recover`, `ProducerStateManager.truncateAndReload`. Unlike
Kafka a damaged segment in the middle does not take the later ones with it: what can be read stays
readable, and a read in the damaged part says CORRUPT_MESSAGE.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from broker_sim.core.effects import Append, Delete, Effects, Storage, Truncate, WriteFile
from broker_sim.core.log import files, leader_epochs
from broker_sim.core.log.config import LogConfig
from broker_sim.core.log.indexes import (
    RELATIVE_OFFSET_MAX,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from broker_sim.core.log.leader_epochs import LeaderEpochs
from broker_sim.core.log.producer_state import ProducerStates
from broker_sim.core.log.scan import scan_batches, scan_headers
from broker_sim.core.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
)
from broker_sim.core.log.snapshots import (
    SUFFIX as SNAPSHOT_SUFFIX,
)
from broker_sim.core.log.snapshots import CorruptSnapshot, decode_snapshot, snapshot_name
from broker_sim.core.log.values import AbortedTransaction
from txnlog_spark.wire.records import BatchHeader, CorruptBatch, TransactionMarker, decode_marker

_OFFSET_NAME = re.compile(r"^(\d{20})(\.\w+)$")


@dataclass(frozen=True, slots=True)
class Folder:
    """Where a partition's files are and what they should be."""

    directory: str
    topic_id: bytes
    config: LogConfig
    storage: Storage | None


@dataclass(slots=True)
class LoadedLog:
    """The parts of a log in memory, equal to what the files say after the effects."""

    segments: list[Segment]
    producers: ProducerStates
    epochs: LeaderEpochs
    snapshots: set[int]
    dirty: tuple[str, ...] = ()
    log_start_offset: int = 0
    """The first offset that may be read; it lies in the first segment, or at its base."""


@dataclass(slots=True)
class _Loading:
    folder: Folder
    storage: Storage
    effects: Effects
    segments: list[Segment] = field(default_factory=list)
    untrusted: list[Segment] = field(default_factory=list)
    producers: ProducerStates = field(default_factory=ProducerStates)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)

    def path(self, name: str) -> str:
        return f"{self.folder.directory}/{name}"


def create_log(folder: Folder, effects: Effects, *, base_offset: int = 0) -> LoadedLog:
    """A log without a batch, and its first files."""
    path = f"{folder.directory}/{files.PARTITION_METADATA}"
    effects.storage.append(WriteFile(path, files.encode_partition_metadata(folder.topic_id)))
    segment = Segment(folder.directory, base_offset, folder.config.index_interval_bytes)
    segment.create_files(effects)
    return LoadedLog(
        [segment], ProducerStates(), LeaderEpochs(), set(), log_start_offset=base_offset
    )


def load_log(
    folder: Folder,
    storage: Storage,
    *,
    clean_shutdown: bool,
    effects: Effects,
    log_start_offset: int = 0,
) -> LoadedLog:
    """The log of the folder, its files repaired through `effects`.

    A log that ends below `log_start_offset` lost what was not flushed, and all it has was deleted
    by DeleteRecords: it begins anew there, so that no offset is used twice (Kafka's `LogLoader`).
    Raises InconsistentTopicId when the folder is another topic's.
    """
    names = storage.list(folder.directory)
    bases = _offsets_of(names, LOG_SUFFIX)
    _check_topic_id(folder, storage)
    if not bases:
        effects.storage.append(Delete(folder.directory))
        return create_log(folder, effects, base_offset=log_start_offset)
    loading = _Loading(folder, storage, effects)
    _remove_strays(loading, names, set(bases))
    for base, next_base in zip(bases, [*bases[1:], None], strict=True):
        _open_segment(loading, base, next_base, trust=clean_shutdown or next_base is not None)
    _load_epochs(loading)
    snapshots = _load_producers(loading, _offsets_of(names, SNAPSHOT_SUFFIX))
    if loading.segments[-1].next_offset < log_start_offset:
        effects.trace("log-below-start", log=folder.directory, start_offset=log_start_offset)
        effects.storage.append(Delete(folder.directory))
        return create_log(folder, effects, base_offset=log_start_offset)
    log_start_offset = max(log_start_offset, loading.segments[0].base_offset)
    _store_epochs(loading, log_start_offset)
    active = loading.segments[-1]
    dirty = (active.path(),) if active in loading.untrusted and active.size_bytes else ()
    return LoadedLog(
        loading.segments, loading.producers, loading.epochs, snapshots, dirty, log_start_offset
    )


def _offsets_of(names: Sequence[str], suffix: str) -> list[int]:
    matches = (_OFFSET_NAME.match(name) for name in names)
    return sorted(int(m.group(1)) for m in matches if m is not None and m.group(2) == suffix)


def _check_topic_id(folder: Folder, storage: Storage) -> None:
    path = f"{folder.directory}/{files.PARTITION_METADATA}"
    data = files.read_small(storage, path)
    stored = files.decode_partition_metadata(data)
    if stored is not None and stored != folder.topic_id:
        raise files.InconsistentTopicId(
            f"{folder.directory} holds topic id {stored.hex()}, expected {folder.topic_id.hex()}"
        )


def _remove_strays(loading: _Loading, names: Sequence[str], bases: set[int]) -> None:
    """Indexes whose log file is gone: the rest of a segment that was being removed."""
    for suffix in SUFFIXES[1:]:
        for base in _offsets_of(names, suffix):
            if base not in bases:
                path = loading.path(f"{base:020d}{suffix}")
                loading.effects.storage.append(Delete(path))


# --------------------------------------------------------------------------- segments


def _open_segment(loading: _Loading, base: int, next_base: int | None, *, trust: bool) -> None:
    folder = loading.folder
    segment = Segment(folder.directory, base, folder.config.index_interval_bytes)
    loading.segments.append(segment)
    log_bytes = loading.storage.size_bytes(segment.path()) or 0
    if trust and _load_indexes(segment, loading.storage, log_bytes):
        if _trust_tail(segment, loading.storage, log_bytes, next_base):
            return
        segment.reset()
    loading.untrusted.append(segment)


def _load_indexes(segment: Segment, storage: Storage, log_bytes: int) -> bool:
    """Take the index files; False unless all are there and well formed."""
    offsets = files.read_whole(storage, segment.path(INDEX_SUFFIX))
    times = files.read_whole(storage, segment.path(TIME_INDEX_SUFFIX))
    aborted = files.read_whole(storage, segment.path(TRANSACTION_INDEX_SUFFIX)) or b""
    if offsets is None or times is None:
        return False
    offset_index = OffsetIndex.decode(offsets, segment.base_offset, log_bytes)
    time_index = TimeIndex.decode(times, segment.base_offset)
    transaction_index = TransactionIndex.decode(aborted, segment.base_offset)
    if offset_index is None or time_index is None or transaction_index is None:
        return False
    segment.offset_index = offset_index
    segment.time_index = time_index
    segment.transaction_index = transaction_index
    return True


def _trust_tail(segment: Segment, storage: Storage, log_bytes: int, next_base: int | None) -> bool:
    """Walk from the last index entry to the end; False unless it ends where it should."""
    next_offset = segment.base_offset
    try:
        if log_bytes:
            first, _ = next(scan_headers(storage, segment.path(), 0, log_bytes))
            segment.first_timestamp = first.max_timestamp
        start = segment.offset_index.last_position()
        for header, _ in scan_headers(storage, segment.path(), start, log_bytes):
            next_offset = header.next_offset
    except CorruptBatch:
        return False
    if next_base is not None and next_offset != next_base:
        return False
    segment.trust(position=log_bytes, next_offset=next_offset)
    return True


# --------------------------------------------------------------------------- replay


def _load_producers(loading: _Loading, snapshot_offsets: list[int]) -> set[int]:
    """Replay what the newest good snapshot does not cover; the snapshots that are kept."""
    segments = loading.segments
    start_offset = segments[0].base_offset
    trusted_end = segments[-1].next_offset
    if loading.untrusted:
        trusted_end = loading.untrusted[0].base_offset
    replay_from = _load_snapshot(loading, snapshot_offsets, start_offset, trusted_end)
    for index, segment in enumerate(segments):
        next_base = segments[index + 1].base_offset if index + 1 < len(segments) else None
        if segment in loading.untrusted:
            _rebuild(loading, segment, next_base)
        elif segment.next_offset > replay_from:
            _replay_trusted(loading, segment, replay_from)
    end_offset = segments[-1].next_offset
    loading.producers.on_high_watermark(end_offset)
    return _prune_snapshots(loading, snapshot_offsets, end_offset)


def _load_snapshot(
    loading: _Loading, snapshot_offsets: list[int], start_offset: int, trusted_end: int
) -> int:
    """The offset that the producer states stand at."""
    for offset in sorted(snapshot_offsets, reverse=True):
        if not start_offset <= offset <= trusted_end:
            continue
        data = files.read_whole(loading.storage, loading.path(snapshot_name(offset)))
        try:
            loading.producers = ProducerStates(decode_snapshot(data or b""))
        except CorruptSnapshot as corrupt:
            loading.effects.trace("corrupt-snapshot", offset=offset, reason=str(corrupt))
            snapshot_offsets.remove(offset)
            loading.effects.storage.append(Delete(loading.path(snapshot_name(offset))))
            continue
        return offset
    return start_offset


def _prune_snapshots(loading: _Loading, snapshot_offsets: list[int], end_offset: int) -> set[int]:
    """Keep those at a segment's base and the newest one; none after the log end."""
    bases = {segment.base_offset for segment in loading.segments}
    in_range = [o for o in snapshot_offsets if min(bases) <= o <= end_offset]
    kept = {o for o in in_range if o in bases or o == max(in_range)}
    for offset in snapshot_offsets:
        if offset not in kept:
            loading.effects.storage.append(Delete(loading.path(snapshot_name(offset))))
    return kept


def _replay_trusted(loading: _Loading, segment: Segment, replay_from: int) -> None:
    storage = loading.storage
    try:
        start = segment.find(max(replay_from, segment.base_offset), storage)
        for header, position in scan_headers(storage, segment.path(), start, segment.size_bytes):
            loading.epochs.assign(header.leader_epoch, header.base_offset)
            if header.has_producer_id and header.base_offset >= replay_from:
                marker = None
                if header.is_control:
                    batch = storage.read(segment.path(), position, header.size_bytes)
                    marker = decode_marker(batch, 0, header)
                _replay(loading, header, marker)
    except CorruptBatch as corrupt:
        loading.effects.trace("damaged-segment", path=segment.path(), reason=str(corrupt))


def _replay(
    loading: _Loading, header: BatchHeader, marker: TransactionMarker | None
) -> AbortedTransaction | None:
    """Apply the batch; the index entry when it ended a transaction by an abort."""
    completed = loading.producers.replay(header, marker)
    if completed is None:
        return None
    stable = loading.producers.last_stable_offset_after(completed)
    loading.producers.complete(completed)
    if not completed.aborted:
        return None
    return AbortedTransaction(
        completed.producer_id, completed.first_offset, completed.last_offset, stable
    )


def _rebuild(loading: _Loading, segment: Segment, next_base: int | None) -> None:
    """Read the segment from its first byte, keep what is whole, make its indexes anew."""
    log_bytes = loading.storage.size_bytes(segment.path()) or 0
    try:
        for header, batch in _good_batches(loading.storage, segment, log_bytes, next_base):
            marker = decode_marker(batch, 0, header) if header.is_control else None
            segment.index_batch(header)
            loading.epochs.assign(header.leader_epoch, header.base_offset)
            if header.has_producer_id:
                aborted = _replay(loading, header, marker)
                if aborted is not None:
                    segment.transaction_index.append(aborted)
    except CorruptBatch as corrupt:
        kept = segment.size_bytes
        loading.effects.trace(
            "log-recovered", path=segment.path(), kept_bytes=kept, reason=str(corrupt)
        )
        if next_base is None:
            loading.effects.storage.append(Truncate(segment.path(), kept))
    if next_base is not None:
        segment.damaged = segment.next_offset != next_base
        segment.time_index.maybe_append(segment.max_timestamp, segment.max_timestamp_offset)
    _store_indexes(loading, segment)


def _good_batches(
    storage: Storage, segment: Segment, log_bytes: int, next_base: int | None
) -> Iterator[tuple[BatchHeader, bytes]]:
    """Whole batches with rising offsets within the segment. Raises CorruptBatch at the first other.

    A batch that lies outside was left by an earlier life of the file: it is no part of this log.
    """
    end_offset = segment.base_offset + RELATIVE_OFFSET_MAX if next_base is None else next_base
    for header, position, batch in scan_batches(storage, segment.path(), 0, log_bytes):
        if header.base_offset < segment.next_offset or header.next_offset > end_offset:
            raise CorruptBatch(
                f"the batch at position {position} has base offset {header.base_offset}, "
                f"expected one in [{segment.next_offset}, {end_offset})"
            )
        yield header, batch


def _store_indexes(loading: _Loading, segment: Segment) -> None:
    _store(loading, segment.path(INDEX_SUFFIX), segment.offset_index.encode())
    _store(loading, segment.path(TIME_INDEX_SUFFIX), segment.time_index.encode())
    aborted = segment.transaction_index.encode()
    path = segment.path(TRANSACTION_INDEX_SUFFIX)
    if aborted:
        _store(loading, path, aborted)
    elif loading.storage.size_bytes(path) is not None:
        loading.effects.storage.append(Delete(path))


def _store(loading: _Loading, path: str, data: bytes) -> None:
    """Make the file hold `data`; no operation when it does."""
    stored = files.read_whole(loading.storage, path)
    if stored == data:
        return
    if stored:
        loading.effects.storage.append(Truncate(path, 0))
    loading.effects.storage.append(Append(path, 0, data))


# --------------------------------------------------------------------------- leader epochs


def _load_epochs(loading: _Loading) -> None:
    """The checkpoint; where it is lost, the epochs of the trusted segments are read again."""
    data = files.read_small(loading.storage, loading.path(leader_epochs.FILE_NAME))
    epochs = LeaderEpochs.decode(data)
    if epochs is not None:
        loading.epochs = epochs
        return
    for segment in loading.segments:
        if segment in loading.untrusted:
            return
        headers = scan_headers(loading.storage, segment.path(), 0, segment.size_bytes)
        try:
            for header, _ in headers:
                loading.epochs.assign(header.leader_epoch, header.base_offset)
        except CorruptBatch as corrupt:
            loading.effects.trace("damaged-segment", path=segment.path(), reason=str(corrupt))


def _store_epochs(loading: _Loading, log_start_offset: int) -> None:
    loading.epochs.truncate_start(log_start_offset)
    loading.epochs.truncate_end(loading.segments[-1].next_offset)
    path = loading.path(leader_epochs.FILE_NAME)
    data = loading.epochs.encode()
    stored = files.read_small(loading.storage, path)
    if stored != data and (stored or loading.epochs.entries):
        loading.effects.storage.append(WriteFile(path, data))
