"""Kafka's offset checkpoint files: one offset for each partition of a data directory.

Text: a version line `0`, a line with the count, then one line `<topic> <partition> <offset>` for
each partition (Kafka's `OffsetCheckpointFile`). Written whole, atomically.

    recovery-point-offset-checkpoint   below it the log was flushed, and its states recorded
    log-start-offset-checkpoint        the log starts that DeleteRecords moved into a segment
    cleaner-offset-checkpoint          up to where the cleaner has compacted
    replication-offset-checkpoint      the high watermarks of partitions with several replicas, and
                                       (`__cluster_metadata 0`) how far the metadata was read

Kafka's files have no checksum, so a reader of one must live with any offset in it. For the
recovery points that is so; but a log start with another digit would hide records and then remove
them. A high watermark with
another digit would let consumers read what is not committed. So a file of ours stands beside each
of the others, `<name>.crc`, written before it: a line
with the CRC-32C of the content before and of the one to come, and of these two. Whatever is not one
of the two is damaged; where ours is missing or damaged itself, as in a directory that Kafka wrote,
the file is taken as it is.

A broker that sets a log aside under another name forgets what these files have of it, and first
writes that into its directory: `stray-offset-checkpoint`, a checkpoint of ours with the names of
the files in place of topics, and a line with its CRC-32C. It counts once the directory has its name
back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from crc32c_rs import crc32c

from broker_sim.core.effects import Effects, Storage, WriteFile
from broker_sim.core.log import files

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
STRAY_FILE = "stray-offset-checkpoint"
CRC_SUFFIX = ".crc"
_VERSION = 0
_CRC_LINE_BYTES = 9


def encode_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """The whole file; partitions in order, so that one state has one encoding."""
    lines = [str(_VERSION), str(len(offsets))]
    lines += [f"{topic} {partition} {at}" for (topic, partition), at in sorted(offsets.items())]
    return ("\n".join(lines) + "\n").encode()


def decode_offsets(data: bytes) -> dict[tuple[str, int], int] | None:
    """The offset of each (topic, partition); None for bytes that are not a valid checkpoint.

    An empty file is a checkpoint without partitions, as in Kafka.
    """
    if not data:
        return {}
    try:
        version, count, *lines = data.decode().splitlines()
        fields = [line.split(" ") for line in lines]
        offsets = {(topic, int(partition)): int(at) for topic, partition, at in fields}
        if int(version) != _VERSION or int(count) != len(lines) or len(offsets) != len(lines):
            return None
    except ValueError:
        return None
    return offsets if min(offsets.values(), default=0) >= 0 else None


def encode_stray(offsets: Mapping[str, int]) -> bytes:
    """Encode the checkpointed offsets of the log that is set aside, by file name."""
    data = encode_offsets({(path, 0): offset for path, offset in offsets.items()})
    return data + b"%08x\n" % crc32c(data)


def decode_stray(data: bytes) -> dict[str, int] | None:
    """The offset by the name of each file that had one; None for bytes that are damaged."""
    content, crc = data[:-_CRC_LINE_BYTES], data[-_CRC_LINE_BYTES:]
    offsets = decode_offsets(content) if crc == b"%08x\n" % crc32c(content) else None
    return None if offsets is None else {path: offset for (path, _), offset in offsets.items()}


class OffsetCheckpointFile:
    """The offsets of one file with a `.crc` beside it; every change replaces the file.

    Entries of a topic go with it: another topic of the same name must not inherit them.
    """

    def __init__(self, path: str, storage: Storage) -> None:
        self.offsets: dict[tuple[str, int], int] = {}
        self.is_damaged = False
        """The file was not a valid checkpoint: which partitions had an entry is not known."""
        self.path = path
        self._partition_count: Callable[[str], int] = lambda _topic: 0
        self._storage = storage
        self._crc: int | None = crc32c(b"")
        """CRC-32C of the content on disk; None when the content is damaged."""

    def load(self, partition_count: Callable[[str], int], effects: Effects) -> None:
        """Take what the file says, until `forget_others` also of partitions that do not exist, by
        the count of each topic."""
        data = self._read(self.path)
        self._crc = crc32c(data)
        known = _decode_crcs(self._read(self.path + CRC_SUFFIX))
        offsets = decode_offsets(data)
        if offsets is None or (known is not None and self._crc not in known):
            effects.trace("corrupt-checkpoint", path=self.path)
            self.is_damaged = True
            self._crc = None
            offsets = {}
        self.offsets = offsets
        self._partition_count = partition_count

    def forget_others(self, effects: Effects) -> None:
        """Once logs of partitions that do not exist were set aside with what is known of them.

        The rest is of a topic that ended when a crash came before `forget_topic`: a later topic of
        that name would inherit it.
        """
        count = self._partition_count
        self._keep({key: at for key, at in self.offsets.items() if key[1] < count(key[0])}, effects)

    def put(self, offsets: Mapping[tuple[str, int], int], effects: Effects) -> None:
        """Set these entries, durable at once."""
        self.offsets.update(offsets)
        data = encode_offsets(self.offsets)
        before, after = self._crc, crc32c(data)
        self._crc = after
        crcs = _encode_crcs(after if before is None else before, after)
        effects.storage += [
            WriteFile(self.path + CRC_SUFFIX, crcs),
            WriteFile(self.path, data),
        ]

    def forget_topic(self, topic: str, effects: Effects) -> None:
        """The topic is deleted."""
        self._keep({key: at for key, at in self.offsets.items() if key[0] != topic}, effects)

    def forget(self, topic: str, partition: int, effects: Effects) -> None:
        """The partition's replica is not here any more."""
        gone = (topic, partition)
        self._keep({key: at for key, at in self.offsets.items() if key != gone}, effects)

    def lower(self, topic: str, partition: int, offset: int, effects: Effects) -> None:
        """The log will end at the offset: no entry of it may be above."""
        if self.offsets.get((topic, partition), 0) > offset:
            self.put({(topic, partition): offset}, effects)

    def _keep(self, kept: dict[tuple[str, int], int], effects: Effects) -> None:
        if len(kept) != len(self.offsets):
            self.offsets = kept
            self.put({}, effects)

    def _read(self, path: str) -> bytes:
        return files.read_whole(self._storage, path) or b""


def _encode_crcs(before: int, after: int) -> bytes:
    crcs = b"%08x %08x" % (before, after)
    return b"%s %08x\n" % (crcs, crc32c(crcs))


def _decode_crcs(data: bytes) -> tuple[int, int] | None:
    """The two that the content may have; None for bytes that are not a valid file of these."""
    crcs, _, own = data.removesuffix(b"\n").rpartition(b" ")
    if own != b"%08x" % crc32c(crcs):
        return None
    before, _, after = crcs.partition(b" ")
    return int(before, 16), int(after, 16)
