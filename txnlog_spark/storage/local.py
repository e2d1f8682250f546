"""Local disks and mounted volumes: files are written beside, flushed, renamed, their folder too."""

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
        """All of a file, None where there is none."""
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def read_range(self, path: str, position: int, size: int) -> bytearray:
        """`size` bytes from `position` on."""
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
        """The names in a folder, but for what was begun and not finished."""
        try:
            names = [each.name for each in Path(path).iterdir()]
        except FileNotFoundError:
            return ()
        return tuple(sorted(name for name in names if not name.startswith(".")))

    def list_folders(self, path: str) -> tuple[str, ...]:
        """The names of the folders in a folder."""
        try:
            return tuple(sorted(each.name for each in Path(path).iterdir() if each.is_dir()))
        except FileNotFoundError:
            return ()

    def write(self, path: str, data: bytes, *, durable: bool) -> None:
        """Replace a file; without `durable` it may hold anything after a crash of the machine."""
        write_atomically(Path(path), data, durable=durable)

    def flush(self, path: str) -> None:
        """Flush a file, the checksum file that Hadoop keeps beside it, and their folder."""
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
        """Delete a folder; what can be deleted is, before the error says what cannot."""
        if Path(path).is_dir():
            shutil.rmtree(path, ignore_errors=True)
        if Path(path).is_dir():
            shutil.rmtree(path)


class LocalOutput:
    """A file that gets its name when it is closed."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        _make_directory(path.parent)
        self._path = path
        self._beside = _beside(path)
        self._file = self._beside.open("wb")

    def write(self, data: Bytes) -> None:
        """Add bytes."""
        self._file.write(data)

    def close(self) -> None:
        """Give the file its name."""
        self._file.close()
        self._beside.replace(self._path)

    def abort(self) -> None:
        """Remove what was written. Closing writes once more, and fails again on a full disk."""
        with contextlib.suppress(OSError):
            self._file.close()
        _remove_quietly(self._beside)


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` with `data`; after a crash it holds the old bytes or the new ones.

    Without `durable` that holds for a crash of the process; after one of the machine the file may
    hold anything.
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
    """Two drivers may have one process id: in two containers, on one volume."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")


def _remove_quietly(beside: Path) -> None:
    """Remove what was begun. The error that ended it says what to do; one from here does not."""
    with contextlib.suppress(OSError):
        beside.unlink(missing_ok=True)


def _make_directory(directory: Path) -> None:
    """Make it and those above it, each durably: a flushed file in a lost directory is lost."""
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    flush_path(directory.parent)


def flush_path(path: Path) -> None:
    """Make a file's bytes durable, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
