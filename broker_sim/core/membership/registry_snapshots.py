"""Snapshots of the registry's metadata log: the controller makes them, brokers behind read them.

A snapshot has all of the image at an offset, as records; the registry then forgets those below, and
a broker that asks for one of them reads the snapshot first. So a start reads no more than the image
and what has changed since, however old the cluster is. After Kafka's KRaft snapshots (KIP-630).

Neither has to succeed at once: what is lost is done again, by the controller of then, or
from the first part on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from broker_sim.apis.registry_codes import RegistryError
from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.image_snapshot import image_records
from broker_sim.core.controller.metadata_log import encode_record
from broker_sim.core.effects import Effects, TimerKey
from broker_sim.core.membership.cluster_metadata import ClusterMetadata
from broker_sim.core.registry_client import RegistryClient, SnapshotPart

SNAPSHOT_TIMER = ("metadata-snapshot",)
PART_BYTES = 1 << 20


@dataclass(slots=True)
class _Writing:
    """A snapshot on its way to the registry."""

    epoch: int
    parts: Iterator[SnapshotPart]
    covered_bytes: int
    """Bytes of the log's records that the snapshot stands for."""


class SnapshotWriter:
    """The controller's half: when a snapshot is due, and how it gets to the registry."""

    def __init__(
        self, config: BrokerConfig, client: RegistryClient, metadata: ClusterMetadata
    ) -> None:
        self._config = config
        self._client = client
        self._metadata = metadata
        self._writing: _Writing | None = None

    def start(self, effects: Effects) -> None:
        """Look at it again after metadata.log.max.snapshot.interval.ms; 0 is never."""
        interval_ms = self._config.integer("metadata.log.max.snapshot.interval.ms")
        if interval_ms:
            effects.set_timer(*SNAPSHOT_TIMER, after_ms=interval_ms)

    def on_timer(self, key: TimerKey, epoch: int | None, effects: Effects) -> bool:
        """Handle the timer; return True if it belongs to this module.

        `epoch` is the controller epoch if this broker is the controller, else None.
        """
        if key != SNAPSHOT_TIMER:
            return False
        if epoch is not None and self._metadata.bytes_since_snapshot:
            self._begin_snapshot(epoch, effects)
        self.start(effects)
        return True

    def on_append(self, epoch: int, effects: Effects) -> None:
        """The log has grown, and the image has what is in it."""
        limit = self._config.integer("metadata.log.max.record.bytes.between.snapshots")
        if self._metadata.bytes_since_snapshot >= limit:
            self._begin_snapshot(epoch, effects)

    def _begin_snapshot(self, epoch: int, effects: Effects) -> None:
        if self._writing is not None:
            return
        metadata = self._metadata
        values = list(map(encode_record, image_records(metadata.image)))
        parts = _parts(metadata.next_offset, values)
        self._writing = _Writing(epoch, parts, metadata.bytes_since_snapshot)
        self._send_part(self._writing, effects)

    def _send_part(self, writing: _Writing, effects: Effects) -> None:
        part = next(writing.parts)

        def on_answer(error: RegistryError | None, effects: Effects) -> None:
            if error is not RegistryError.NONE:
                name = "no answer" if error is None else error.name
                effects.trace("metadata-snapshot-failed", end_offset=part.end_offset, error=name)
                self._writing = None
            elif part.is_last:
                effects.trace("metadata-snapshot", end_offset=part.end_offset)
                self._metadata.bytes_since_snapshot -= writing.covered_bytes
                self._writing = None
            else:
                self._send_part(writing, effects)

        self._client.write_snapshot(writing.epoch, part, on_answer, effects)


def _parts(end_offset: int, values: list[bytes]) -> Iterator[SnapshotPart]:
    """Yield parts of PART_BYTES each, or of a single longer record; at least one part."""
    position = size_bytes = 0
    for place, value in enumerate(values):
        if place > position and size_bytes + len(value) > PART_BYTES:
            yield SnapshotPart(end_offset, position, tuple(values[position:place]), is_last=False)
            position, size_bytes = place, 0
        size_bytes += len(value)
    yield SnapshotPart(end_offset, position, tuple(values[position:]), is_last=True)


@dataclass(slots=True)
class SnapshotReader:
    """A broker's half: the parts that were read so far."""

    log_start_offset: int = 0
    """Start of the registry's log, as far as this broker knows; below it is only the snapshot."""
    end_offset: int = -1
    records: list[bytes] = field(default_factory=list)

    def take(self, part: SnapshotPart) -> bool:
        """Add a part; return True when the snapshot is whole.

        A part that does not follow belongs to another snapshot, made meanwhile: reading restarts
        with it.
        """
        if (part.end_offset, part.position) != (self.end_offset, len(self.records)):
            self.end_offset, self.records = part.end_offset, []
        if part.position == len(self.records):
            self.records += part.records
            return part.is_last
        return False

    def clear(self) -> None:
        """Drop the snapshot: it was used, or is not needed any more."""
        self.end_offset, self.records = -1, []
