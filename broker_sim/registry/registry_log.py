"""The metadata log of the cluster: opaque records, which one controller after another appends.

A snapshot takes the place of the records below its end offset: a controller says what comes to the
same as they do (KIP-630). Which controller has appended which of them stays known, so that
the log always says whether an append was carried out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

NO_EPOCH = -1


class RegistryLog:
    """The records from the snapshot on, in memory, and which controller epoch appended which."""

    def __init__(
        self,
        records: Sequence[bytes] = (),
        epochs: Sequence[tuple[int, int]] = (),
        snapshot: Sequence[bytes] = (),
        start_offset: int = 0,
    ) -> None:
        """`epochs` has (controller epoch, offset of its first record), both growing; `snapshot` is
        in place of the records below `start_offset`."""
        self._records = list(records)
        self._epochs = list(epochs)
        self._snapshot = tuple(snapshot)
        self._start_offset = start_offset

    @property
    def start_offset(self) -> int:
        """The offset of the first record; the end of the snapshot, exclusive."""
        return self._start_offset

    @property
    def end_offset(self) -> int:
        """The next offset, exclusive."""
        return self._start_offset + len(self._records)

    @property
    def records(self) -> Sequence[bytes]:
        """From the start offset on."""
        return self._records

    @property
    def snapshot(self) -> Sequence[bytes]:
        """In place of those before; empty when there are none."""
        return self._snapshot

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """Controller epochs and offsets, as the constructor takes them."""
        return self._epochs

    def append(self, controller_epoch: int, records: Sequence[bytes]) -> None:
        """At the end."""
        if not self._epochs or self._epochs[-1][0] != controller_epoch:
            self._epochs.append((controller_epoch, self.end_offset))
        self._records += records

    def take_snapshot(self, end_offset: int, snapshot: Sequence[bytes]) -> None:
        """The snapshot instead of all records below the offset, which is not above the end."""
        del self._records[: end_offset - self._start_offset]
        self._snapshot, self._start_offset = tuple(snapshot), end_offset

    def epoch_at(self, offset: int) -> int:
        """Return the controller epoch that appended the record, NO_EPOCH without a record."""
        if not 0 <= offset < self.end_offset:
            return NO_EPOCH
        at = bisect_right(self._epochs, offset, key=lambda each: each[1]) - 1
        return self._epochs[at][0]

    def holds(self, controller_epoch: int, offset: int, records: Sequence[bytes]) -> bool:
        """True if this epoch has appended just these records there: its answer may be lost.

        If a snapshot has replaced the records, the epoch alone decides: a controller has a single
        append under way, so the records that it has appended there are these.
        """
        if self.epoch_at(offset) != controller_epoch:
            return False
        if offset < self._start_offset:
            return offset + len(records) <= self.end_offset
        first = offset - self._start_offset
        return self._records[first : first + len(records)] == list(records)

    def read(self, offset: int, max_bytes: int) -> list[bytes] | None:
        """Records from `offset` on, as many as fit and one at least; None out of range."""
        if not self._start_offset <= offset <= self.end_offset:
            return None
        return fitting(self._records, offset - self._start_offset, max_bytes)


def fitting(records: Sequence[bytes], first: int, max_bytes: int) -> list[bytes]:
    """From the `first` one on as many as fit, and one at least where there is one."""
    found: list[bytes] = []
    size_bytes = 0
    for index in range(first, len(records)):
        size_bytes += len(records[index])
        if found and size_bytes > max_bytes:
            break
        found.append(records[index])
    return found
