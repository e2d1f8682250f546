"""Calls that block, carried out beside the client's loop: looking up a name, fetching a token.

The standard library has no such call without blocking, and a directory or a token endpoint that
does not answer must not hold up the connections to other brokers.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Call in a thread of its own. `socket` becomes readable when the call has ended."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.socket, self._end = socket.socketpair()
        self._result: list[T] = []
        self._error: Exception | None = None
        # A daemon: nobody waits for a directory that does not answer when the process ends.
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._result.append(work())
        except Exception as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        finally:
            self._end.close()

    @property
    def is_done(self) -> bool:
        """True if `result` can be taken."""
        return bool(self._result) or self._error is not None

    def result(self) -> T:
        """Return the call's result, or raise its error."""
        self.close()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def close(self) -> None:
        """Stop waiting for the call."""
        self.socket.close()
