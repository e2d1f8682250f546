"""A disk in memory that can lose power.

Every storage operation is one instant; a crash may come between any two. A killed process loses
nothing, because its writes are in the page cache. A loss of power keeps what was flushed, and of
the rest of each file a prefix of any length, drawn per file: so a later file may survive an earlier
one, and the last batch may be torn at any byte. A file that was never flushed may be gone.

Allowed faults are only those the broker must survive: deletes, renames, truncations and atomic
replacements are taken as durable in their order, as on a journalling file system.
"""

from __future__ import annotations

import random
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
from txnlog_spark.wire.invariants import check

ROOM_BYTES = 1 << 60


@dataclass(slots=True)
class _File:
    """Content as the process sees it, and how many of its bytes survive a loss of power."""

    content: bytearray = field(default_factory=bytearray)
    flushed_bytes: int = -1
    """-1: not even the name is on disk."""


class SimDisk:
    """One broker's data directory; implements the core's `Storage` and performs its operations."""

    def __init__(self) -> None:
        self.flush_works = True
        """False is a planted bug: flushes are acknowledged and not done."""
        self._files: dict[str, _File] = {}

    # ------------------------------------------------------------------ Storage

    def read(self, path: str, position: int, length: int) -> bytes:
        """Up to `length` bytes; b"" for an absent file."""
        file = self._files.get(path)
        return b"" if file is None else bytes(file.content[position : position + length])

    def size_bytes(self, path: str) -> int | None:
        """The file's size, None when absent."""
        file = self._files.get(path)
        return None if file is None else len(file.content)

    def volume(self) -> Volume | None:
        """A disk without bounds."""
        return Volume("disk", ROOM_BYTES, ROOM_BYTES)

    def list(self, path: str) -> tuple[str, ...]:
        """Sorted names in a folder."""
        if not path:
            return tuple(sorted({name.partition("/")[0] for name in self._files}))
        prefix = f"{path}/"
        start = len(prefix)
        names = [name[start:] for name in self._files if name.startswith(prefix)]
        return tuple(sorted({name.partition("/")[0] for name in names}))

    # ------------------------------------------------------------------ operations

    def apply(self, operation: StorageOperation) -> None:
        """Perform one operation."""
        match operation:
            case Append(path, position, data):
                file = self._files.setdefault(path, _File())
                check(position == len(file.content), "an append leaves a gap or overwrites",
                      path=path, position=position, size_bytes=len(file.content))  # fmt: skip
                file.content += data
            case Flush(paths):
                self._flush(paths)
            case WriteFile(path, data):
                self._files[path] = _File(bytearray(data), len(data))
            case Truncate(path, size_bytes):
                self._truncate(path, size_bytes)
            case Delete(path):
                for name in self._under(path):
                    del self._files[name]
            case Rename(path, new_path):
                for name in self._under(path):
                    self._files[new_path + name[len(path) :]] = self._files.pop(name)

    def _flush(self, paths: tuple[str, ...]) -> None:
        if not self.flush_works:
            return
        for path in paths:
            file = self._files.get(path)
            check(file is not None, "a flush of a file that is not there", path=path)
            if file is not None:
                file.flushed_bytes = len(file.content)

    def _truncate(self, path: str, size_bytes: int) -> None:
        file = self._files.get(path)
        if file is not None:
            del file.content[size_bytes:]
            file.flushed_bytes = min(file.flushed_bytes, len(file.content))

    def _under(self, path: str) -> tuple[str, ...]:
        return tuple(n for n in self._files if n == path or n.startswith(f"{path}/"))

    def save(self, folder: Path) -> None:
        """Write all files to a real folder, for a person to look at."""
        for name, file in self._files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)

    # ------------------------------------------------------------------ faults

    def wipe(self) -> None:
        """An empty disk takes the place of this one."""
        self._files.clear()

    def lose_power(self, rng: random.Random) -> int:
        """Forget what was not flushed; returns how many bytes are gone."""
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
