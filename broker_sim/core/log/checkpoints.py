"""Kafka's offset checkpoint files: one offset for each partition of a data directory.

Text: a version line `0`, a line with the count, then one line `<topic> <partition> <offset>` for
each partition (Kafka's `OffsetCheckpointFile`). Written whole, atomically. Nothing in it has a
checksum, so whoever reads one must live with any offset in it.
"""

from __future__ import annotations

from collections.abc import Mapping

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
"""Below the offset a partition was flushed, and its state recorded: recovery reads from there."""
_VERSION = 0


def encode_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """The whole file; partitions in order, so that one state has one encoding."""
    lines = [str(_VERSION), str(len(offsets))]
    lines += [f"{topic} {partition} {at}" for (topic, partition), at in sorted(offsets.items())]
    return ("\n".join(lines) + "\n").encode()


def decode_offsets(data: bytes) -> dict[tuple[str, int], int] | None:
    """The offset of each (topic, partition); None for bytes that are not a checkpoint.

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
