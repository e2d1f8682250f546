"""Local disks and mounted volumes. A file is written under a hidden name, flushed and renamed; its
folder is flushed too."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path

from txnlog_spark.storage.file_store import Bytes


class LocalFiles:
    """`Files` by paths of this machine."""

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file, None if it does not exist."""
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def read_range(self, path: str, position: int, size: int) -> bytearray:
        """Return `size` bytes from `position` on, fewer at the file's end."""
        data = bytearray(size)
        view, done = memoryview(data), 0
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.lseek(descriptor, position, os.SEEK_SET)
            while count := os.readv(descriptor, [view[done:]]):
                done += count
        finally:
            os.close(descriptor)
        view.release()
        del data[done:]
        return data

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Return the names in a folder, without unfinished files."""
        try:
            names = [each.name for each in Path(path).iterdir()]
        except FileNotFoundError:
            return ()
        return tuple(sorted(name for name in names if not name.startswith(".")))

    def list_folders(self, path: str) -> tuple[str, ...]:
        """Return the names of the folders in a folder."""
        try:
            return tuple(sorted(each.name for each in Path(path).iterdir() if each.is_dir()))
        except FileNotFoundError:
            return ()

    def write(self, path: str, data: bytes, *, durable: bool) -> None:
        """Replace a file. Without `durable`, a crash of the machine may leave any bytes in it."""
        write_atomically(Path(path), data, durable=durable)

    def flush(self, path: str) -> None:
        """Flush a file, the checksum file that Hadoop keeps next to it, and their folder."""
        file = Path(path)
        found = [each for each in (file, file.with_name(f".{file.name}.crc")) if each.exists()]
        for each in found:
            flush_path(each)
        if found:
            flush_path(file.parent)

    def open_output(self, path: str) -> LocalOutput:
        """Begin a file."""
        return LocalOutput(Path(path))

    def delete(self, path: str) -> None:
        """Delete a file."""
        Path(path).unlink(missing_ok=True)

    def delete_folder(self, path: str) -> None:
        """Delete a folder. Delete as much as possible before raising an error for the rest."""
        if Path(path).is_dir():
            shutil.rmtree(path, ignore_errors=True)
        if Path(path).is_dir():
            shutil.rmtree(path)


class LocalOutput:
    """File that gets its name when it is closed."""

    def __init__(self, path: Path) -> None:
        """Begin the file, and create its folder. Raises OSError."""
        _make_directory(path.parent)
        self._path = path
        self._beside = _beside(path)
        self._file = self._beside.open("wb")

    def write(self, data: Bytes) -> None:
        """Add bytes."""
        self._file.write(data)

    def close(self) -> None:
        """Close the file and give it its name."""
        self._file.close()
        self._beside.replace(self._path)

    def abort(self) -> None:
        """Remove the unfinished file. Closing it writes once more, and fails again on a full
        disk."""
        with contextlib.suppress(OSError):
            self._file.close()
        _remove_quietly(self._beside)


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` with `data`; after a crash it has the old bytes or the new bytes.

    Without `durable`, this holds only for a crash of the process. After a crash of the machine the
    file may have any bytes.
    """
    _make_directory(path.parent)
    beside = _beside(path)
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        _remove_quietly(beside)
        raise
    if durable:
        flush_path(path.parent)


def _beside(path: Path) -> Path:
    """Return a unique hidden path. It needs random digits: drivers in two containers on one volume
    may have the same process id."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")


def _remove_quietly(beside: Path) -> None:
    """Remove an unfinished file quietly: the first error says what to do, an error from here does
    not."""
    with contextlib.suppress(OSError):
        beside.unlink(missing_ok=True)


def _make_directory(directory: Path) -> None:
    """Make a directory and its parents, each durably: a flushed file in a lost directory is
    lost."""
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    flush_path(directory.parent)


def flush_path(path: Path) -> None:
    """Make a file's bytes, or a directory's names, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
