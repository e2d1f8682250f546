"""What can be asked of a partition's log, and changes nothing: offsets, reads, lookups.

Sources: Kafka's `UnifiedLog`. Changes are in `partition_log`.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker_sim.core.effects import FileSlice
from broker_sim.core.log import loading
from broker_sim.core.log.compression import Decompress
from broker_sim.core.log.config import LogConfig
from broker_sim.core.log.local_log import LocalLog
from broker_sim.core.log.producer_state import VerificationStates
from broker_sim.core.log.reads import ReadRange, batches_from, collect_aborted, collect_slices
from broker_sim.core.log.timestamps import ReadBudget, find_timestamp
from broker_sim.core.log.values import AbortedTransaction, LogRead, ProducerStateView
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.records import BatchHeader, CorruptBatch

_INITIAL_LEADER_EPOCH = 0


class LogView:
    """The parts of a log, and the questions to them."""

    def __init__(
        self,
        topic: str,
        partition: int,
        folder: loading.Folder,
        loaded: loading.LoadedLog,
        now_ms: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = folder.topic_id
        self.directory = folder.directory
        self.single_replica = True
        """The high watermark follows the log end; a cluster sets False and moves it itself."""
        self._codecs = folder.codecs
        self._local = LocalLog(folder, loaded)
        self._producers = loaded.producers
        self._log_start_offset = loaded.log_start_offset
        self._verification = VerificationStates()
        self._reported: set[str] = set()
        self._last_flush_ms = now_ms
        self.leader_epoch = max(self._local.epochs.latest or 0, _INITIAL_LEADER_EPOCH)
        self.high_watermark = self.log_end_offset
        self._producers.on_high_watermark(self.high_watermark)

    @property
    def config(self) -> LogConfig:
        """Its settings; appends obey a new value at once."""
        return self._local.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._local.config = config

    # ----------------------------------------------------------------------- offsets

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read. It may lie inside the first segment."""
        return self._log_start_offset

    @property
    def first_segment_offset(self) -> int:
        """Where the files begin; the log start is there or, after DeleteRecords, above it."""
        return self._local.segments[0].base_offset

    @property
    def log_end_offset(self) -> int:
        """The next offset to be assigned."""
        return self._local.end_offset

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest transaction that is undecided or not yet replicated."""
        first = self._producers.first_unstable_offset()
        return None if first is None else max(first, self.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """All below it is decided and replicated."""
        first = self.first_unstable_offset
        return self.high_watermark if first is None else min(first, self.high_watermark)

    @property
    def size_bytes(self) -> int:
        """Of all log files."""
        return self._local.size_bytes

    # ----------------------------------------------------------------------- reading

    def read(
        self,
        start_offset: int,
        *,
        max_bytes: int,
        read_committed: bool,
        at_least_one_batch: bool,
    ) -> LogRead:
        """Whole batches from `start_offset` on, below the LSO or else the high watermark.

        OFFSET_OUT_OF_RANGE outside [log start, log end]; CORRUPT_MESSAGE when the file is damaged
        there. With `at_least_one_batch` the first batch is given though it is over `max_bytes`
        (KIP-74).
        """
        if not self.log_start_offset <= start_offset <= self.log_end_offset:
            return self._read_result(ErrorCode.OFFSET_OUT_OF_RANGE)
        end_offset = self.last_stable_offset if read_committed else self.high_watermark
        wanted = ReadRange(start_offset, end_offset, max_bytes, at_least_one_batch)
        try:
            slices, next_offset = collect_slices(self._local.segments, wanted, self._local.storage)
            aborted = None
            if read_committed:
                rebuild = self._local.rebuild_aborted
                aborted = collect_aborted(self._local.segments, start_offset, next_offset, rebuild)
        except CorruptBatch as corrupt:
            return self._read_result(ErrorCode.CORRUPT_MESSAGE, report=self._report(corrupt))
        return self._read_result(ErrorCode.NONE, slices=slices, aborted=aborted)

    def _read_result(
        self,
        error: ErrorCode,
        *,
        slices: tuple[FileSlice, ...] = (),
        aborted: tuple[AbortedTransaction, ...] | None = None,
        report: str = "",
    ) -> LogRead:
        return LogRead(
            error=error,
            slices=slices,
            aborted=aborted,
            high_watermark=self.high_watermark,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=self.log_start_offset,
            size_bytes=sum(part.length for part in slices),
            report=report,
        )

    def _report(self, corrupt: CorruptBatch) -> str:
        """The damage, the first time that it is met."""
        report = str(corrupt)
        if report in self._reported:
            return ""
        self._reported.add(report)
        return report

    def offset_for_timestamp(
        self,
        timestamp_ms: int,
        decompress: Decompress | None = None,
        budget: ReadBudget | None = None,
    ) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record that is not older; None when all are.

        Looks up to the log end: the caller compares with the high watermark or the LSO. In a
        compressed batch the answer is as coarse as the batch unless `decompress` is given, and
        everywhere when the `budget`, which several lookups may share, is used up.
        Raises CorruptBatch when the file is damaged where it must be read.
        """
        return find_timestamp(
            self._local.segments,
            timestamp_ms,
            start_offset=self.log_start_offset,
            storage=self._local.storage,
            decompress=decompress,
            budget=budget or ReadBudget(),
        )

    def max_timestamp_offset(
        self, decompress: Decompress | None = None, budget: ReadBudget | None = None
    ) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record with the highest timestamp (KIP-734)."""
        newest = max(segment.max_timestamp for segment in self._local.segments)
        return None if newest < 0 else self.offset_for_timestamp(newest, decompress, budget)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) when it is not known (KIP-101)."""
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.log_end_offset
        return self._local.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def batches(self, start_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Whole batches from `start_offset` to the log end, read from the files, CRC checked.

        For loading a coordinator: valid while the files hold all appends, so at start, before
        anything is appended in the same step. Raises CorruptBatch at damaged bytes.
        """
        if self._local.storage is None:
            raise CorruptBatch(f"the files of {self.directory} cannot be read here")
        return batches_from(self._local.segments, start_offset, self._local.storage)

    # ----------------------------------------------------------------------- producers

    def producers(self) -> tuple[ProducerStateView, ...]:
        """What is known of each producer, by id."""
        return self._producers.views()

    def has_open_transaction(self, producer_id: int, producer_epoch: int | None = None) -> bool:
        """Whether the producer (in this epoch) has undecided data here."""
        return self._producers.has_open_transaction(producer_id, producer_epoch)
