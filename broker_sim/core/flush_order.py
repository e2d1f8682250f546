"""Choose the flushes that may wait for others, so that simultaneous changes share an fsync.

A `Flush` is remembered. Its files are flushed before the next operation that is not an append to
the only file that waits. At the latest they are flushed at the end of a round of inputs, before any
of them is answered. A crash cannot expose the difference from the strict order: recovery keeps a
prefix of whole batches of an append-only file, whatever came after it.

Both hosts use this order: the simulator tears the same order of writes that the server makes.
"""

from __future__ import annotations

from broker_sim.core.effects import Append, Flush, StorageOperation


class FlushOrder:
    """The files that wait to be flushed."""

    def __init__(self) -> None:
        self._paths: set[str] = set()

    def admit(self, operation: StorageOperation) -> tuple[StorageOperation, ...]:
        """Return the operations to do now, in order, each `Flush` for a single file; () to wait."""
        if isinstance(operation, Flush):
            self._paths.update(operation.paths)
            return ()
        if not self._paths:
            return (operation,)
        if isinstance(operation, Append) and self._paths == {operation.path}:
            return (operation,)
        return (*self.drain(), operation)

    def drain(self) -> tuple[Flush, ...]:
        """The flushes that waited, to be done now."""
        if not self._paths:
            return ()
        flushes = tuple(Flush((path,)) for path in sorted(self._paths))
        self._paths.clear()
        return flushes

    def forget(self) -> None:
        """Flush them no more: no answer depends on it."""
        self._paths.clear()
