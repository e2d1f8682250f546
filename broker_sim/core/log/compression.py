"""Compressed batches, for the few places that look into records: the host brings the codecs.

The core imports no codec. What needs none of them (plain batches) works without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txnlog_kafka.wire.records import HEADER_BYTES, BatchHeader, Compression, CorruptBatch

Decompress = Callable[[int, bytes], bytes]
"""(codec number, compressed records of one batch) -> records. Raises ValueError on bad bytes."""

Compress = Callable[[int, bytes], bytes]
"""(codec number, records of one batch) -> compressed, in the framing that clients read."""


@dataclass(frozen=True, slots=True)
class Codecs:
    """Codecs that the host supplies; None for a direction that it cannot do."""

    decompress: Decompress | None = None
    compress: Compress | None = None

    def can_read(self, header: BatchHeader) -> bool:
        """True if the records of the batch can be decoded."""
        return header.compression == Compression.NONE or self.decompress is not None

    def plain_records(self, header: BatchHeader, batch: bytes) -> bytes:
        """The records of a batch, decompressed. Raises CorruptBatch when that cannot be done."""
        records = batch[HEADER_BYTES : header.size_bytes]
        if header.compression == Compression.NONE:
            return records
        if self.decompress is None:
            raise CorruptBatch(f"the batch at {header.base_offset} is compressed, without a codec")
        try:
            return self.decompress(header.compression, records)
        except CorruptBatch:
            raise
        except ValueError as error:
            raise CorruptBatch(f"the batch at {header.base_offset}: {error}") from error


NO_CODECS = Codecs()
