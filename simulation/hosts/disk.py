"""A disk in memory that can lose power.

Every storage operation is one instant; a crash may come between any two. A killed process loses
nothing, because its writes are in the page cache. A loss of power keeps what was flushed, and of
the rest of each file a prefix of any length, drawn per file: so a later file may survive an earlier
one, and the last batch may be torn at any byte. A file that was never flushed may be gone.

Allowed faults are only those the broker must survive: deletes, renames, truncations and atomic
replacements are taken as durable in their order, as on a journalling file system.

It may be full: a write that does not fit leaves its first part. A flush may fail: then the system
takes the file's pages for clean, and what was not flushed is gone, or some of it, as soon as the
process that learned of it has ended and the next one reads the medium.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from broker_sim.core.effects import (
    Append,
    Delete,
    Flush,
    Rename,
    StorageOperation,
    Truncate,
    Volume,
    WriteFile,
)
from txnlog_kafka.wire.invariants import check

DISK_BYTES = 1 << 60
ZEROS_SHARE = 0.5
"""Share of the files that keep their size after a failed flush with nothing new on the medium."""

POWER_LOSS = "power loss"


class NoSpace(Exception):
    """A write found no space; at most its first part is there."""


class FlushFailed(Exception):
    """A flush failed; nobody knows which bytes of the file are on the medium."""


@dataclass(slots=True)
class _File:
    """Content as the process sees it, and how many of its bytes survive a loss of power."""

    content: bytearray = field(default_factory=bytearray)
    flushed_bytes: int = -1
    """-1: not even the name is on disk."""


class SimDisk:
    """Data directory of a broker; implements the core's `Storage` and performs its operations."""

    def __init__(self, flush_fails: Callable[[], bool] = bool) -> None:
        """`flush_fails` is asked before each flush."""
        self.flush_works = True
        """False is a planted bug: flushes are acknowledged and not done."""
        self._flush_fails = flush_fails
        self.free_bytes: int | None = None
        """Free bytes; None: as many as any process needs."""
        self._files: dict[str, _File] = {}
        self._not_flushed: tuple[str, ...] = ()
        """Whose flush has failed."""

    # ------------------------------------------------------------------ Storage

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return up to `length` bytes of a file; b"" for an absent file."""
        file = self._files.get(path)
        return b"" if file is None else bytes(file.content[position : position + length])

    def size_bytes(self, path: str) -> int | None:
        """Return the size of a file; None if the file is absent."""
        file = self._files.get(path)
        return None if file is None else len(file.content)

    def volume(self) -> Volume | None:
        """Return the volume: its size has no bounds, its free bytes may have."""
        free_bytes = DISK_BYTES if self.free_bytes is None else self.free_bytes
        return Volume("disk", DISK_BYTES, free_bytes)

    def list(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a folder."""
        if not path:
            return tuple(sorted({name.partition("/")[0] for name in self._files}))
        prefix = f"{path}/"
        start = len(prefix)
        names = [name[start:] for name in self._files if name.startswith(prefix)]
        return tuple(sorted({name.partition("/")[0] for name in names}))

    # ------------------------------------------------------------------ operations

    def apply(self, operation: StorageOperation) -> None:
        """Perform one operation. Raises NoSpace, FlushFailed."""
        match operation:
            case Append(path, position, data):
                self._append(path, position, data)
            case Flush(paths):
                self._flush(paths)
            case WriteFile(path, data):
                # The new content is written before the old one goes.
                if not self.reserve(len(data)):
                    raise NoSpace(path)
                self._free(self.size_bytes(path) or 0)
                self._files[path] = _File(bytearray(data), len(data))
            case Truncate(path, size_bytes):
                self._truncate(path, size_bytes)
            case Delete(path):
                for name in self._under(path):
                    self._free(len(self._files.pop(name).content))
            case Rename(path, new_path):
                for name in self._under(path):
                    self._files[new_path + name[len(path) :]] = self._files.pop(name)

    def _append(self, path: str, position: int, data: bytes) -> None:
        file = self._files.setdefault(path, _File())
        check(position == len(file.content), "an append leaves a gap or overwrites",
              path=path, position=position, size_bytes=len(file.content))  # fmt: skip
        taken_bytes = self._space_for(len(data))
        file.content += data[:taken_bytes]
        if taken_bytes < len(data):
            raise NoSpace(path)

    def _space_for(self, size_bytes: int) -> int:
        """Take so many free bytes, or all that are left; return their number."""
        if self.free_bytes is None:
            return size_bytes
        taken = min(size_bytes, self.free_bytes)
        self.free_bytes -= taken
        return taken

    def _free(self, size_bytes: int) -> None:
        if self.free_bytes is not None:
            self.free_bytes += size_bytes

    def reserve(self, size_bytes: int) -> bool:
        """Take space without a file, or give it back; return False if there is too little."""
        if self.free_bytes is not None and self.free_bytes < size_bytes:
            return False
        self._free(-size_bytes)
        return True

    def _flush(self, paths: tuple[str, ...]) -> None:
        if not self.flush_works:
            return
        if self._flush_fails():
            self._not_flushed = paths
            raise FlushFailed(", ".join(paths))
        for path in paths:
            file = self._files.get(path)
            check(file is not None, "a flush of a file that is not there", path=path)
            if file is not None:
                file.flushed_bytes = len(file.content)

    def _truncate(self, path: str, size_bytes: int) -> None:
        file = self._files.get(path)
        if file is not None:
            self._free(max(0, len(file.content) - size_bytes))
            del file.content[size_bytes:]
            file.flushed_bytes = min(file.flushed_bytes, len(file.content))

    def _under(self, path: str) -> tuple[str, ...]:
        """Return the file of this path, or all files of the folder."""
        if path in self._files:
            return (path,)
        prefix = f"{path}/"
        return tuple(name for name in self._files if name.startswith(prefix))

    def save(self, folder: Path) -> None:
        """Write all files to a real folder, for a person to look at."""
        for name, file in self._files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)

    # ------------------------------------------------------------------ faults

    def flip(self, path: str, bit: int) -> None:
        """Flip a bit of a file, on the medium too."""
        self._files[path].content[bit // 8] ^= 1 << bit % 8

    def wipe(self) -> None:
        """Empty the disk: another one takes its place."""
        self._files.clear()

    def read_medium(self, rng: random.Random) -> int:
        """Show the next process the medium after a failed flush; return how many bytes are gone.

        They are missing at the file's end, or they are zeros.
        """
        lost_bytes = 0
        for path in self._not_flushed:
            file = self._files.get(path)
            if file is None:
                continue
            flushed_bytes, end = max(0, file.flushed_bytes), len(file.content)
            kept = rng.choice((flushed_bytes, end, rng.randint(flushed_bytes, end)))
            zeros = end - kept if kept == flushed_bytes and rng.random() < ZEROS_SHARE else 0
            lost_bytes += end - kept
            self._free(end - kept - zeros)
            file.content[kept:] = bytes(zeros)
        self._not_flushed = ()
        return lost_bytes

    def lose_power(self, rng: random.Random) -> int:
        """Forget bytes that were not flushed; return how many are gone."""
        lost_bytes = 0
        for path in sorted(self._files):
            file = self._files[path]
            if file.flushed_bytes == len(file.content):
                continue
            kept = rng.choice((0, len(file.content), rng.randint(0, len(file.content))))
            kept = max(kept, file.flushed_bytes)
            lost_bytes += len(file.content) - kept
            if file.flushed_bytes < 0 and kept == 0:
                del self._files[path]
                continue
            del file.content[kept:]
            file.flushed_bytes = kept
        return lost_bytes
