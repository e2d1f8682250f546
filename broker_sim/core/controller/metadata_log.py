"""The durable form of the cluster image: the log `__cluster_metadata-0`.

Kafka keeps its metadata in a log of the same name with binary records; ours holds one JSON object
a record, with a `version`, because nothing else reads it. A record is appended and flushed before
anything that depends on it (directories of a topic, a handed-out producer id), so a crash leaves
either no trace of a change or all of its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from broker_sim.core.controller.credentials import SECRET_FIELDS
from broker_sim.core.controller.image import (
    ClusterImage,
    ImageDelta,
    MetadataRecord,
)
from broker_sim.core.effects import Effects
from broker_sim.core.log import AppendOrigin, PartitionLog
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.invariants import check
from txnlog_spark.wire.records import Record, decode_records, encode_batch

RECORD_VERSION = 1


class MetadataLog:
    """The image and the log that it is rebuilt from."""

    def __init__(self, log: PartitionLog) -> None:
        self.image = ClusterImage()
        self.publish: Callable[[ImageDelta, Effects], None] = lambda _delta, _effects: None
        """Called with each change once it is durable; the publisher's, when the broker has one."""
        self._log = log

    def load(self) -> None:
        """Rebuild the image from the log's batches. Before the first commit."""
        for header, batch in self._log.batches(self._log.log_start_offset):
            for record in decode_records(batch, 0, header):
                self.image.replay(_decode(record.value))

    def commit(self, records: Sequence[MetadataRecord], effects: Effects) -> None:
        """Make the records durable, then part of the image, then have them carried out."""
        batch = encode_batch([Record(None, _encode(r), effects.now_ms) for r in records])
        result = self._log.append_as_leader(batch, origin=AppendOrigin.COORDINATOR, effects=effects)
        check(result.error is ErrorCode.NONE, "the metadata log refused a record", result=result)
        self._log.flush(effects)
        deltas = []
        for record in records:
            deltas.append(self.image.replay(record))
            shown = {name: value for name, value in record.items() if name not in SECRET_FIELDS}
            effects.trace("metadata", **shown)
        for delta in deltas:
            self.publish(delta, effects)


def _encode(record: MetadataRecord) -> bytes:
    return json.dumps({"version": RECORD_VERSION, **record}, sort_keys=True).encode()


def _decode(value: bytes | None) -> dict[str, Any]:
    check(value is not None, "a metadata record has no value")
    record: dict[str, Any] = json.loads(value or b"{}")
    version = record.pop("version", None)
    check(version == RECORD_VERSION, "a metadata record of an unknown version", version=version)
    return record
