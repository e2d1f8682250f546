"""Leader epochs of a log with their start offsets, and the checkpoint file of them.

`leader-epoch-checkpoint` is text: a version line `0`, a line with the count, then one line
`<epoch> <start offset>` for each epoch, both columns rising (Kafka's `LeaderEpochFileCache`,
`LeaderEpochCheckpointFile`; KIP-101).
"""

from __future__ import annotations

import itertools

from txnlog_kafka.wire.records import NO_LEADER_EPOCH

FILE_NAME = "leader-epoch-checkpoint"
_VERSION = 0


class LeaderEpochs:
    """The epochs that have batches in the log, oldest first."""

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self.entries = entries or []

    @property
    def latest(self) -> int | None:
        """The newest epoch, None for a log that never had a batch."""
        return self.entries[-1][0] if self.entries else None

    def latest_below(self, record_offset: int) -> int:
        """The newest epoch that began below the offset, -1 when none did."""
        below = (epoch for epoch, start in self.entries if start < record_offset)
        return max(below, default=NO_LEADER_EPOCH)

    def assign(self, leader_epoch: int, start_offset: int) -> bool:
        """A batch of this epoch is at the offset. True when the epoch is new.

        Entries that a newer epoch starts at or before are gone: nothing of them is in the log.
        """
        if leader_epoch < 0 or (self.latest is not None and leader_epoch <= self.latest):
            return False
        while self.entries and self.entries[-1][1] >= start_offset:
            self.entries.pop()
        self.entries.append((leader_epoch, start_offset))
        return True

    def truncate_start(self, start_offset: int) -> bool:
        """The log now begins at the offset. True when something changed."""
        older = [entry for entry in self.entries if entry[1] < start_offset]
        if not older:
            return False
        kept = self.entries[len(older) :]
        if not kept or kept[0][1] > start_offset:
            kept = [(older[-1][0], start_offset), *kept]
        self.entries = kept
        return True

    def truncate_end(self, end_offset: int) -> bool:
        """The log now ends at the offset: later epochs have no batch in it. True when that is
        a change."""
        count = len(self.entries)
        self.entries = [entry for entry in self.entries if entry[1] < end_offset]
        return len(self.entries) < count

    def end_offset_for(self, leader_epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The epoch at or below the one asked for, and where it ended; (-1, -1) if unknown.

        The answer of OffsetForLeaderEpoch: the start of the next epoch, or the log end.
        """
        latest = self.latest
        if leader_epoch < 0 or latest is None:
            return -1, -1
        if leader_epoch == latest:
            return leader_epoch, log_end_offset
        later = [start for epoch, start in self.entries if epoch > leader_epoch]
        below = [epoch for epoch, _ in self.entries if epoch <= leader_epoch]
        if not later:
            return -1, -1
        return (below[-1], later[0]) if below else (leader_epoch, later[0])

    def encode(self) -> bytes:
        """The whole checkpoint file."""
        lines = [str(_VERSION), str(len(self.entries))]
        lines += [f"{epoch} {start}" for epoch, start in self.entries]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs | None:
        """The epochs; None for text that is not a checkpoint."""
        try:
            version, count, *lines = data.decode().splitlines()
            entries = [(int(a), int(b)) for a, b in (line.split() for line in lines)]
            if int(version) != _VERSION or int(count) != len(entries):
                return None
        except ValueError:
            return None
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(entries))
        return cls(entries) if rising else None
