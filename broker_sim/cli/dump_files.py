"""Files beside the segments: indexes, producer snapshots, checkpoints, small text files."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from broker_sim.cli.dump_log import scan_batches
from broker_sim.cli.dump_values import Damage, Item
from broker_sim.core.log.indexes import OffsetIndex, TimeIndex, TransactionIndex
from broker_sim.core.log.leader_epochs import LeaderEpochs
from broker_sim.core.log.offset_checkpoint import decode_offsets
from broker_sim.core.log.producer_snapshots import CorruptSnapshot, decode_snapshot
from broker_sim.core.log.segment_states import decode_states

_BASE_OFFSET = re.compile(r"\d{20}")

Dumper = Callable[[Path], Iterator[Item]]


def is_known(path: Path) -> bool:
    """Return True if there is a dumper for a file of this name."""
    return path.suffix in FILE_DUMPERS or path.name in FILE_DUMPERS


def _entries(path: Path, layout: struct.Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (position, fields) of each entry, up to the unused rest of a preallocated file."""
    data = path.read_bytes()
    used = len(data) - len(data) % layout.size
    for position in range(0, used, layout.size):
        if not data[position:].strip(b"\0"):
            return
        yield position, layout.unpack_from(data, position)
    if data[used:].strip(b"\0"):
        raise Damage(used, f"{len(data) - used} bytes are left, an entry takes {layout.size}")


def _base_offset(path: Path) -> int:
    if _BASE_OFFSET.fullmatch(path.stem) is None:
        raise Damage(0, "the file's name is not an offset")
    return int(path.stem)


def _dump_offset_index(path: Path) -> Iterator[Item]:
    """Yield the entries; they must rise, and point at batches that end with their offset, if there
    is a log."""
    base = _base_offset(path)
    log = path.with_suffix(".log")
    last_offsets: dict[int, int] = {}
    known_bytes = 0
    if log.exists():
        try:
            for position, header, _ in scan_batches(log):
                last_offsets[position] = header.last_offset
            known_bytes = sys.maxsize
        except Damage as damage:
            # A dump of the log file itself reports the damage; the batches before it are known.
            known_bytes = damage.position
    before = (-1, -1)
    for at, (relative, position) in _entries(path, OffsetIndex.layout):
        if relative <= before[0] or position <= before[1]:
            raise Damage(at, f"offset {base + relative} at {position} after {before}")
        before = (relative, position)
        found = last_offsets.get(position)
        if position < known_bytes and found != base + relative:
            raise Damage(at, f"position {position} holds a batch that ends with offset {found}")
        yield Item("entry", {"offset": base + relative, "position": position})


def _dump_time_index(path: Path) -> Iterator[Item]:
    base = _base_offset(path)
    before = (-1, -1)
    for at, (timestamp, relative) in _entries(path, TimeIndex.layout):
        if timestamp < before[0] or relative < before[1]:
            raise Damage(at, f"timestamp {timestamp} of offset {base + relative} after {before}")
        before = (timestamp, relative)
        yield Item("entry", {"timestamp": timestamp, "offset": base + relative})


def _dump_transaction_index(path: Path) -> Iterator[Item]:
    for at, (version, producer_id, first, last, stable) in _entries(path, TransactionIndex.layout):
        if version != 0 or not 0 <= first <= last or stable < 0:
            raise Damage(at, f"version {version}, offsets {first} to {last}, stable {stable}")
        yield Item(
            "entry",
            {
                "version": version,
                "producerId": producer_id,
                "firstOffset": first,
                "lastOffset": last,
                "lastStableOffset": stable,
            },
        )


def _dump_snapshot(path: Path) -> Iterator[Item]:
    try:
        entries = decode_snapshot(path.read_bytes())
    except CorruptSnapshot as corrupt:
        raise Damage(0, str(corrupt)) from corrupt
    for entry in entries:
        last = entry.batches[-1] if entry.batches else None
        yield Item(
            "entry",
            {
                "producerId": entry.producer_id,
                "producerEpoch": entry.producer_epoch,
                "coordinatorEpoch": entry.coordinator_epoch,
                "currentTxnFirstOffset": entry.current_txn_first_offset,
                "lastTimestamp": entry.last_timestamp,
                "lastSequence": None if last is None else last.last_sequence,
                "lastOffset": None if last is None else last.last_offset,
                "offsetDelta": None if last is None else last.offset_delta,
            },
        )


def _dump_leader_epochs(path: Path) -> Iterator[Item]:
    epochs = LeaderEpochs.decode(path.read_bytes())
    if epochs is None:
        raise Damage(0, "this is not a leader epoch checkpoint")
    for epoch, start_offset in epochs.entries:
        yield Item("entry", {"epoch": epoch, "startOffset": start_offset})


def _dump_offsets(path: Path) -> Iterator[Item]:
    offsets = decode_offsets(path.read_bytes())
    if offsets is None:
        raise Damage(0, "this is not an offset checkpoint")
    for (topic, partition), at in sorted(offsets.items()):
        yield Item("entry", {"topic": topic, "partition": partition, "offset": at})


def _dump_segment_states(path: Path) -> Iterator[Item]:
    try:
        found = decode_states(path.read_bytes())
    except (ValueError, TypeError):
        found = None
    if found is None:
        raise Damage(0, "the CRC is wrong, or this is not a segment state checkpoint")
    epochs, states = found
    for epoch, start_offset in epochs:
        yield Item("epoch", {"epoch": epoch, "startOffset": start_offset})
    for state in states.values():
        yield Item("segment", state._asdict())


def _dump_text(path: Path) -> Iterator[Item]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.strip():
            yield Item("line", {"text": line})


FILE_DUMPERS: dict[str, Dumper] = {
    ".index": _dump_offset_index,
    ".timeindex": _dump_time_index,
    ".txnindex": _dump_transaction_index,
    ".snapshot": _dump_snapshot,
    ".crc": _dump_text,
    "leader-epoch-checkpoint": _dump_leader_epochs,
    "recovery-point-offset-checkpoint": _dump_offsets,
    "replication-offset-checkpoint": _dump_offsets,
    "log-start-offset-checkpoint": _dump_offsets,
    "cleaner-offset-checkpoint": _dump_offsets,
    "stray-offset-checkpoint": _dump_text,
    "segment-state-checkpoint": _dump_segment_states,
    "partition.metadata": _dump_text,
    "meta.properties": _dump_text,
    "machine.boot": _dump_text,
    "quorum-state": _dump_text,
    ".kafka_cleanshutdown": _dump_text,
}
"""Dumpers by the suffix or the whole name of a file."""
