"""A log that is compacted, next to a plain list of what was written to it."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

from support.core.log_build import LogOnDisk, deliver

from broker_sim.core.effects import Effects
from broker_sim.core.log import AppendOrigin, LogConfig
from broker_sim.core.log.cleaning import CleanerLimits, Cleaning
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire import records
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import MarkerType, Record, TransactionMarker

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


def keyed_batch(
    pairs: list[Pair],
    *,
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
    timestamp: int,
) -> bytes:
    """One batch; `producer` is (producer id, epoch, base sequence)."""
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


@dataclass
class Written:
    """What a naive log holds: every record, and what became of its transaction."""

    pairs: dict[int, Pair] = field(default_factory=dict)
    """By offset."""
    state: dict[int, str] = field(default_factory=dict)
    """Of each offset with a record: open, committed, aborted."""
    open: dict[int, list[int]] = field(default_factory=dict)
    """Offsets of the undecided transaction, by producer id."""

    def committed(self, below: int) -> dict[int, Pair]:
        """What a read_committed reader may see below an offset."""
        return {
            at: pair
            for at, pair in self.pairs.items()
            if at < below and self.state[at] == "committed"
        }

    def latest(self, below: int) -> dict[str, tuple[int, str]]:
        """The last (offset, value) of each key that was not deleted."""
        found: dict[str, tuple[int, str | None]] = {}
        for at, (key, value) in sorted(self.committed(below).items()):
            found[key] = (at, value)
        return {key: (at, value) for key, (at, value) in found.items() if value is not None}


class CompactedLog(LogOnDisk):
    """Appends go to the log and to the list; cleaning only to the log."""

    def __init__(self, config: LogConfig = COMPACTED, *, disk: SimDisk | None = None) -> None:
        self.written = Written()
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
        for at, pair in enumerate(pairs, result.base_offset):
            self.written.pairs[at] = pair
            self.written.state[at] = "open" if transactional else "committed"
            if transactional:
                self.written.open.setdefault(producer_id, []).append(at)
        return result.base_offset

    def end(self, producer_id: int, kind: str, epoch: int = 0) -> int:
        """Append a marker, `commit` or `abort`; its offset."""
        effects = self.effects()
        marker = TransactionMarker(producer_id, epoch, MarkerType[kind.upper()], 0)
        result = self.log.append_marker(marker, effects=effects)
        assert result.error is ErrorCode.NONE, result
        self.carry_out(effects)
        for at in self.written.open.pop(producer_id, []):
            self.written.state[at] = "committed" if kind == "commit" else "aborted"
        return result.base_offset

    def roll(self) -> None:
        """Close the active segment."""
        self.call(self.log.roll)

    # ------------------------------------------------------------------ cleaning

    def begin_cleaning(self, limits: CleanerLimits = WIDE) -> Cleaning | None:
        """A round, None when nothing is dirty."""
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
        other = CompactedLog.__new__(CompactedLog)
        other.__dict__.update(self.__dict__)
        other.disk = copy.deepcopy(self.disk)
        other.written = copy.deepcopy(self.written)
        other.sequences = dict(self.sequences)
        return other

    # ------------------------------------------------------------------ what readers get

    def consume_pairs(self, start_offset: int = 0, *, committed: bool = True) -> dict[int, Pair]:
        """All records that a client is given, by offset, fetched in small pieces."""
        found: dict[int, Pair] = {}
        position = start_offset
        while True:
            read = self.read(position, committed=committed, max_bytes=300)
            assert read.error is ErrorCode.NONE, read
            data = self.data_of(read)
            if not data:
                return found
            for header, at, _ in _batches(data, read):
                found |= {k: v for k, v in at.items() if k >= position}
                position = max(position, header.next_offset)

    def check(self) -> None:
        """Readers of both isolation levels see what the list says, but for what may be gone."""
        stable = self.log.last_stable_offset
        opened = [offsets[0] for offsets in self.written.open.values()]
        assert stable == min(opened, default=self.log.high_watermark)
        seen = self.consume_pairs()
        allowed = self.written.committed(stable)
        assert {at: allowed.get(at) for at in seen} == seen
        assert _latest(seen) == self.written.latest(stable)
        everything = self.consume_pairs(committed=False)
        assert {at: self.written.pairs.get(at) for at in everything} == everything
        assert set(seen) <= set(everything)

    def disk_names(self) -> list[str]:
        """Files of the log that are not in place."""
        return [n for n in self.disk.list("t-0") if n.endswith((".cleaned", ".swap"))]

    def log_bytes(self) -> int:
        """Of all log files on disk."""
        names = [n for n in self.disk.list("t-0") if n.endswith(".log")]
        return sum(self.disk.size_bytes(f"t-0/{n}") or 0 for n in names)

    def batches(self) -> list[tuple[records.BatchHeader, bytes]]:
        """All batches, from the files."""
        return list(self.log.batches(0))


def compact(log: CompactedLog) -> None:
    """Close the active segment and clean, with something after it that stays dirty."""
    log.roll()
    assert log.clean()
    log.check()


def headers(log: CompactedLog) -> list[records.BatchHeader]:
    """Of all batches, in order."""
    return [header for header, _ in log.batches()]


def bases(log: CompactedLog) -> list[int]:
    """The base offsets of the segments on disk, in order."""
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
    found: dict[str, tuple[int, str | None]] = {}
    for at, (key, value) in sorted(seen.items()):
        found[key] = (at, value)
    return {key: (at, value) for key, (at, value) in found.items() if value is not None}


def _batches(data: bytes, read):
    """(header, pairs by offset, bytes) of each batch, as the client's rule delivers them."""
    delivered = {header.base_offset: values for header, values in deliver(data, read)}
    for header, at in records.iter_batches(data):
        pairs: dict[int, Pair] = {}
        if delivered[header.base_offset]:
            for record in records.decode_records(data, at, header):
                value = None if record.value is None else record.value.decode()
                pairs[record.record_offset] = ((record.key or b"").decode(), value)
        yield header, pairs, data[at : at + header.size_bytes]
