"""The durable form of the cluster image: the log `__cluster_metadata-0`.

Kafka keeps its metadata in a log of the same name with binary records; ours holds one JSON object
a record, with a `version`, because nothing else reads it. A record is appended and flushed before
anything that depends on it (directories of a topic, a handed-out producer id), so a crash leaves
either no trace of a change or all of its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from broker_sim.core.controller.credentials import SECRET_FIELDS
from broker_sim.core.controller.image import (
    ClusterImage,
    ImageDelta,
    MetadataRecord,
)
from broker_sim.core.effects import Effects
from broker_sim.core.log import AppendOrigin, PartitionLog
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.records import Record, decode_records, encode_batch

RECORD_VERSION = 1


class Metadata(Protocol):
    """The image, and how it is changed: by this broker's own log, or by the one of a cluster."""

    image: ClusterImage

    def commit(self, records: Sequence[MetadataRecord], effects: Effects) -> None:
        """Make the records durable, then part of the image, then have them carried out.

        In a cluster that is not done when this returns, and no answer leaves before.
        """


class MetadataLog:
    """The image and the log that it is rebuilt from."""

    def __init__(self, log: PartitionLog, node_id: int) -> None:
        self.image = ClusterImage(node_id)
        self._log = log

    def load(self) -> None:
        """Rebuild the image from the log's batches. Before the first commit."""
        for header, batch in self._log.batches(self._log.log_start_offset):
            for record in decode_records(batch, 0, header):
                self.image.replay(decode_record(record.value))

    def commit(self, records: Sequence[MetadataRecord], effects: Effects) -> list[ImageDelta]:
        """Make the records durable, then part of the image; what is to be carried out then."""
        batch = encode_batch([Record(None, encode_record(r), effects.now_ms) for r in records])
        result = self._log.append_as_leader(batch, origin=AppendOrigin.COORDINATOR, effects=effects)
        check(result.error is ErrorCode.NONE, "the metadata log refused a record", result=result)
        self._log.flush(effects)
        deltas = []
        for record in records:
            deltas.append(self.image.replay(record))
            trace_record(record, effects)
        return deltas


def trace_record(record: MetadataRecord, effects: Effects) -> None:
    """A line of the trace, without secrets."""
    shown = {name: value for name, value in record.items() if name not in SECRET_FIELDS}
    effects.trace("metadata", **shown)


def encode_record(record: MetadataRecord) -> bytes:
    """Encode a metadata record as JSON bytes."""
    return json.dumps({"version": RECORD_VERSION, **record}, sort_keys=True).encode()


def decode_record(value: bytes | None) -> dict[str, Any]:
    """The inverse. Raises InvariantViolation for a version that is not known."""
    check(value is not None, "a metadata record has no value")
    record: dict[str, Any] = json.loads((value or b"{}").decode())
    version = record.pop("version", None)
    check(version == RECORD_VERSION, "a metadata record of an unknown version", version=version)
    return record
