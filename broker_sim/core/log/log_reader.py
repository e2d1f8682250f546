"""Reading the segments of a log: bytes, the aborted transactions in them, offsets by timestamp.

It knows nothing of high watermarks, leaders or producers: `partition_log` says how far a reader may
see. Sources: the reading half of Kafka's `LocalLog`.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker_sim.core.effects import FileSlice
from broker_sim.core.log.compression import Decompress
from broker_sim.core.log.local_log import LocalLog
from broker_sim.core.log.reads import ReadRange, batches_from, collect_aborted, collect_slices
from broker_sim.core.log.timestamps import ReadBudget, find_timestamp
from broker_sim.core.log.values import AbortedTransaction, LogRead
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import BatchHeader, CorruptBatch


class LogReader:
    """Reads the segments of one `LocalLog`, and remembers the damage that it has reported."""

    def __init__(self, local: LocalLog) -> None:
        self._local = local
        self._reported: set[str] = set()

    def read(
        self, wanted: ReadRange | None, offsets: tuple[int, int, int], *, read_committed: bool
    ) -> LogRead:
        """Whole batches of the range, and the aborted transactions in them; without a range,
        which is one that begins outside the log, OFFSET_OUT_OF_RANGE.

        `offsets` are those of the log: high watermark, last stable offset, log start.
        """
        local, error, report = self._local, ErrorCode.OFFSET_OUT_OF_RANGE, ""
        slices: tuple[FileSlice, ...] = ()
        aborted: tuple[AbortedTransaction, ...] | None = None
        if wanted is not None and wanted.start_offset >= wanted.end_offset and not read_committed:
            error = ErrorCode.NONE
        elif wanted is not None:
            try:
                slices, next_offset = collect_slices(local.segments, wanted, local.storage)
                if read_committed:
                    start, rebuild = wanted.start_offset, local.rebuild_aborted
                    aborted = collect_aborted(local.segments, start, next_offset, rebuild)
                error = ErrorCode.NONE
            except CorruptBatch as corrupt:
                slices = ()
                error, report = ErrorCode.CORRUPT_MESSAGE, self._report_damage(corrupt)
        size_bytes = sum(part.length for part in slices)
        return LogRead(error, slices, aborted, *offsets, size_bytes, report)

    def _report_damage(self, corrupt: CorruptBatch) -> str:
        """The damage, the first time that it is met; "" later."""
        report = str(corrupt)
        if report in self._reported:
            return ""
        self._reported.add(report)
        return report

    def offset_for_timestamp(
        self,
        timestamp_ms: int,
        start_offset: int,
        decompress: Decompress | None,
        budget: ReadBudget | None,
    ) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record from the offset on that is not older, or None.

        In a compressed batch the answer is as coarse as the batch unless `decompress` is given, and
        everywhere when the `budget`, which several lookups may share, is used up.
        Raises CorruptBatch when the file is damaged where it must be read.
        """
        return find_timestamp(
            self._local.segments,
            timestamp_ms,
            start_offset=start_offset,
            storage=self._local.storage,
            decompress=decompress,
            budget=budget or ReadBudget(),
        )

    def max_timestamp(self) -> int:
        """The highest one of all batches; negative when there is none."""
        return max(segment.max_timestamp for segment in self._local.segments)

    def batches(self, start_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Whole batches from the offset to the log end, CRC checked. Raises CorruptBatch."""
        return batches_from(self._local.segments, start_offset, self._local.storage)
