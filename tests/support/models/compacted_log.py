"""A log that is compacted, next to a plain list of what was written to it."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

from support.core.log_build import LogOnDisk, deliver
from support.models.listed_log import Batch, Model

from broker_sim.core.effects import Effects
from broker_sim.core.log import AppendOrigin, LogConfig
from broker_sim.core.log.cleaning import CleanerLimits, Cleaning
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire import records
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import Record

COMPACTED = LogConfig(
    segment_bytes=600,
    index_interval_bytes=100,
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)
WIDE = CleanerLimits(step_bytes=1 << 20, keys_max=1 << 20)
Pair = tuple[str, str | None]
"""Key and value; a value of None is a tombstone."""
Identity = tuple[int, int, int]
"""Producer id, epoch, base sequence."""


def keyed_batch(
    pairs: list[Pair],
    *,
    producer: Identity | None = None,
    transactional: bool = False,
    timestamp: int,
) -> bytes:
    producer_id, producer_epoch, base_sequence = producer or (-1, -1, -1)
    return records.encode_batch(
        [
            Record(key.encode(), None if value is None else value.encode(), timestamp + at)
            for at, (key, value) in enumerate(pairs)
        ],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )


class CompactedLog(LogOnDisk):
    """Appends go to the log and to the list; cleaning only to the log."""

    def __init__(self, config: LogConfig = COMPACTED, *, disk: SimDisk | None = None) -> None:
        self.model = Model([])
        self.sequences: dict[tuple[int, int], int] = {}
        self.cleaned_to: int | None = None
        super().__init__(config, disk=disk)

    def put(
        self, *pairs: Pair, producer_id: int = -1, epoch: int = 0, transactional: bool = False
    ) -> int:
        """Append a batch that must be accepted; its base offset."""
        producer = None
        if producer_id >= 0:
            sequence = self.sequences.get((producer_id, epoch), 0)
            producer = (producer_id, epoch, sequence)
            self.sequences[producer_id, epoch] = sequence + len(pairs)
        data = keyed_batch(
            list(pairs), producer=producer, transactional=transactional, timestamp=self.now_ms
        )
        result = self.append(data, origin=AppendOrigin.CLIENT)
        assert result.error is ErrorCode.NONE, result
        self.wrote(result.base_offset, pairs, producer, transactional=transactional)
        return result.base_offset

    def end(self, producer_id: int, kind: str, epoch: int = 0) -> int:
        result = self.mark(producer_id, epoch, kind)
        assert result.error is ErrorCode.NONE, result
        self.wrote(result.base_offset, ("",), (producer_id, epoch, -1), marker=kind)
        return result.base_offset

    def wrote(
        self, base: int, values: Sequence[Any], producer: Identity | None = None, **more: Any
    ) -> None:
        """A batch joins the list."""
        batch = Batch(base, tuple(values), self.now_ms, 0, producer, **more)
        self.model.batches.append(batch)

    def roll(self) -> None:
        self.call(self.log.roll)

    # ------------------------------------------------------------------ cleaning

    def begin_cleaning(self, limits: CleanerLimits = WIDE) -> Cleaning | None:
        plan = self.log.find_cleanable(self.cleaned_to, self.now_ms)
        return self.log.start_cleaning(plan, limits) if plan.is_due(self.config) else None

    def clean(self, limits: CleanerLimits = WIDE) -> bool:
        """A whole round; False when there was nothing to do."""
        cleaning = self.begin_cleaning(limits)
        if cleaning is None:
            return False
        is_done = False
        while not is_done:
            effects = self.effects()
            is_done = cleaning.step(effects)
            self.carry_out(effects)
        self.cleaned_to = cleaning.end_offset
        return True

    def copy(self) -> CompactedLog:
        """The same files for another life of the broker, which is not begun."""
        other = copy.copy(self)
        other.disk = copy.deepcopy(self.disk)
        other.model = self.model.copy()
        other.sequences = dict(self.sequences)
        return other

    # ------------------------------------------------------------------ what readers get

    def consume_pairs(self, start_offset: int = 0, *, committed: bool = True) -> dict[int, Pair]:
        """Return all records that a client gets, by offset, fetched in small pieces."""
        found: dict[int, Pair] = {}
        position = start_offset
        while True:
            read = self.read(position, committed=committed, max_bytes=300)
            assert read.error is ErrorCode.NONE, read
            data = self.data_of(read)
            if not data:
                return found
            delivered = {header.base_offset: values for header, values in deliver(data, read)}
            for header, at in records.iter_batches(data):
                if delivered[header.base_offset]:
                    for record in records.decode_records(data, at, header):
                        if record.record_offset >= position:
                            found[record.record_offset] = _pair(record)
                position = max(position, header.next_offset)

    def check(self) -> None:
        """Readers of both isolation levels see what the list says, but for what may be gone."""
        model, log = self.model, self.log
        model.start, model.high_watermark = log.log_start_offset, log.high_watermark
        assert log.last_stable_offset == model.last_stable_offset()
        seen = {}
        for committed in (True, False):
            allowed = dict(model.records(committed=committed))
            seen[committed] = self.consume_pairs(model.start, committed=committed)
            assert {at: allowed.get(at) for at in seen[committed]} == seen[committed]
        assert _latest(seen[True]) == self.latest()
        assert set(seen[True]) <= set(seen[False])

    def latest(self) -> dict[str, tuple[int, str]]:
        """The last committed (offset, value) of each key that was not deleted."""
        return _latest(dict(self.model.records(committed=True)))

    def disk_names(self) -> list[str]:
        return [n for n in self.disk.list("t-0") if n.endswith((".cleaned", ".swap"))]

    def log_bytes(self) -> int:
        names = [n for n in self.disk.list("t-0") if n.endswith(".log")]
        return sum(self.disk.size_bytes(f"t-0/{n}") or 0 for n in names)

    def batches(self) -> list[tuple[records.BatchHeader, bytes]]:
        return list(self.log.batches(0))


def compact(log: CompactedLog) -> None:
    """Close the active segment and clean, with something after it that stays dirty."""
    log.roll()
    assert log.clean()
    log.check()


def headers(log: CompactedLog) -> list[records.BatchHeader]:
    return [header for header, _ in log.batches()]


def bases(log: CompactedLog) -> list[int]:
    return [int(n[:20]) for n in log.disk.list("t-0") if n.endswith(".log")]


def carry_out_some(effects: Effects, disk: SimDisk, count: int) -> None:
    """The first so many operations, then the crash."""
    for operation in effects.storage[:count]:
        disk.apply(operation)


def draw(rng: random.Random, keys: int = 5) -> Pair:
    """A key, and a value or, now and then, a tombstone."""
    value = None if rng.random() < 0.25 else f"v{rng.randrange(1000)}" * rng.randint(1, 6)
    return f"k{rng.randrange(keys)}", value


def _latest(seen: dict[int, Pair]) -> dict[str, tuple[int, str]]:
    found = {key: (at, value) for at, (key, value) in sorted(seen.items())}
    return {key: (at, value) for key, (at, value) in found.items() if value is not None}


def _pair(record: Record) -> Pair:
    value = None if record.value is None else record.value.decode()
    return (record.key or b"").decode(), value
