"""The metadata of a cluster: read from the registry's log, changed by what the controller appends.

The handlers of metadata requests plan against the image and commit records, as they do where a
broker is alone. Here `commit` only collects: `drafted` says what a handler wants, and the caller
appends it to the registry's log before anybody is answered. What is appended comes back by
`replay`, here and on every other broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from broker_sim.core.controller import ClusterImage
from broker_sim.core.controller.image import ImageDelta, MetadataRecord
from broker_sim.core.controller.metadata_log import decode_record, trace_record
from broker_sim.core.effects import Effects
from txnlog_spark.wire.invariants import check

Answer = TypeVar("Answer")


class ClusterMetadata:
    """The image of a broker in a cluster. Implements `Metadata`."""

    def __init__(self, node_id: int) -> None:
        self.image = ClusterImage(node_id)
        self.publish: Callable[[ImageDelta, Effects], None] = lambda _delta, _effects: None
        """Called with each change that was read; the publisher's, once the logs are open."""
        self.on_cluster_id: Callable[[Effects], None] = lambda _effects: None
        """Called when the cluster, which is a new one, gets its id."""
        self.next_offset = 0
        """Of the registry's log: all records below are in the image."""
        self.bytes_since_snapshot = 0
        """Of the records that were read since the last snapshot that this broker knows of."""
        self._draft: list[MetadataRecord] | None = None

    def commit(self, records: Sequence[MetadataRecord], effects: Effects) -> None:
        """Collect the records of the request that is being handled."""
        del effects
        check(self._draft is not None, "records of nobody who waits for them", records=records)
        if self._draft is not None:
            self._draft += records

    def drafted(self, handle: Callable[[], Answer]) -> tuple[Answer, list[MetadataRecord]]:
        """What `handle` returns, and the records that it has committed."""
        check(self._draft is None, "one request within another changes metadata")
        records = self._draft = []
        try:
            return handle(), records
        finally:
            self._draft = None

    def replay(self, values: Sequence[bytes], effects: Effects) -> None:
        """The next records of the registry's log; each is carried out before the one after."""
        for value in values:
            record, had_id = decode_record(value), bool(self.image.cluster_id)
            delta = self.image.replay(record)
            self.next_offset += 1
            self.bytes_since_snapshot += len(value)
            trace_record(record, effects)
            if self.image.cluster_id and not had_id:
                self.on_cluster_id(effects)
            self.publish(delta, effects)

    def restore(self, end_offset: int, values: Sequence[bytes], effects: Effects) -> None:
        """The snapshot of all records below the offset, of which this broker lacks some; what it
        changes is carried out at once."""
        had_id = bool(self.image.cluster_id)
        deltas = self.image.restore(map(decode_record, values))
        effects.trace("metadata-restored", end_offset=end_offset, before=self.next_offset)
        self.next_offset, self.bytes_since_snapshot = end_offset, 0
        if self.image.cluster_id and not had_id:
            self.on_cluster_id(effects)
        for delta in deltas:
            self.publish(delta, effects)
