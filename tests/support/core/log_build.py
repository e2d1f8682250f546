"""A partition log on a disk in memory, and the reader that a Kafka client is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from broker_sim.core.effects import Effects
from broker_sim.core.log import (
    AppendOrigin,
    AppendResult,
    Folder,
    KnownAtStart,
    LogConfig,
    LogRead,
    PartitionLog,
)
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire import compression, records
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import MarkerType, Record, TransactionMarker

TOPIC_ID = bytes(range(16))
NOW_MS = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=900, index_interval_bytes=150)
"""Several segments and index entries within a few batches."""


def build_batch(
    *values: str,
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
    timestamp: int = NOW_MS,
) -> bytes:
    """Build one batch; `producer` is (producer id, epoch, base sequence)."""
    producer_id, producer_epoch, base_sequence = producer or (-1, -1, -1)
    return records.encode_batch(
        [Record(None, value.encode(), timestamp + i) for i, value in enumerate(values)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )


def packed(batch: bytes, codec: int, records_bytes: bytes | None = None) -> bytes:
    """The batch with its records compressed, or with these bytes for them, and a right CRC."""
    plain = batch[records.HEADER_BYTES :] if records_bytes is None else records_bytes
    body = compression.compress(codec, plain)
    header = records.parse_header(batch)._replace(
        length=records.HEADER_BYTES - records.LENGTH_END + len(body), attributes=codec
    )
    made = bytearray(records.encode_header(header) + body)
    records.refresh_crc(made, 0, len(made))
    return bytes(made)


class LogOnDisk:
    """Log on a disk in memory; each call is a step, and its storage operations are carried out at
    its end."""

    def __init__(self, config: LogConfig = SMALL, *, disk: SimDisk | None = None) -> None:
        self.config = config
        self.disk = disk or SimDisk()
        self.now_ms = NOW_MS
        self.log: PartitionLog = None  # type: ignore[assignment]
        self.log = self._created() if disk is None else self.load(clean=False)

    client_origin = AppendOrigin.CLIENT

    def effects(self) -> Effects:
        return Effects(now_ms=self.now_ms, monotonic_ms=0)

    def carry_out(self, effects: Effects) -> None:
        """Carry out the storage operations of a step, as the host does."""
        for operation in effects.storage:
            self.disk.apply(operation)

    def call(self, method: Callable, *args: Any, **more: Any) -> Any:
        """A step of its own that calls the log; what it returned."""
        return self.cause(lambda effects: method(*args, effects, **more))

    def cause(self, call: Callable[[Effects], Any]) -> Any:
        """The same, of more than one call."""
        effects = self.effects()
        result = call(effects)
        self.carry_out(effects)
        return result

    def _folder(self) -> Folder:
        return Folder("t", 0, TOPIC_ID, self.config, self.disk)

    def _created(self) -> PartitionLog:
        return self.call(PartitionLog.create, self._folder())

    def load(
        self,
        *,
        clean: bool,
        recovery_point: int | None = None,
        effects: Effects | None = None,
        **more: int,
    ) -> PartitionLog:
        """A new life of the broker on the same files.

        The recovery point is what the last life had, unless another one is given.
        """
        effects = effects or self.effects()
        if recovery_point is None:
            recovery_point = 0 if self.log is None else self.log.recovery_point
        known = KnownAtStart(clean_shutdown=clean, recovery_point=recovery_point, **more)
        self.log = PartitionLog.load(self._folder(), known, effects)
        self.carry_out(effects)
        return self.log

    def restart(self, kind: str, seed: int = 0) -> PartitionLog:
        """`clean`, `kill` (SIGKILL), or `power` (loss of power after a flush of the log)."""
        self.end_life(kind, random.Random(seed))
        return self.load(clean=kind == "clean", log_start_offset=self.log.log_start_offset)

    def end_life(self, kind: str, rng: random.Random) -> None:
        """End a life of the broker in this way."""
        if kind == "clean":
            self.call(self.log.close)
        elif kind == "power":
            self.call(self.log.flush)
            self.disk.lose_power(rng)

    def checkpoint(self) -> None:
        """Flush, and move the recovery point to the log end."""
        self.call(self.log.flush)
        self.call(self.log.checkpoint)

    def delete_below(self, offset: int) -> None:
        """DeleteRecords: what lies below is gone, its segments too."""
        self.call(self.log.flush)
        self.call(self.log.increase_log_start, offset)
        self.call(self.log.remove_below_start)

    def append(self, data: bytes, *, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendResult:
        append = self.log.append_as_leader
        return self.cause(lambda effects: append(data, origin=origin, effects=effects))

    def replicate(self, data: bytes) -> AppendResult:
        return self.call(self.log.append_as_follower, data)

    def produce(self, *values: str, producer=None, transactional: bool = False) -> AppendResult:
        result = self.append(build_batch(*values, producer=producer, transactional=transactional))
        assert result.error == ErrorCode.NONE, result
        return result

    def mark(
        self, producer_id: int, epoch: int, kind: str, *, coordinator_epoch: int = 0, tv: int = 1
    ) -> AppendResult:
        marker = TransactionMarker(producer_id, epoch, MarkerType[kind.upper()], coordinator_epoch)
        append = self.log.append_marker
        return self.cause(lambda effects: append(marker, effects=effects, transaction_version=tv))

    def read(
        self, start_offset: int, *, committed: bool, max_bytes: int = 1 << 20, at_least_one=True
    ) -> LogRead:
        return self.log.read(
            start_offset, max_bytes=max_bytes, read_committed=committed,
            at_least_one_batch=at_least_one,
        )  # fmt: skip

    def data_of(self, read: LogRead) -> bytes:
        return b"".join(self.disk.read(s.path, s.position, s.length) for s in read.slices)

    def consume(
        self, start_offset: int, *, committed: bool, max_bytes: int = 1 << 20
    ) -> list[tuple[int, str]]:
        """(offset, value) of all that a client is given from `start_offset` on."""
        found: list[tuple[int, str]] = []
        position = start_offset
        while True:
            read = self.read(position, committed=committed, max_bytes=max_bytes)
            assert read.error == ErrorCode.NONE
            data = self.data_of(read)
            assert len(data) == read.size_bytes
            if not data:
                return found
            next_position = position
            for header, values in deliver(data, read):
                found += [(offset, value) for offset, value in values if offset >= position]
                next_position = header.next_offset
            assert next_position > position, "a fetch without progress"
            position = next_position


def deliver(
    data: bytes, read: LogRead
) -> Iterator[tuple[records.BatchHeader, list[tuple[int, str]]]]:
    """Yield each batch with the records that a client hands to its application.

    The rule is the consumer's own (Java's `CompletedFetch`): a producer counts as aborted from the
    first offset that the broker names until its ABORT marker.
    """
    waiting = sorted(read.aborted or (), key=lambda aborted: aborted.first_offset)
    aborted_ids: set[int] = set()
    for header, at in records.iter_batches(data):
        records.check_crc(data, at, header)
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborted_ids.add(waiting.pop(0).producer_id)
        values: list[tuple[int, str]] = []
        if header.is_control:
            marker = records.decode_marker(data, at, header)
            if marker is not None and marker.marker_type is MarkerType.ABORT:
                aborted_ids.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted_ids):
            decoded = records.decode_records(data, at, header)
            values = [(r.record_offset, (r.value or b"").decode()) for r in decoded]
        yield header, values
