"""A sign of life of a command that takes long: one line on a terminal's standard error.

The line is there from the second second on, says what the command does and for how long, and is
removed when the command has its answer. In a file or a pipe it would be noise, so it is left out.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

QUIET_S = 2.0
"""A command that is done by then shows nothing."""
TICK_S = 1.0
CLEAR = "\r\x1b[K"
"""Back to the beginning of the line, and empty to its end."""


class SignOfLife:
    """A context manager around the work; a command prints its answer after it."""

    def __init__(self, doing: str, *, is_wanted: bool = True) -> None:
        """A command that prints as it works does not want it."""
        self.doing = doing
        """The work in words; a command may set it to what it does now."""
        self._is_wanted = is_wanted
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> SignOfLife:
        """Begin to wait, if standard error is a terminal."""
        if self._is_wanted and sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)
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

    def _show(self) -> None:
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
