"""A snapshot of the metadata log while it comes in, which takes several requests.

What has come is soft state: when a part is missing, also after a restart, the controller that
writes the snapshot begins again.
"""

from __future__ import annotations

from collections.abc import Sequence


class SnapshotParts:
    """One snapshot at a time; a new one begins with position 0."""

    def __init__(self) -> None:
        self._key: tuple[int, int] | None = None
        self._records: list[bytes] = []

    def add(
        self, key: tuple[int, int], position: int, records: Sequence[bytes]
    ) -> list[bytes] | None:
        """All records so far, None when these do not follow them. `key` is the controller's epoch
        and the snapshot's end offset, `position` the number of records before these."""
        if position == 0:
            self.clear()
            self._key = key
        if key != self._key or position != len(self._records):
            return None
        self._records += records
        return self._records

    def clear(self) -> None:
        """Forget what has come."""
        self._key, self._records = None, []
