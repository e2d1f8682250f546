"""One of Kafka's offset checkpoint files in memory and on disk: an offset for some partitions.

`log-start-offset-checkpoint` has the log starts that DeleteRecords moved into a segment,
`cleaner-offset-checkpoint` says up to where the cleaner has compacted. Entries of a topic go with
it: another topic of the same name must not inherit them.

Kafka's files have no checksum, and a log start with another digit would hide records and then
remove them. So a file of ours stands beside each, `<name>.crc`, written before it: a line with the
CRC-32C of the content before and of the one to come, and of these two. Whatever is not one of the
two is damaged; where ours is missing or damaged itself, as in a directory that Kafka wrote, the
file is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from crc32c import crc32c

from broker_sim.core.effects import Effects, Storage, WriteFile
from broker_sim.core.log.checkpoints import decode_offsets, encode_offsets
from broker_sim.core.metadata.image import ClusterImage

LOG_START_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
CRC_SUFFIX = ".crc"


class OffsetFile:
    """The offsets of one file; every change replaces the file."""

    def __init__(self, path: str, storage: Storage) -> None:
        self.offsets: dict[tuple[str, int], int] = {}
        self.is_damaged = False
        """The file was not a checkpoint: which partitions had an entry is not known."""
        self._path = path
        self._storage = storage
        self._crc: int | None = crc32c(b"")
        """Of the content on disk; None when that is damaged."""

    def load(self, image: ClusterImage, effects: Effects) -> None:
        """Take what the file says of partitions that exist.

        The others are taken out of the file at once: a crash came between the end of their topic
        and `forget_topic`, and a later topic of that name would inherit them at the next start.
        """
        data = self._read(self._path)
        self._crc = crc32c(data)
        known = _decode_crcs(self._read(self._path + CRC_SUFFIX))
        offsets = decode_offsets(data)
        if offsets is None or (known is not None and self._crc not in known):
            effects.trace("corrupt-checkpoint", path=self._path)
            self.is_damaged = True
            self._crc = None
            offsets = {}
        self.offsets = {
            (topic, partition): offset
            for (topic, partition), offset in offsets.items()
            if partition < image.partition_count(topic)
        }
        if len(self.offsets) != len(offsets):
            self.put({}, effects)

    def put(self, offsets: Mapping[tuple[str, int], int], effects: Effects) -> None:
        """Set these entries, durable at once."""
        self.offsets.update(offsets)
        data = encode_offsets(self.offsets)
        before, after = self._crc, crc32c(data)
        self._crc = after
        crcs = _encode_crcs(after if before is None else before, after)
        effects.storage += [
            WriteFile(self._path + CRC_SUFFIX, crcs),
            WriteFile(self._path, data),
        ]

    def forget_topic(self, topic: str, effects: Effects) -> None:
        """The topic is deleted."""
        kept = {key: offset for key, offset in self.offsets.items() if key[0] != topic}
        if len(kept) != len(self.offsets):
            self.offsets = kept
            self.put({}, effects)

    def _read(self, path: str) -> bytes:
        return self._storage.read(path, 0, self._storage.size_bytes(path) or 0)


def _encode_crcs(before: int, after: int) -> bytes:
    crcs = b"%08x %08x" % (before, after)
    return b"%s %08x\n" % (crcs, crc32c(crcs))


def _decode_crcs(data: bytes) -> tuple[int, int] | None:
    """The two that the content may have; None for bytes that are no such file."""
    crcs, _, own = data.removesuffix(b"\n").rpartition(b" ")
    if own != b"%08x" % crc32c(crcs):
        return None
    before, _, after = crcs.partition(b" ")
    return int(before, 16), int(after, 16)
