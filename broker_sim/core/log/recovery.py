"""Loading a log from its files, after a clean stop or after a crash at any byte.

What is known flushed: after a clean stop everything that the segment states say
(`segment_states`); after a crash the same below the recovery point, for it was flushed before they
were written. There no byte of the log is read. What comes after is read batch by batch, every CRC
checked, offsets without a gap, and truncated at the first batch that is not whole; indexes get
their rest from that, and producer states begin with the snapshot at the recovery point. A segment
without a state, or whose files are shorter than it says, is read from its first byte. So a lost
index is noticed by its length, and a changed one by its CRC when it is first used (`Segment`).

Base offset and leader epoch of a batch lie outside its CRC. A base offset must follow the batch
before; only a compacted segment that is not the last may have gaps. A leader epoch may not fall
from one batch to the next above the log start, nor be above the leader's. So a changed one is found
unless it fits both neighbours; below the recovery point, as in Kafka, nobody looks.

Sources: Kafka's `LogLoader`, `LogSegment.recover`, `ProducerStateManager.truncateAndReload`. Unlike
Kafka a damaged segment in the middle does not take the later ones with it: what can be read stays
readable, and a read in the damaged part says CORRUPT_MESSAGE.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from broker_sim.core.effects import Append, Delete, Effects, Truncate, WriteFile
from broker_sim.core.log import files, leader_epochs
from broker_sim.core.log.continuity import BatchRules, whole_batches
from broker_sim.core.log.indexes import RELATIVE_OFFSET_MAX, TransactionIndex
from broker_sim.core.log.leader_epochs import LeaderEpochs
from broker_sim.core.log.loading import (
    Folder,
    KnownAtStart,
    LoadedLog,
    Loading,
    offsets_of,
    open_segments,
    with_next_bases,
)
from broker_sim.core.log.producer_snapshots import SUFFIX as SNAPSHOT_SUFFIX
from broker_sim.core.log.producer_snapshots import CorruptSnapshot, decode_snapshot, snapshot_name
from broker_sim.core.log.producer_state import ProducerStateEntry, ProducerStates
from broker_sim.core.log.scan import is_torn, scan_headers
from broker_sim.core.log.segment import LOG_SUFFIX, SUFFIXES, TRANSACTION_INDEX_SUFFIX, Segment
from broker_sim.core.log.values import AbortedTransaction
from txnlog_kafka.wire.records import BatchHeader, CorruptBatch, decode_marker


class DamagedLog(ValueError):
    """A damaged log that may not be truncated; the text names the file and the position."""


def create_log(folder: Folder, effects: Effects, *, base_offset: int = 0) -> LoadedLog:
    """A log without a batch, and its first files."""
    path = f"{folder.directory}/{files.PARTITION_METADATA}"
    effects.storage.append(WriteFile(path, files.encode_partition_metadata(folder.topic_id)))
    segment = Segment(folder.directory, base_offset, folder.config.index_interval_bytes)
    segment.create_files(effects)
    return LoadedLog(
        [segment],
        ProducerStates(),
        LeaderEpochs(),
        set(),
        recovery_point=base_offset,
        log_start_offset=base_offset,
    )


def load_log(folder: Folder, known: KnownAtStart, effects: Effects) -> LoadedLog:
    """The log of the folder, its files repaired through `effects`.

    Raises InconsistentTopicId when the folder is another topic's, DamagedLog (see `KnownAtStart`)
    also where the log ends below its start: DeleteRecords flushes before it moves the start.
    """
    # List the folder. Without a segment the log begins again, where its start is known to be.
    storage = folder.storage
    names = storage.list(folder.directory)
    bases = offsets_of(names, LOG_SUFFIX)
    truncations = tuple(offsets_of(names, files.TRUNCATION_SUFFIX))
    is_named = _check_topic_id(folder)
    log_start_offset = known.log_start_offset
    if not bases:
        effects.storage.append(Delete(folder.directory))
        return create_log(folder, effects, base_offset=log_start_offset)
    # Repair the folder, open the segments, and replay the batches for the producers' states.
    loading = Loading(folder, effects, known, truncates=bool(truncations))
    if not is_named:
        path = loading.path(files.PARTITION_METADATA)
        effects.storage.append(WriteFile(path, files.encode_partition_metadata(folder.topic_id)))
    _remove_strays(loading, names, set(bases))
    open_segments(loading, bases)
    recovery_point = _recovery_point(loading)
    snapshots = _load_producers(loading, offsets_of(names, SNAPSHOT_SUFFIX), recovery_point)
    # Check the end against the log start, then write the leader epochs from the start on.
    active = loading.segments[-1]
    if active.next_offset < log_start_offset:
        raise DamagedLog(
            f"{folder.directory} ends at offset {active.next_offset}, below its log start "
            f"{log_start_offset} in log-start-offset-checkpoint: one of the two is damaged"
        )
    log_start_offset = max(log_start_offset, loading.segments[0].base_offset)
    _find_earlier_epochs(loading, log_start_offset)
    _store_epochs(loading, log_start_offset)
    return LoadedLog(
        loading.segments,
        loading.producers,
        loading.epochs,
        snapshots,
        dirty=(active.path(),) if active.size_bytes > active.known_flushed_bytes else (),
        recovery_point=recovery_point,
        scanned_bytes=loading.scanned_bytes,
        has_states=loading.has_states,
        recovered=tuple(loading.recovered),
        log_start_offset=log_start_offset,
        truncations=truncations,
    )


def _recovery_point(loading: Loading) -> int:
    """The end of what is known flushed, without a gap."""
    recovery_point = 0
    for segment, next_base in with_next_bases(loading.segments):
        recovery_point = segment.next_offset
        ends_early = next_base is not None and recovery_point < next_base
        if ends_early or segment.size_bytes < loading.stored_bytes(segment):
            break
    return recovery_point


def _check_topic_id(folder: Folder) -> bool:
    """True if the folder names its topic id. Raises InconsistentTopicId for another topic."""
    path = f"{folder.directory}/{files.PARTITION_METADATA}"
    stored = files.decode_partition_metadata(files.read_whole(folder.storage, path) or b"")
    if stored is not None and stored != folder.topic_id:
        raise files.InconsistentTopicId(
            f"{folder.directory} holds topic id {stored.hex()}, expected {folder.topic_id.hex()}"
        )
    return stored is not None


def _remove_strays(loading: Loading, names: Sequence[str], bases: set[int]) -> None:
    """Indexes whose log file is gone: the rest of a segment that was being removed."""
    for suffix in SUFFIXES[1:]:
        for base in offsets_of(names, suffix):
            if base not in bases:
                path = loading.path(f"{base:020d}{suffix}")
                loading.effects.storage.append(Delete(path))


# --------------------------------------------------------------------------- replay


def _load_producers(loading: Loading, snapshot_offsets: list[int], recovery_point: int) -> set[int]:
    """Replay what the newest good snapshot does not cover; the snapshots that are kept."""
    segments = loading.segments
    start_offset = segments[0].base_offset
    found = _load_snapshot(loading, snapshot_offsets, start_offset, recovery_point)
    replay_from = start_offset if found is None else found
    for segment, next_base in with_next_bases(segments):
        if segment.next_offset > replay_from:
            _replay_stored(loading, segment, replay_from, segment.known_flushed_bytes)
        is_whole = segment.base_offset in loading.states and (
            segment.size_bytes == loading.stored_bytes(segment)
        )
        if next_base is None or not is_whole:
            _recover_segment(loading, segment, next_base)
        else:
            _check_end(loading, segment, next_base)
    end_offset = segments[-1].next_offset
    is_short = start_offset > 0 or loading.may_skip_offsets
    if found is None and is_short and not any(segment.damaged for segment in segments):
        _take_later_snapshot(loading, snapshot_offsets, end_offset)
    loading.producers.on_high_watermark(end_offset)
    # What expired while the broker was down: nothing is known of it, as of any other.
    expiration_ms = loading.folder.config.producer_id_expiration_ms
    loading.producers.remove_expired(loading.effects.now_ms, expiration_ms)
    kept = {recovery_point, *(segment.base_offset for segment in segments)}
    return _prune_snapshots(loading, snapshot_offsets, kept, end_offset)


def replay_producers(
    folder: Folder, segments: Sequence[Segment], snapshots: set[int], effects: Effects
) -> Iterable[ProducerStateEntry]:
    """The states of all producers at the end of these segments, by the newest snapshot below it."""
    loading = Loading(folder, effects, segments=list(segments))
    start_offset, end_offset = segments[0].base_offset, segments[-1].next_offset
    offsets = sorted(snapshots)
    found = _load_snapshot(loading, offsets, start_offset, end_offset)
    snapshots.intersection_update(offsets)
    replay_from = start_offset if found is None else found
    for segment, next_base in with_next_bases(segments):
        if segment.next_offset > replay_from:
            _replay_stored(loading, segment, replay_from, segment.size_bytes)
        end = end_offset if next_base is None else next_base
        if segment.damaged and end > replay_from:
            for _ in loading.producers.end_open(end - 1):
                pass  # the transaction index has it
    return loading.producers.entries.values()


def _take_later_snapshot(loading: Loading, snapshot_offsets: list[int], end_offset: int) -> None:
    """Load a later snapshot: it has the producers whose batches were compacted or deleted.

    As in Kafka, only a snapshot knows them. A snapshot may exist above the recovery point: the log
    below it was flushed before it was written. A transaction that the batches leave open stays
    open, because its marker may be damaged.
    """
    replayed = loading.producers
    start_offset = loading.segments[0].base_offset
    newest = _load_snapshot(loading, snapshot_offsets, start_offset, end_offset)
    if newest is None:
        return
    for segment in loading.segments:
        if segment.next_offset > newest:
            _replay_stored(loading, segment, newest, segment.size_bytes)
    entries = loading.producers.entries
    for producer_id, entry in replayed.entries.items():
        if entry.current_txn_first_offset is not None:
            known = entries.setdefault(producer_id, entry)
            known.current_txn_first_offset = entry.current_txn_first_offset
    loading.producers = ProducerStates(entries.values())


def _load_snapshot(
    loading: Loading, snapshot_offsets: list[int], start_offset: int, end_offset: int
) -> int | None:
    """The offset of the newest snapshot in [start, end], whose producer states are taken."""
    for offset in sorted(snapshot_offsets, reverse=True):
        if not start_offset <= offset <= end_offset:
            continue
        data = files.read_whole(loading.storage, loading.path(snapshot_name(offset)))
        try:
            entries = decode_snapshot(data or b"")
        except CorruptSnapshot as corrupt:
            loading.effects.trace("corrupt-snapshot", offset=offset, reason=str(corrupt))
            snapshot_offsets.remove(offset)
            loading.effects.storage.append(Delete(loading.path(snapshot_name(offset))))
            continue
        loading.producers = ProducerStates(entries)
        return offset
    return None


def _prune_snapshots(
    loading: Loading, snapshot_offsets: list[int], wanted: set[int], end_offset: int
) -> set[int]:
    """Keep the wanted ones and the newest; none outside the log."""
    start_offset = loading.segments[0].base_offset
    in_range = [o for o in snapshot_offsets if start_offset <= o <= end_offset]
    kept = {o for o in in_range if o in wanted or o == max(in_range)}
    for offset in snapshot_offsets:
        if offset not in kept:
            loading.effects.storage.append(Delete(loading.path(snapshot_name(offset))))
    return kept


def _replay_stored(loading: Loading, segment: Segment, replay_from: int, end: int) -> None:
    """Replay the batches in the first `end` bytes that a snapshot does not cover."""
    try:
        for _ in _replay_file(loading, segment, replay_from, end):
            pass
    except CorruptBatch as corrupt:
        loading.effects.trace("damaged-file", path=segment.path(), reason=str(corrupt))


def _replay_file(
    loading: Loading, segment: Segment, replay_from: int, end: int
) -> Iterator[AbortedTransaction]:
    """Replay batches from the offset on, up to position `end`; the transactions they abort."""
    storage, path = loading.storage, segment.path()
    start = segment.find(max(replay_from, segment.base_offset), storage)
    next_offset = segment.base_offset
    for header, position in scan_headers(storage, path, start, end):
        if header.base_offset < next_offset:
            raise CorruptBatch(
                f"{path}: the batch at position {position} has base offset {header.base_offset}, "
                f"expected at least {next_offset}"
            )
        next_offset = header.next_offset
        _assign_epoch(loading, loading.epochs, header)
        if header.has_producer_id and header.base_offset >= replay_from:
            marker = None
            if header.is_control:
                batch = storage.read(path, position, header.size_bytes)
                marker = decode_marker(batch, 0, header)
            aborted = loading.producers.replay(header, marker)
            if aborted is not None:
                yield aborted


def _recover_segment(loading: Loading, segment: Segment, next_base: int | None) -> None:
    """Read what is not known flushed, keep what is whole of it, give the indexes their rest."""
    stored_bytes, start = loading.stored_bytes(segment), segment.size_bytes
    # Only closed segments are compacted; a follower appends what a leader has of its own.
    is_closed = next_base is not None or loading.truncates
    rules = BatchRules(
        next_offset=segment.next_offset,
        end_offset=segment.base_offset + RELATIVE_OFFSET_MAX if next_base is None else next_base,
        may_skip_offsets=loading.may_skip_offsets
        and (is_closed or loading.known.has_other_replicas),
        leader_epoch_min=loading.epochs.latest_below(segment.next_offset),
        leader_epoch_max=loading.known.leader_epoch_max,
        log_start_offset=loading.known.log_start_offset,
    )
    known = [index.size_bytes for _, index in segment.indexes()]
    batches = whole_batches(loading.storage, segment.path(), start, stored_bytes, rules)
    try:
        for header, batch in batches:
            marker = decode_marker(batch, 0, header) if header.is_control else None
            loading.scanned_bytes += header.size_bytes
            segment.index_batch(header)
            _assign_epoch(loading, loading.epochs, header)
            if header.has_producer_id:
                aborted = loading.producers.replay(header, marker)
                if aborted is not None:
                    segment.transaction_index.append(aborted)
    except CorruptBatch as corrupt:
        _stop_at(loading, segment, next_base, str(corrupt))
    if next_base is not None:
        loading.recovered.append(segment)
        segment.damaged = segment.size_bytes < stored_bytes or _ends_early(
            loading, segment, next_base
        )
        if segment.damaged:
            _end_transactions(loading, segment, next_base)
    if next_base is not None or loading.known.clean_shutdown:
        segment.time_index.maybe_append(segment.max_timestamp, segment.max_timestamp_offset)
    _store_indexes(loading, segment, known)


def _store_indexes(loading: Loading, segment: Segment, known: Sequence[int]) -> None:
    """Make the files of the indexes hold what they should, from the `known` bytes of each on."""
    unsaved = segment.unsaved
    segment.save_indexes(loading.effects)
    for (suffix, index), known_bytes in zip(segment.indexes(), known, strict=True):
        if suffix in unsaved:
            continue
        if index.count == 0 and suffix == TRANSACTION_INDEX_SUFFIX:
            if loading.storage.size_bytes(segment.path(suffix)) is not None:
                loading.effects.storage.append(Delete(segment.path(suffix)))
        else:
            _store_tail(loading, segment.path(suffix), known_bytes, index.tail())


def _stop_at(loading: Loading, segment: Segment, next_base: int | None, reason: str) -> None:
    """End the log at the present end of the segment: nothing after it is part of the log."""
    kept, stored_bytes = segment.size_bytes, loading.stored_bytes(segment)
    torn = is_torn(loading.storage, segment.path(), kept, stored_bytes)
    if next_base is None and not torn and not loading.known.may_truncate:
        raise DamagedLog(reason)
    kind = "log-recovered" if torn and next_base is None else "damaged-file"
    loading.effects.trace(kind, path=segment.path(), position=kept, reason=reason)
    if next_base is None:
        loading.effects.storage.append(Truncate(segment.path(), kept))


def _check_end(loading: Loading, segment: Segment, next_base: int) -> None:
    """Check that a segment which is known flushed as a whole still reaches the next segment."""
    segment.damaged = _ends_early(loading, segment, next_base)
    if segment.damaged:
        index = segment.transaction_index
        known_bytes = index.size_bytes
        _end_transactions(loading, segment, next_base)
        if index.size_bytes > known_bytes:
            loading.recovered.append(segment)
            _store_tail(loading, segment.path(TRANSACTION_INDEX_SUFFIX), known_bytes, index.tail())


def _end_transactions(loading: Loading, segment: Segment, next_base: int) -> None:
    """End the transactions open at the end of a damaged segment; note them once, when found."""
    state = loading.states.get(segment.base_offset)
    index = segment.transaction_index
    is_noted = state is not None and state.damaged and index.count >= state.aborted_count
    for lost in loading.producers.end_open(next_base - 1):
        if not is_noted:
            index.append(lost)


def _ends_early(loading: Loading, segment: Segment, next_base: int) -> bool:
    """True if batches are missing at the end. Compaction leaves no gap there (see `Cleaning`)."""
    state = loading.states.get(segment.base_offset)
    if state is not None and (state.damaged or segment.next_offset < state.next_offset):
        return True
    return segment.next_offset < next_base


def _store_tail(loading: Loading, path: str, position: int, tail: bytes) -> None:
    """Make the file hold `tail` from the position on; no operation when it does."""
    size_bytes = loading.storage.size_bytes(path)
    if size_bytes is not None:
        if loading.storage.read(path, position, size_bytes - position) == tail:
            return
        if size_bytes > position:
            loading.effects.storage.append(Truncate(path, position))
    loading.effects.storage.append(Append(path, position, tail))


def _assign_epoch(loading: Loading, epochs: LeaderEpochs, header: BatchHeader) -> None:
    """Not of what lies below the log start: it may be above those that follow (`continuity`)."""
    if header.next_offset > loading.known.log_start_offset:
        epochs.assign(header.leader_epoch, header.base_offset)


def _find_earlier_epochs(loading: Loading, log_start_offset: int) -> None:
    """Find the epochs below the epochs of the segment states, which begin at an older log start.

    A truncation may lower the log start on disk first; after a crash in between, all batches are
    still there.
    """
    later, earlier = loading.epochs.entries, LeaderEpochs()
    end_offset = later[0][1] if later else loading.segments[-1].next_offset
    if end_offset <= log_start_offset:
        return
    storage = loading.storage
    try:
        for segment in loading.segments:
            start = segment.find(log_start_offset, storage)
            for header, _ in scan_headers(storage, segment.path(), start, segment.size_bytes):
                if header.base_offset >= end_offset:
                    break
                _assign_epoch(loading, earlier, header)
            if segment.next_offset >= end_offset:
                break
    except CorruptBatch as corrupt:
        loading.effects.trace("damaged-file", path=segment.path(), reason=str(corrupt))
    latest = earlier.latest
    later = [entry for entry in later if latest is None or entry[0] > latest]
    loading.epochs = LeaderEpochs([*earlier.entries, *later])


def _store_epochs(loading: Loading, log_start_offset: int) -> None:
    """Kafka's checkpoint of them; it is written for Kafka's tools, and never read here."""
    loading.epochs.truncate_start(log_start_offset)
    loading.epochs.truncate_end(loading.segments[-1].next_offset)
    path = loading.path(leader_epochs.FILE_NAME)
    data = loading.epochs.encode()
    stored = files.read_whole(loading.storage, path)
    if stored != data and (stored or loading.epochs.entries):
        loading.effects.storage.append(WriteFile(path, data))


# --------------------------------------------------------------------------- later repair


def rebuild_aborted(
    folder: Folder, segments: Sequence[Segment], damaged: Segment
) -> TransactionIndex:
    """The transaction index of the known-flushed part of `damaged`, as the log has it.

    Raises CorruptBatch where the log cannot be read either.
    """
    loading = Loading(folder, Effects(0, 0), segments=list(segments))
    snapshots = offsets_of(folder.storage.list(folder.directory), SNAPSHOT_SUFFIX)
    start_offset = segments[0].base_offset
    found = _load_snapshot(loading, snapshots, start_offset, damaged.base_offset)
    replay_from = start_offset if found is None else found
    index = TransactionIndex()
    for segment, next_base in with_next_bases(segments):
        is_wanted = segment is damaged
        if is_wanted or (next_base is not None and next_base > replay_from):
            end = segment.known_flushed_bytes if is_wanted else segment.size_bytes
            found_here = list(_replay_file(loading, segment, replay_from, end))
            if segment.damaged and next_base is not None:
                found_here += loading.producers.end_open(next_base - 1)
            if is_wanted:
                for aborted in found_here:
                    index.append(aborted)
                break
    return index
