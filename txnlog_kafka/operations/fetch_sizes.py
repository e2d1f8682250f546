"""How many bytes a range of offsets takes, as answers have shown: what a Fetch asks for.

A broker gives what follows in the log up to the limit of bytes. So a range of a few records, read
where a long log goes on behind it, would bring megabytes that nobody wants.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FetchSize:
    """Of a topic: `batch_bytes` is its largest record batch of late."""

    bytes_per_offset: float
    batch_bytes: int


@dataclass(slots=True)
class FetchSizes:
    """Topic by topic, what the last answers had."""

    _topics: dict[str, FetchSize] = field(default_factory=dict)

    def note(self, topic: str, data_bytes: int, offset_count: int, batch_bytes: int) -> None:
        """An answer had whole record batches of so many bytes and offsets, the largest of
        `batch_bytes`."""
        if offset_count <= 0:
            return
        before = self._topics.get(topic)
        if before is not None:
            batch_bytes = max(batch_bytes, before.batch_bytes // 2)
        self._topics[topic] = FetchSize(data_bytes / offset_count, batch_bytes)

    def wanted_bytes(self, topic: str, offset_count: int, bytes_max: int) -> int:
        """What to ask for, to get so many offsets in one answer as a rule; `bytes_max` at most.

        A broker sends whole batches, and the range may begin and end inside of one.
        """
        size = self._topics.get(topic)
        if size is None:
            return bytes_max
        of_range = int(offset_count * size.bytes_per_offset * 9 / 8)
        return min(bytes_max, of_range + 2 * size.batch_bytes)
