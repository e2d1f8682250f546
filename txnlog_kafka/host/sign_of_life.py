"""Sign of life of a command that takes long: one line on a terminal's standard error.

The line appears after two seconds, shows what the command does and for how long, and is removed
when the command has its answer. In a file or a pipe the line would be noise, so it is left out.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

QUIET_S = 2.0
"""Time within which a command shows nothing."""
TICK_S = 1.0
CLEAR = "\r\x1b[K"
"""Control characters: to the beginning of the line, and clear it to its end."""


class SignOfLife:
    """Context manager around the work; a command prints its answer after it."""

    def __init__(self, doing: str, *, is_wanted: bool = True) -> None:
        """Pass `is_wanted=False` for a command that prints as it works."""
        self.doing = doing
        """Current work, in words; a command may change it."""
        self._is_wanted = is_wanted
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> SignOfLife:
        """Begin to wait, if standard error is a terminal."""
        if self._is_wanted and sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show_sign, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the line."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _show_sign(self) -> None:
        began_s = time.monotonic()
        if self._ended.wait(QUIET_S):
            return
        while True:
            sys.stderr.write(f"{CLEAR}{self.doing}: {time.monotonic() - began_s:.0f} s")
            sys.stderr.flush()
            if self._ended.wait(TICK_S):
                break
        sys.stderr.write(CLEAR)
        sys.stderr.flush()
