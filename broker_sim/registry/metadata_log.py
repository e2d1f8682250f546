"""The metadata log of the cluster: opaque records, which one controller after another appends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class MetadataLog:
    """All records, in memory, and which controller epoch appended which."""

    def __init__(
        self, records: Sequence[bytes] = (), epochs: Sequence[tuple[int, int]] = ()
    ) -> None:
        """`epochs` has (controller epoch, offset of its first record), both growing."""
        self._records = list(records)
        self._epochs = list(epochs)

    @property
    def end_offset(self) -> int:
        """The next offset, exclusive."""
        return len(self._records)

    @property
    def records(self) -> Sequence[bytes]:
        """From offset 0 on."""
        return self._records

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """As the constructor takes them."""
        return self._epochs

    def append(self, controller_epoch: int, records: Sequence[bytes]) -> None:
        """At the end."""
        if not self._epochs or self._epochs[-1][0] != controller_epoch:
            self._epochs.append((controller_epoch, self.end_offset))
        self._records += records

    def holds(self, controller_epoch: int, offset: int, records: Sequence[bytes]) -> bool:
        """Whether this epoch has appended just these records there: its answer may be lost."""
        if offset < 0 or self._records[offset : offset + len(records)] != list(records):
            return False
        at = bisect_right(self._epochs, offset, key=lambda each: each[1]) - 1
        return at >= 0 and self._epochs[at][0] == controller_epoch

    def read(self, offset: int, max_bytes: int) -> list[bytes] | None:
        """Records from `offset` on, as many as fit and one at least; None out of range."""
        if not 0 <= offset <= self.end_offset:
            return None
        found: list[bytes] = []
        size_bytes = 0
        for index in range(offset, self.end_offset):
            size_bytes += len(self._records[index])
            if found and size_bytes > max_bytes:
                break
            found.append(self._records[index])
        return found
