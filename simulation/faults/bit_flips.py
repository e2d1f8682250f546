"""Bits that flip in the files of a broker while it is down.

Beside the logs any bit may flip: indexes, snapshots, segment states and checkpoints are recreated.
In a log a flipped bit of a closed segment is damage. A start reads closed segments only where
nothing says that they are whole; so that file is lost too, and what comes after the damage is
fetched from the others. Of a batch all may change that its CRC covers, and what tells where it
ends; base offset and leader epoch lie outside, and in a compacted log nobody could tell.
"""

from __future__ import annotations

import random

from broker_sim.core.effects import Delete
from broker_sim.core.log import leader_epochs, segment_states
from broker_sim.core.log.offset_checkpoint import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
)
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.records import LENGTH_END, MAGIC_AT, iter_batches

CHECKPOINTS = (CLEANER_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, RECOVERY_POINT_FILE)
BESIDE_LOGS = (
    ".index", ".timeindex", ".txnindex", ".snapshot", leader_epochs.FILE_NAME,
    segment_states.FILE_NAME,
)  # fmt: skip
_LENGTH_AT = 8


def flip_beside_logs(disk: SimDisk, rng: random.Random) -> str | None:
    """Flip one bit of one file; its path, None when there is none."""
    found = [name for name in CHECKPOINTS if disk.size_bytes(name)]
    for folder in disk.list(""):
        paths = (f"{folder}/{name}" for name in disk.list(folder) if name.endswith(BESIDE_LOGS))
        found += [path for path in paths if disk.size_bytes(path)]
    if not found:
        return None
    path = rng.choice(found)
    disk.flip(path, rng.randrange(8 * (disk.size_bytes(path) or 0)))
    return path


def closed_segments(disk: SimDisk) -> list[tuple[str, str]]:
    """(folder, name) of each that has anything in it."""
    closed = []
    for folder in disk.list(""):
        segments = [name for name in disk.list(folder) if name.endswith(".log")]
        closed += [(folder, name) for name in segments[:-1] if disk.size_bytes(f"{folder}/{name}")]
    return closed


def flip_in_closed_segment(disk: SimDisk, rng: random.Random) -> str | None:
    """Flip one bit of one batch, and lose the segment states; the file, None when there is none."""
    closed = closed_segments(disk)
    if not closed:
        return None
    folder, name = rng.choice(closed)
    path = f"{folder}/{name}"
    batches = list(iter_batches(disk.read(path, 0, disk.size_bytes(path) or 0)))
    if not batches:
        return None
    header, at = rng.choice(batches)
    places = (*range(_LENGTH_AT, LENGTH_END), *range(MAGIC_AT, header.size_bytes))
    disk.flip(path, 8 * (at + rng.choice(places)) + rng.randrange(8))
    disk.apply(Delete(f"{folder}/{segment_states.FILE_NAME}"))
    return path
