"""The metadata of a cluster: read from the registry's log, changed by what the controller appends.

The handlers of metadata requests plan against the image and commit records, as they do where a
broker is alone. Here `commit` only collects: `drafted` says what a handler wants, and the caller
appends it to the registry's log before anybody is answered. What is appended comes back by
`replay`, here and on every other broker.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

from broker_sim.core.config import DataDirectoryError
from broker_sim.core.controller import ClusterImage
from broker_sim.core.controller.image import ImageDelta, MetadataRecord, PartitionDelta
from broker_sim.core.controller.metadata_log import decode_record, trace_record
from broker_sim.core.effects import Effects
from txnlog_kafka.wire.invariants import check

Answer = TypeVar("Answer")

UNCLEAN_ELECTION = "unclean-election"
"""The kind of the trace that says so; hosts warn of it, and count it."""
UNCLEAN_ELECTION_BEFORE = "unclean-election-before-the-start"
"""Trace kind of an unclean election that this process finds when it starts; it is not counted."""


class ClusterMetadata:
    """The image of a broker in a cluster. Implements `Metadata`."""

    def __init__(self, node_id: int, publish: Callable[[ImageDelta, Effects], None]) -> None:
        """`publish` is called with each change that was read."""
        self.image = ClusterImage(node_id)
        self._publish = publish
        self.next_offset = 0
        """Offset in the registry's log: all records below are in the image."""
        self.bytes_since_snapshot = 0
        """Bytes of the records that were read since the last snapshot that this broker knows of."""
        self._is_caught_up = False
        """True once the records that are read are new; at a start they are history."""
        self._unclean: dict[tuple[uuid.UUID, int], PartitionDelta] = {}
        """The last unclean election of each partition that was read at the start."""
        self._draft: list[MetadataRecord] | None = None

    def commit(self, records: Sequence[MetadataRecord], _effects: Effects) -> None:
        """Collect the records of the request that is being handled."""
        check(self._draft is not None, "records that no draft waits for", records=records)
        if self._draft is not None:
            self._draft += records

    def drafted(self, handle: Callable[[], Answer]) -> tuple[Answer, list[MetadataRecord]]:
        """Return the result of `handle`, and the records that it committed."""
        check(self._draft is None, "one request within another changes metadata")
        records = self._draft = []
        try:
            return handle(), records
        finally:
            self._draft = None

    def replay(self, values: Sequence[bytes], effects: Effects) -> None:
        """The next records of the registry's log; each is carried out before the one after."""
        for value in values:
            record = decode_record(value)
            delta = self.image.replay(record)
            self.next_offset += 1
            self.bytes_since_snapshot += len(value)
            trace_record(record, effects)
            if record.get("unclean") and isinstance(delta, PartitionDelta):
                if self._is_caught_up:
                    _report_unclean(UNCLEAN_ELECTION, delta, effects)
                else:
                    self._unclean[delta.topic.topic_id, delta.partition] = delta
            self._publish(delta, effects)

    def catch_up(self, effects: Effects) -> None:
        """Note that all records from before the start are read.

        Report the unclean elections among them after which no broker has come into the ISR: a
        broker that was up then may have ended before it could report them.
        """
        self._is_caught_up = True
        for (topic_id, number), delta in self._unclean.items():
            topic = self.image.topic_of_id(topic_id)
            if topic is not None and topic.partitions[number].isr == delta.after.isr:
                _report_unclean(UNCLEAN_ELECTION_BEFORE, delta, effects)
        self._unclean.clear()

    def restore(self, end_offset: int, values: Sequence[bytes], effects: Effects) -> None:
        """The snapshot of all records below the offset, of which this broker lacks some; what it
        changes is carried out at once. Raises DataDirectoryError when it is of another cluster."""
        records = [decode_record(value) for value in values]
        if self.image.cluster_id:
            _check_same_cluster(self.image.cluster_id, records)
        deltas = self.image.restore(records)
        effects.trace("metadata-restored", end_offset=end_offset, before=self.next_offset)
        self.next_offset, self.bytes_since_snapshot = end_offset, 0
        for delta in deltas:
            self._publish(delta, effects)


def _check_same_cluster(cluster_id: str, records: Sequence[MetadataRecord]) -> None:
    """Before anything of a snapshot is carried out: the topics that it lacks would be deleted."""
    found = next((r["cluster_id"] for r in records if r["type"] == "cluster"), "nothing")
    if found != cluster_id:
        raise DataDirectoryError(
            f"this broker is of the cluster {cluster_id}, and the registry's metadata log says "
            f"{found}: the registry was started with the data directory of another cluster. "
            "Nothing was changed: stop all brokers and put the registry's own one back"
        )


def _report_unclean(kind: str, delta: PartitionDelta, effects: Effects) -> None:
    effects.trace(
        kind,
        topic=delta.topic.name,
        partition=delta.partition,
        leader=delta.after.leader,
        leader_epoch=delta.after.leader_epoch,
        isr_before=list(delta.before.isr),
        note="committed records may be lost",
    )
