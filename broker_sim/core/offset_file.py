"""One of Kafka's offset checkpoint files in memory and on disk: an offset for some partitions.

`log-start-offset-checkpoint` has the log starts that DeleteRecords moved into a segment,
`cleaner-offset-checkpoint` says up to where the cleaner has compacted. Entries of a topic go with
it: another topic of the same name must not inherit them.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_sim.core.effects import Effects, Storage, WriteFile
from broker_sim.core.log.checkpoints import decode_offsets, encode_offsets
from broker_sim.core.metadata.image import ClusterImage

LOG_START_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"


class OffsetFile:
    """The offsets of one file; every change replaces the file."""

    def __init__(self, path: str, storage: Storage) -> None:
        self.offsets: dict[tuple[str, int], int] = {}
        self.is_damaged = False
        """The file was no checkpoint: which partitions had an entry is not known."""
        self._path = path
        self._storage = storage

    def load(self, image: ClusterImage, effects: Effects) -> None:
        """Take what the file says of partitions that exist."""
        size_bytes = self._storage.size_bytes(self._path) or 0
        offsets = decode_offsets(self._storage.read(self._path, 0, size_bytes))
        if offsets is None:
            effects.trace("corrupt-checkpoint", path=self._path)
            self.is_damaged = True
            offsets = {}
        self.offsets = {
            (topic, partition): offset
            for (topic, partition), offset in offsets.items()
            if partition < image.partition_count(topic)
        }

    def put(self, offsets: Mapping[tuple[str, int], int], effects: Effects) -> None:
        """Set these entries, durable at once."""
        self.offsets.update(offsets)
        effects.storage.append(WriteFile(self._path, encode_offsets(self.offsets)))

    def forget_topic(self, topic: str, effects: Effects) -> None:
        """The topic is deleted."""
        kept = {key: offset for key, offset in self.offsets.items() if key[0] != topic}
        if len(kept) != len(self.offsets):
            self.offsets = kept
            self.put({}, effects)
