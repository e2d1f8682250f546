"""Putting a compacted segment in the place of those it was made of, in the face of crashes.

The protocol is Kafka's (`LocalLog.replaceSegments`, `LogLoader`), by suffixes of the file names:

    .cleaned   is being written; a crash leaves it behind, and it is removed
    .swap      is whole and flushed: what it replaces is obsolete, and goes
    none       in place

Each file is renamed from the first to the second, the log file first: from that rename on the
swap will be completed, by `finish_swaps` at the next start if not here. Then the old files go, then
the names lose their suffix, again the log file first. So every crash leaves either the old
segments or the new one, and both read the same under read_committed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

from broker_sim.core.effects import Delete, Effects, Flush, Rename, Storage, Volume
from broker_sim.core.log.retention import remove_segments
from broker_sim.core.log.scan import scan_headers
from broker_sim.core.log.segment import LOG_SUFFIX, SUFFIXES, Segment
from txnlog_kafka.wire.records import CorruptBatch

CLEANED = ".cleaned"
SWAP = ".swap"

_NAME = re.compile(r"^(\d{20})(\.(?:log|index|timeindex|txnindex))(\.cleaned|\.swap)?$")


def swap_in(cleaned: Segment, replaced: Sequence[Segment], effects: Effects) -> None:
    """The cleaned segment, which is flushed, takes the place of the others."""
    suffixes = cleaned.suffixes()
    plain = {suffix: f"{cleaned.stem}{suffix}" for suffix in suffixes}
    operations = effects.storage
    operations += [Rename(path + CLEANED, path + SWAP) for path in plain.values()]
    remove_segments(replaced, effects)
    operations += [Rename(path + SWAP, path) for path in plain.values()]
    cleaned.name_suffix = ""
    operations.append(Flush(cleaned.paths()))


def finish_swaps(directory: str, storage: Storage, effects: Effects) -> Storage:
    """Complete or undo what a crash interrupted; the folder as it is after these effects."""
    plain, cleaned, swaps = _files(directory, storage)
    if not cleaned and not swaps:
        return storage
    pending = _Pending(directory, storage, effects)
    for base in [base for base, suffix in swaps if suffix == LOG_SUFFIX]:
        for key in [(base, suffix) for suffix in SUFFIXES if (base, suffix) in cleaned]:
            swaps[key] = pending.rename(cleaned.pop(key), SWAP)
        end_offset = _end_offset(storage, f"{directory}/{swaps[base, LOG_SUFFIX]}", base)
        for key in [key for key in plain if base <= key[0] < end_offset]:
            pending.delete(plain.pop(key))
    for name in cleaned.values():
        pending.delete(name)
    for suffix in SUFFIXES:
        for key in [key for key in sorted(swaps) if key[1] == suffix]:
            pending.rename(swaps[key], "")
    effects.trace("swap-finished", log=directory, swaps=len(swaps), strays=len(cleaned))
    return pending


_Files = dict[tuple[int, str], str]
"""Names by base offset and kind of file."""


def _files(directory: str, storage: Storage) -> tuple[_Files, _Files, _Files]:
    """The segments' files: in place, `.cleaned` and `.swap`."""
    plain: _Files = {}
    cleaned: _Files = {}
    swaps: _Files = {}
    for name in storage.list(directory):
        match = _NAME.match(name)
        if match is not None:
            files = {None: plain, CLEANED: cleaned, SWAP: swaps}[match[3]]
            files[int(match[1]), match[2]] = name
    return plain, cleaned, swaps


def _end_offset(storage: Storage, path: str, base_offset: int) -> int:
    """Up to where the new segment stands for the old ones; what it does not cover stays."""
    end_offset = base_offset + 1
    with contextlib.suppress(CorruptBatch):  # bit rot: reads will say so
        for header, _ in scan_headers(storage, path, 0, storage.size_bytes(path) or 0):
            end_offset = header.next_offset
    return end_offset


class _Pending:
    """A folder as it will be once this step's renames and deletes are carried out, and after.

    The log is loaded in the same step, while the disk still has the old names. Once the first of
    the old names is gone the effects are carried out, and the disk is right by itself.
    """

    def __init__(self, directory: str, storage: Storage, effects: Effects) -> None:
        self._directory = directory
        self._storage = storage
        self._effects = effects
        self._origin: dict[str, str] = {}
        """Path on disk that still holds the content of a path, by its new path."""
        self._gone: set[str] = set()

    def rename(self, name: str, suffix: str) -> str:
        """Give the file another state; its new name."""
        new_name = name.removesuffix(CLEANED).removesuffix(SWAP) + suffix
        old, new = f"{self._directory}/{name}", f"{self._directory}/{new_name}"
        self._effects.storage.append(Rename(old, new))
        self._origin[new] = self._origin.pop(old, old)
        self._gone.add(self._origin[new])
        self._gone.discard(new)
        return new_name

    def delete(self, name: str) -> None:
        """Remove the file."""
        path = f"{self._directory}/{name}"
        self._effects.storage.append(Delete(path))
        self._gone.add(path)

    def read(self, path: str, position: int, length: int) -> bytes:
        """Read like `Storage.read`, from the path that holds the content now."""
        origin = self._where(path)
        return b"" if origin is None else self._storage.read(origin, position, length)

    def size_bytes(self, path: str) -> int | None:
        """Return the size like `Storage.size_bytes`, of the path that holds the content now."""
        origin = self._where(path)
        return None if origin is None else self._storage.size_bytes(origin)

    def list(self, path: str) -> tuple[str, ...]:
        """List the names like `Storage.list`, as they will be after the renames and deletes."""
        names = self._storage.list(path)
        if path != self._directory or not self._is_pending():
            return names
        kept = {name for name in names if f"{path}/{name}" not in self._gone}
        moved = {new.rpartition("/")[2] for new in self._origin}
        return tuple(sorted(kept | moved))

    def volume(self) -> Volume | None:
        """Return `Storage.volume` of the disk."""
        return self._storage.volume()

    def _where(self, path: str) -> str | None:
        if not self._is_pending():
            return path
        origin = self._origin.get(path)
        if origin is not None:
            return origin
        return None if path in self._gone else path

    def _is_pending(self) -> bool:
        if not self._gone:
            return False
        if self._storage.size_bytes(min(self._gone)) is not None:
            return True
        self._origin.clear()
        self._gone.clear()
        return False
