"""Data directory of one broker: carries out storage operations, and reads for the core.

Theory of operation: operations are carried out one after another, flushes when `FlushOrder` says so
or `barrier` is called. So several transactions of one round share an fsync.

An error of the operating system is never retried here: it is raised as `StorageFull`, after which
`reset` and recovery from disk are enough, or as `StorageFailed`, after which the process must end
(`server/system.py` says why).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
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
from broker_sim.core.flush_order import FlushOrder
from broker_sim.core.log.segment import LOG_SUFFIX
from broker_sim.server.system import System, storage_error, telling

OPEN_FILES_MAX = 512
"""File descriptors kept open; beyond it the least recently used is closed."""


class SlicesInUse:
    """Files whose bytes are being sent, piece by piece; `changed` names a file that has changed
    since.

    An append does not change the bytes that are being sent; removing, renaming and truncating a
    file do.
    """

    def __init__(self, paths: frozenset[str]) -> None:
        self.paths = paths
        self.changed: str | None = None


class NewEntries:
    """Folders with an entry that was created and is not yet durable.

    Every folder above such a folder knows it: to scan all of them whenever a folder is removed made
    a new partition take 8 ms with 40,000 of them.
    """

    def __init__(self) -> None:
        self._below: dict[str, set[str]] = {}
        """New folders by folder: the folders below it, and itself."""

    def __contains__(self, folder: str) -> bool:
        return folder in self._below.get(folder, ())

    def add(self, folder: str) -> None:
        """Add a folder whose entries are not durable."""
        for each in _path_up(folder):
            self._below.setdefault(each, set()).add(folder)

    def discard(self, folder: str) -> None:
        """Remove a folder whose entries are durable, or that is gone."""
        for each in _path_up(folder):
            below = self._below.get(each, set())
            below.discard(folder)
            if not below:
                self._below.pop(each, None)

    def take(self, path: str) -> set[str]:
        """Remove and return the entries of a folder that is gone, and of the folders below it."""
        gone = set(self._below.get(path, ()))
        for each in gone:
            self.discard(each)
        return gone


class FileStorage:
    """Files under one folder. Implements `broker_sim.core.effects.Storage`, and the writes."""

    def __init__(self, root: Path, system: System | None = None) -> None:
        self.reads_medium = False
        """True if an opened file is read from the medium, not from the page cache."""
        self._root = root
        self._system = system or System()
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        self._flush_order = FlushOrder()
        self._new_entries = NewEntries()
        self._in_use: set[SlicesInUse] = set()
        self.flush_count = 0
        """Number of files that were flushed so far."""

    # ------------------------------------------------------------------ reads

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer at the end of the file; b"" for an absent file."""
        try:
            descriptor = self._open_file(path, create=False)
        except FileNotFoundError:
            return b""
        with telling(f"reading {path}"):
            data = self._system.read(descriptor, length, position)
            if len(data) == length or not data:
                return data
            parts = [data]
            got = len(data)
            while got < length:
                data = self._system.read(descriptor, length - got, position + got)
                if not data:
                    break
                parts.append(data)
                got += len(data)
            return b"".join(parts)

    def size_bytes(self, path: str) -> int | None:
        """Return the file's size, None if it is absent."""
        try:
            return self._path(path).stat().st_size
        except FileNotFoundError:
            return None

    def volume(self) -> Volume | None:
        """Return the folder and the space of its file system; None if the system does not tell."""
        try:
            found = os.statvfs(self._root)
        except OSError:
            return None
        block = found.f_frsize
        root = str(self._root.absolute())
        return Volume(root, found.f_blocks * block, found.f_bavail * block)

    def list(self, path: str) -> tuple[str, ...]:
        """Return sorted names in a folder, () if it is absent."""
        try:
            return tuple(sorted(os.listdir(self._path(path))))  # noqa: PTH208 names, not paths
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def read_slices(self, slices: Iterable[FileSlice]) -> bytes:
        """Return the concatenated bytes. Raises LookupError if a file is gone or was truncated."""
        parts = [self.read(s.path, s.position, s.length) for s in slices]
        for part, wanted in zip(parts, slices, strict=True):
            if len(part) != wanted.length:
                raise LookupError(f"{wanted.path} has not the {wanted.length} bytes expected")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def use(self, paths: frozenset[str]) -> SlicesInUse:
        """Note changes of these files from now on, until `release`."""
        in_use = SlicesInUse(paths)
        self._in_use.add(in_use)
        return in_use

    def release(self, in_use: SlicesInUse) -> None:
        """End a `use`."""
        self._in_use.discard(in_use)

    def _note_change(self, path: str) -> None:
        below = path + "/"
        for in_use in self._in_use:
            for name in in_use.paths:
                if name == path or name.startswith(below):
                    in_use.changed = name

    # ------------------------------------------------------------------ writes

    def perform(self, operations: Iterable[StorageOperation]) -> None:
        """Carry out the operations in order; the last flushes may wait for `barrier`.

        Raises StorageFull or StorageFailed; the operations before it were carried out.
        """
        for operation in operations:
            for due in self._flush_order.admit(operation):
                self._perform_operation(due)

    def barrier(self) -> None:
        """Return when all requested flushes are durable. Raises StorageFailed."""
        for flush in self._flush_order.drain():
            self._perform_operation(flush)

    def _perform_operation(self, operation: StorageOperation) -> None:
        match operation:
            case Append():
                self._append_data(operation)
            case Flush(paths):
                for path in paths:
                    self._flush_file(path)
            case WriteFile(path, data):
                self._replace_file(path, data)
            case Truncate(path, size_bytes):
                self._note_change(path)
                with telling(f"truncating {path}"):
                    self._system.truncate(self._open_file(path, create=True), size_bytes)
            case Rename(path, new_path):
                self._rename_path(path, new_path)
            case Delete(path):
                self._delete_path(path)

    def reset(self) -> None:
        """Forget the requested flushes after StorageFull, because no client was answered for them.

        Answers that are being sent end: recovery may truncate the files.

        Folders whose entries are not durable yet are remembered: the next flush below makes them
        durable.
        """
        self._flush_order.forget()
        for in_use in self._in_use:
            in_use.changed = min(in_use.paths)
        self._in_use.clear()
        self._close_all()

    def close(self) -> None:
        """Carry out the last flushes and close all files."""
        self.barrier()
        self._close_all()

    # ------------------------------------------------------------------ details

    def _path(self, path: str) -> Path:
        return self._root / path

    def _close_all(self) -> None:
        while self._descriptors:
            _, descriptor = self._descriptors.popitem()
            os.close(descriptor)

    def _open_file(self, path: str, *, create: bool) -> int:
        """Open a file. Raises FileNotFoundError unless `create`, StorageFull and StorageFailed."""
        descriptor = self._descriptors.get(path)
        if descriptor is not None:
            self._descriptors.move_to_end(path)
            return descriptor
        with telling(f"opening {path}"):
            try:
                descriptor = self._open_again_with_fewer(self._path(path), os.O_RDWR)
            except FileNotFoundError:
                if not create:
                    descriptor = -1
                else:
                    descriptor = self._create_file(self._path(path), path)
        if descriptor < 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self.reads_medium:
            self._system.forget_pages(descriptor)
            # Nor is it known whether the process before this one made its folders durable.
            folder = _folder(path)
            self._new_entries.add(folder)
            self._new_entries.add(_folder(folder))
        self._descriptors[path] = descriptor
        if len(self._descriptors) > OPEN_FILES_MAX:
            _, oldest = self._descriptors.popitem(last=False)
            os.close(oldest)
        return descriptor

    def _open_again_with_fewer(self, full: Path, flags: int) -> int:
        """Open a file; if the process has no descriptor left, close the files that are only kept
        open."""
        try:
            return self._system.open(full, flags)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._descriptors:
                raise
        self._close_all()
        return self._system.open(full, flags)

    def _create_file(self, full: Path, path: str) -> int:
        folder = _folder(path)
        if not full.parent.is_dir():
            self._system.make_folder(full.parent)
            self._new_entries.add(_folder(folder))
        self._new_entries.add(folder)
        return self._open_again_with_fewer(full, os.O_RDWR | os.O_CREAT)

    def _append_data(self, operation: Append) -> None:
        descriptor = self._open_file(operation.path, create=True)
        try:
            self._write_data(descriptor, operation.data, operation.position)
        except OSError as error:
            doing = f"writing {len(operation.data)} bytes to {operation.path}"
            raise storage_error(doing, error) from error

    def _write_data(self, descriptor: int, data: bytes, position: int) -> None:
        written = self._system.write(descriptor, data, position)
        if written != len(data):
            rest = memoryview(data)[written:]
            while rest:
                position += written
                written = self._system.write(descriptor, rest, position)
                rest = rest[written:]

    def _flush_file(self, path: str) -> None:
        try:
            descriptor = self._open_file(path, create=False)
        except FileNotFoundError as error:
            if path.endswith(LOG_SUFFIX):
                raise storage_error(f"fsync of {path}", error) from error
            # A lost index file stays absent until the broker needs that index and builds it again.
            # Until then there is nothing to flush, and recovery can do without the file.
        else:
            with telling(f"fsync of {path}", is_flush=True):
                self._system.sync(descriptor)
            self.flush_count += 1
        self._flush_new_folders(_folder(path))

    def _flush_new_folders(self, folder: str) -> None:
        """Make the folder's new entries durable, and the new entries of the folders above."""
        while folder in self._new_entries:
            self._flush_folder(folder)
            if not folder:
                break
            folder = _folder(folder)

    def _flush_folder(self, folder: str) -> None:
        with telling(f"fsync of the folder {folder or '.'}", is_flush=True):
            self._system.sync_folder(self._path(folder))
        self._new_entries.discard(folder)

    def _replace_file(self, path: str, data: bytes) -> None:
        full = self._path(path)
        temporary = full.with_name(full.name + ".tmp")
        with telling(f"writing {path}"):
            if not full.parent.is_dir():
                self._system.make_folder(full.parent)
                self._new_entries.add(_folder(_folder(path)))
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            descriptor = self._open_again_with_fewer(temporary, flags)
            try:
                self._write_data(descriptor, data, 0)
                with telling(f"fsync of {path}.tmp", is_flush=True):
                    self._system.sync(descriptor)
            except BaseException:
                with contextlib.suppress(OSError):  # it is in the way of nothing but space
                    self._system.remove(temporary)
                raise
            finally:
                os.close(descriptor)
        self._forget_descriptors(path)
        with telling(f"renaming {path}.tmp"):
            self._system.rename(temporary, full)
        self._new_entries.add(_folder(path))
        self._flush_new_folders(_folder(path))

    def _rename_path(self, path: str, new_path: str) -> None:
        self._forget_descriptors(path)
        self._forget_descriptors(new_path)
        with telling(f"renaming {path} to {new_path}"):
            self._system.rename(self._path(path), self._path(new_path))
        for each in self._new_entries.take(path):
            self._new_entries.add(new_path + each.removeprefix(path))
        self._flush_folder(_folder(path))

    def _delete_path(self, path: str) -> None:
        self._forget_descriptors(path)
        with telling(f"removing {path}"):
            self._system.remove(self._path(path))
        self._new_entries.take(path)

    def _forget_descriptors(self, path: str) -> None:
        """Close the descriptors of a changed path and of everything below it."""
        self._note_change(path)
        below = path + "/"
        for name in [n for n in self._descriptors if n == path or n.startswith(below)]:
            os.close(self._descriptors.pop(name))


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _path_up(folder: str) -> Iterator[str]:
    """Yield the folder and the folders above it; the last is the root, ""."""
    yield folder
    while folder:
        folder = _folder(folder)
        yield folder
