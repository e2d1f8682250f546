"""Free space of the data directory: enough for writes, or not.

Theory of operation: writes are refused before the space is gone, as soon as less is free than
`log.dir.reserved.bytes`. Other writers to the same disk, and quotas, can still make a write fail.
For that there is an empty file of `RESERVE_FILE_BYTES`: it is removed when a write has failed, so
that recovery has space for its repairs, and writes stay refused until the file could be recreated.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

RESERVE_FILE = ".space-reserve"
RESERVE_FILE_BYTES = 1024 * 1024
RETRY_SECONDS = 1.0


class SpaceGuard:
    """Guard of the free space, see the module. `free_bytes` replaces the question to the system."""

    def __init__(
        self, root: Path, reserved_bytes: int, free_bytes: Callable[[], int] | None = None
    ) -> None:
        self._root = root
        self._reserved_bytes = reserved_bytes
        self._free_bytes = free_bytes or self._ask_system
        self._held = False
        self._next_try_seconds = float("-inf")

    def is_low(self, now_seconds: float) -> bool:
        """True if writes are to be refused now."""
        if not self._held:
            if now_seconds < self._next_try_seconds:
                return True
            self._next_try_seconds = now_seconds + RETRY_SECONDS
            self._held = self._make_file()
        return not self._held or self._free_bytes() < self._reserved_bytes

    def release(self, now_seconds: float) -> None:
        """Give the file's space to recovery, after a failed write."""
        self._held = False
        self._next_try_seconds = now_seconds + RETRY_SECONDS
        with contextlib.suppress(OSError):  # then recovery has to do without
            (self._root / RESERVE_FILE).unlink(missing_ok=True)

    def _ask_system(self) -> int:
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize

    def _make_file(self) -> bool:
        path = self._root / RESERVE_FILE
        try:
            if path.exists() and path.stat().st_size == RESERVE_FILE_BYTES:
                return True
            with path.open("wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, RESERVE_FILE_BYTES)
                else:
                    file.write(bytes(RESERVE_FILE_BYTES))
        except OSError:
            with contextlib.suppress(OSError):  # a part of it is better than nothing
                path.unlink(missing_ok=True)
            return False
        return True
