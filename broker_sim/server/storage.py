"""The data directory of one broker: carries out storage operations, and reads for the core.

Theory of operation: operations are carried out one after another. A `Flush` is remembered and
carried out by the next `barrier`; every operation that is not an append to a file that waits to be
flushed, or another flush, calls the barrier first. So several transactions of one round share an
fsync where that cannot be told apart from the strict order: an append-only file's bytes are cut at
the first torn batch, whatever came after it.

An error of the operating system is never retried here: after a failed fsync nobody knows what is
on disk (the pages may be marked clean), so the process must end and recover.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from broker_sim.core.effects import (
    Append,
    Delete,
    FileSlice,
    Flush,
    Rename,
    StorageOperation,
    Truncate,
    Volume,
    WriteFile,
)

OPEN_FILES_MAX = 512
"""File descriptors kept open; the least recently used is closed beyond it."""


class SlicesInUse:
    """Files whose bytes are being sent, piece by piece; `changed` names one that is not as it was.

    An append does not change what is being sent; removing, renaming and cutting a file do.
    """

    def __init__(self, paths: frozenset[str]) -> None:
        self.paths = paths
        self.changed: str | None = None


class FileStorage:
    """Files under one folder. Implements `broker_sim.core.effects.Storage`, and the writes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        self._to_flush: set[str] = set()
        self._new_entries: set[str] = set()
        """Folders with an entry that was created and is not yet durable."""
        self._in_use: set[SlicesInUse] = set()
        self.flush_count = 0
        """How many files were flushed so far."""

    # ------------------------------------------------------------------ reads

    def read(self, path: str, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file; b"" for an absent file."""
        try:
            descriptor = self._open(path, create=False)
        except FileNotFoundError:
            return b""
        data = os.pread(descriptor, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            data = os.pread(descriptor, length - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def size_bytes(self, path: str) -> int | None:
        """The file's size, None when absent."""
        try:
            return self._path(path).stat().st_size
        except FileNotFoundError:
            return None

    def volume(self) -> Volume | None:
        """The folder and the room of its file system; None when it cannot be asked."""
        try:
            found = os.statvfs(self._root)
        except OSError:
            return None
        block = found.f_frsize
        root = str(self._root.absolute())
        return Volume(root, found.f_blocks * block, found.f_bavail * block)

    def list(self, path: str) -> tuple[str, ...]:
        """Sorted names in a folder, () when absent."""
        try:
            return tuple(sorted(os.listdir(self._path(path))))  # noqa: PTH208 names, not paths
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def read_slices(self, slices: Iterable[FileSlice]) -> bytes:
        """The concatenated bytes. Raises LookupError when a file is gone or was cut."""
        parts = [self.read(s.path, s.position, s.length) for s in slices]
        for part, wanted in zip(parts, slices, strict=True):
            if len(part) != wanted.length:
                raise LookupError(f"{wanted.path} has not the {wanted.length} bytes expected")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def use(self, paths: frozenset[str]) -> SlicesInUse:
        """From here on changes of these files are noted, until `release`."""
        in_use = SlicesInUse(paths)
        self._in_use.add(in_use)
        return in_use

    def release(self, in_use: SlicesInUse) -> None:
        """The end of `use`."""
        self._in_use.discard(in_use)

    def _note_change(self, path: str) -> None:
        below = path + "/"
        for in_use in self._in_use:
            for name in in_use.paths:
                if name == path or name.startswith(below):
                    in_use.changed = name

    # ------------------------------------------------------------------ writes

    def perform(self, operations: Iterable[StorageOperation]) -> None:
        """Carry out the operations in order; the last flushes may wait for `barrier`."""
        for operation in operations:
            match operation:
                case Append():
                    self._append(operation)
                case Flush(paths):
                    self._to_flush.update(paths)
                case WriteFile(path, data):
                    self.barrier()
                    self._replace(path, data)
                case Truncate(path, size_bytes):
                    self.barrier()
                    self._note_change(path)
                    os.ftruncate(self._open(path, create=True), size_bytes)
                case Rename(path, new_path):
                    self.barrier()
                    self._rename(path, new_path)
                case Delete(path):
                    self.barrier()
                    self._delete(path)

    def barrier(self) -> None:
        """Everything that was to be flushed is durable on return."""
        if not self._to_flush:
            return
        for path in sorted(self._to_flush):
            self._flush(path)
        self._to_flush.clear()

    def close(self) -> None:
        """Carry out the last flushes and close all files."""
        self.barrier()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    # ------------------------------------------------------------------ details

    def _path(self, path: str) -> Path:
        return self._root / path

    def _open(self, path: str, *, create: bool) -> int:
        descriptor = self._descriptors.get(path)
        if descriptor is not None:
            self._descriptors.move_to_end(path)
            return descriptor
        full = self._path(path)
        try:
            descriptor = os.open(full, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            if not create:
                raise
            descriptor = self._create(full, path)
        self._descriptors[path] = descriptor
        if len(self._descriptors) > OPEN_FILES_MAX:
            _, oldest = self._descriptors.popitem(last=False)
            os.close(oldest)
        return descriptor

    def _create(self, full: Path, path: str) -> int:
        folder = _folder(path)
        if not full.parent.is_dir():
            full.parent.mkdir(parents=True)
            self._new_entries.add(_folder(folder))
        self._new_entries.add(folder)
        return os.open(full, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _append(self, operation: Append) -> None:
        if self._to_flush and self._to_flush != {operation.path}:
            self.barrier()
        descriptor = self._open(operation.path, create=True)
        position = operation.position
        written = os.pwrite(descriptor, operation.data, position)
        if written != len(operation.data):
            rest = memoryview(operation.data)[written:]
            while rest:
                position += written
                written = os.pwrite(descriptor, rest, position)
                rest = rest[written:]

    def _flush(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            sync(self._open(path, create=False))
            self.flush_count += 1
        folder = _folder(path)
        while folder in self._new_entries:
            self._new_entries.discard(folder)
            self._flush_folder(folder)
            if not folder:
                break
            folder = _folder(folder)

    def _flush_folder(self, folder: str) -> None:
        descriptor = os.open(self._path(folder), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _replace(self, path: str, data: bytes) -> None:
        full = self._path(path)
        if not full.parent.is_dir():
            full.parent.mkdir(parents=True)
            self._flush_folder(_folder(_folder(path)))
        temporary = full.with_name(full.name + ".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            sync(descriptor)
        finally:
            os.close(descriptor)
        self._forget(path)
        temporary.replace(full)
        self._flush_folder(_folder(path))

    def _rename(self, path: str, new_path: str) -> None:
        self._forget(path)
        self._forget(new_path)
        self._path(path).rename(self._path(new_path))
        self._flush_folder(_folder(path))

    def _delete(self, path: str) -> None:
        self._forget(path)
        full = self._path(path)
        if full.is_dir():
            shutil.rmtree(full)
        else:
            full.unlink(missing_ok=True)

    def _forget(self, path: str) -> None:
        """The path and everything below it is not what it was: close its descriptors."""
        self._note_change(path)
        below = path + "/"
        for name in [n for n in self._descriptors if n == path or n.startswith(below)]:
            os.close(self._descriptors.pop(name))


def sync(descriptor: int) -> None:
    """Return when the file's bytes and its size are on the medium."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS, where fsync stops at the drive's cache
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
