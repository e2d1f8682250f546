"""System calls of the host, in one place, so that a test can make them fail.

Errors are distinguished by what may be believed afterwards. A write that finds no free space
(`StorageFull`) leaves the files as a crash would: recovery from disk is enough. After any other
error (`StorageFailed`), above all a failed fsync, the content of the medium is unknown. Linux may
mark the pages clean and report the error once, so that a second fsync would succeed and lie.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
STORAGE_FULL = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
"""Error numbers that may pass: no space, quota, larger file, descriptors or memory."""


class StorageError(Exception):
    """Failure to write or read the data directory."""


class StorageFull(StorageError):
    """Lack of free space. Earlier operations were carried out, this operation perhaps in part."""


class StorageFailed(StorageError):
    """Failure after which the data directory cannot be relied on any more."""


@contextlib.contextmanager
def telling(doing: str, *, is_flush: bool = False) -> Iterator[None]:
    """Turn an error of the operating system into one of the above; `doing` is for people.

    A flush that found no free space is not better than any other failed flush.
    """
    try:
        yield
    except OSError as error:
        raise storage_error(doing, error, is_flush=is_flush) from error


def storage_error(doing: str, error: OSError, *, is_flush: bool = False) -> StorageError:
    """Return the error that `telling` raises; for code where every microsecond counts."""
    text = f"{doing}: {error.strerror or error}"
    if error.errno in STORAGE_FULL and not is_flush:
        return StorageFull(text)
    return StorageFailed(text)


class System:
    """System calls, as thin as can be."""

    def open(self, path: Path, flags: int) -> int:
        """Return a descriptor that child processes do not get."""
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def forget_pages(self, descriptor: int) -> None:
        """Drop the pages in memory, so that the next read is from the medium.

        After a failed fsync the pages in memory may differ from the medium, and the process that
        learned of it is gone. Pages that are still to be written stay.
        """
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        """Return some of the bytes at the position; b"" at the end."""
        return os.pread(descriptor, length, position)

    def write(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        """Write the bytes at the position; return how many of them were written."""
        return os.pwrite(descriptor, data, position)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Truncate the file."""
        os.ftruncate(descriptor, size_bytes)

    def sync(self, descriptor: int) -> None:
        """Return when the file's bytes and its size are on the medium."""
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS, where fsync stops at the drive's cache
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        elif hasattr(os, "fdatasync"):
            os.fdatasync(descriptor)
        else:
            os.fsync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Return when the folder's entries are on the medium."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, path: Path) -> None:
        """Create a folder with its parents; an existing folder is fine."""
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, path: Path, new_path: Path) -> None:
        """Rename atomically; a file of the new name is replaced."""
        path.replace(new_path)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with all its content; an absent path is fine."""
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def wall_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return milliseconds that never go back; the same clock as the event loop's."""
    return time.monotonic_ns() // 1_000_000


def machine_boot_id() -> str:
    """Return the id of the machine's present boot; "" if the system has none, as outside Linux."""
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""
