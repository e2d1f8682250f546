"""A log next to a list of its batches, from which everything that can be asked of it follows.

Whatever happens to the log is drawn, and happens to the list.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from dataclasses import dataclass
from typing import Any

from support.core.batch_layout import stamped
from support.core.log_build import LogOnDisk, build_batch

from broker_sim.core.effects import Effects, StorageOperation
from broker_sim.core.log import AppendOrigin, AppendResult, ProducerStateView
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire import records
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import MarkerType, TransactionMarker

PRODUCERS = (7, 8, 9)
"""The last one is idempotent only."""
EMPTY_STATE = ProducerStateView(-1, -1, -1, -1, -1, -1)


@dataclass(frozen=True)
class Batch:
    """Batch of the list; `marker` is `commit` or `abort`."""

    base: int
    values: tuple[Any, ...]
    timestamp: int
    leader_epoch: int
    producer: tuple[int, int, int] | None = None
    """Producer id, epoch, base sequence."""
    transactional: bool = False
    marker: str = ""

    @property
    def end(self) -> int:
        return self.base + len(self.values)


@dataclass(frozen=True)
class Transaction:
    """First offset, and the marker's when it is decided."""

    producer_id: int
    first: int
    marker: int | None = None
    aborted: bool = False


@dataclass
class Model:
    """The naive twin: all batches ever appended and not truncated, in their order."""

    batches: list[Batch]
    start: int = 0
    high_watermark: int = 0
    first_offset: int = 0
    """First offset of an empty list."""

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.first_offset

    def copy(self) -> Model:
        return dataclasses.replace(self, batches=list(self.batches))

    def truncated(self, offset: int) -> Model:
        """The list as it is to be after a truncation."""
        kept = [batch for batch in self.batches if batch.end <= offset]
        end = kept[-1].end if kept else self.first_offset
        if offset >= self.end:
            return self
        if end < self.start or offset < self.start:
            return Model([], offset, min(self.high_watermark, offset), offset)
        return Model(kept, self.start, min(self.high_watermark, end), self.first_offset)

    def transactions(self) -> list[Transaction]:
        """Return the transactions in the order of their markers, the undecided ones last."""
        opened: dict[int, int] = {}
        decided = []
        for batch in self.batches:
            if batch.producer is None:
                continue
            producer_id = batch.producer[0]
            if batch.marker:
                first = opened.pop(producer_id, None)
                if first is not None:
                    aborted = batch.marker == "abort"
                    decided.append(Transaction(producer_id, first, batch.base, aborted))
            elif batch.transactional:
                opened.setdefault(producer_id, batch.base)
        return decided + [Transaction(producer_id, first) for producer_id, first in opened.items()]

    def last_stable_offset(self) -> int:
        firsts = [
            max(txn.first, self.start)
            for txn in self.transactions()
            if txn.marker is None or txn.marker >= self.high_watermark
        ]
        return min([self.high_watermark, *firsts])

    def records(self, *, committed: bool, end: int | None = None) -> list[tuple[int, Any]]:
        """Offsets and values that a reader may be given, below an offset or what is stable."""
        if end is None:
            end = self.last_stable_offset() if committed else self.high_watermark
        hidden = [txn for txn in self.transactions() if txn.aborted or txn.marker is None]
        return [
            (offset, value)
            for batch in self.batches
            if not batch.marker
            for offset, value in enumerate(batch.values, batch.base)
            if self.start <= offset < end
            and not (committed and batch.transactional and _within(batch, hidden))
        ]

    def producers(self) -> tuple[ProducerStateView, ...]:
        found: dict[int, ProducerStateView] = {}
        opened = {txn.producer_id: txn.first for txn in self.transactions() if txn.marker is None}
        for batch in self.batches:
            if batch.producer is None:
                continue
            producer_id, epoch, sequence = batch.producer
            last = found.get(producer_id, EMPTY_STATE)
            newest = last.last_sequence if epoch == last.producer_epoch else -1
            found[producer_id] = ProducerStateView(
                producer_id,
                epoch,
                newest if batch.marker else sequence + len(batch.values) - 1,
                batch.timestamp + len(batch.values) - 1,
                0 if batch.marker else last.coordinator_epoch,
                opened.get(producer_id, -1),
            )
        return tuple(view for _, view in sorted(found.items()))

    def epoch_ends(self) -> dict[int, int]:
        """Return the end of each leader epoch in the readable part."""
        starts: dict[int, int] = {}
        for batch in self.batches:
            if batch.end > self.start:
                starts.setdefault(batch.leader_epoch, batch.base)
        ends = [*list(starts.values())[1:], self.end]
        return dict(zip(starts, ends, strict=False))

    def offset_for(self, timestamp: int) -> tuple[int, int] | None:
        for batch in self.batches:
            for at in range(len(batch.values)):
                if batch.base + at >= self.start and batch.timestamp + at >= timestamp:
                    return batch.timestamp + at, batch.base + at
        return None


def _within(batch: Batch, hidden: list[Transaction]) -> bool:
    return any(
        batch.producer is not None
        and txn.producer_id == batch.producer[0]
        and txn.first <= batch.base
        and (txn.marker is None or batch.base < txn.marker)
        for txn in hidden
    )


def check_equal(on_disk: LogOnDisk, model: Model) -> None:
    """Check that everything the log says of itself equals the list."""
    log = on_disk.log
    offsets = (log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset)
    lso = model.last_stable_offset()
    assert offsets == (model.start, lso, model.high_watermark, model.end)
    assert log.producers() == model.producers()
    for committed in (False, True):
        expected = model.records(committed=committed)
        for start in {model.start, (model.start + model.end) // 2}:
            seen = on_disk.consume(start, committed=committed, max_bytes=300)
            assert seen == [record for record in expected if record[0] >= start]
    aborted = on_disk.read(model.start, committed=True).aborted or ()
    assert [(a.producer_id, a.first_offset, a.last_offset) for a in aborted] == [
        (txn.producer_id, txn.first, txn.marker)
        for txn in model.transactions()
        if txn.aborted and txn.first < lso and (txn.marker or 0) >= model.start
    ]
    for epoch, end in model.epoch_ends().items():
        assert log.end_offset_for_epoch(epoch) == (epoch, end)
    for timestamp in {batch.timestamp + at for batch in model.batches for at in (0, 1)}:
        found = log.offset_for_timestamp(timestamp)
        assert found == model.offset_for(timestamp), timestamp


def check_every_fetch(on_disk: LogOnDisk, model: Model, max_bytes: int) -> None:
    """Check the fetches from each offset on, with this size."""
    for committed in (False, True):
        expected = model.records(committed=committed)
        for start in range(model.start, model.end + 1):
            seen = on_disk.consume(start, committed=committed, max_bytes=max_bytes)
            assert seen == [record for record in expected if record[0] >= start]


def segments_of(on_disk: LogOnDisk) -> list[tuple]:
    """Return what the segments know of their files, except the time index, which may know more."""
    return [
        (s.base_offset, s.next_offset, s.log_bytes, s.max_timestamp, s.max_timestamp_offset,
         s.index_count, s.index_crc, s.aborted_count, s.aborted_crc)
        for s in (segment.state() for segment in on_disk.log._local.segments)
    ]  # fmt: skip


class ListedLog(LogOnDisk):
    """Draws what happens to a log, and does the same to the list."""

    def __init__(self, rng: random.Random) -> None:
        self.operations: list[StorageOperation] = []
        """Storage operations so far."""
        super().__init__()
        self.rng = rng
        self.model = Model([])
        self.is_replica = rng.random() < 0.5
        """The high watermark is moved from outside."""
        self.log.single_replica = not self.is_replica
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.points = [0]
        """Recovery points that the file of them may have."""
        self.restarts = ("clean", "kill", "power")
        self.made = 0

    # ------------------------------------------------------------------ steps

    def act(self) -> None:
        """Do one random thing to the log, but no truncation."""
        drawn = self.rng.random()
        if drawn < 0.5:
            self.append()
        elif drawn < 0.7:
            self.mark_some()
        elif drawn < 0.8 and not self.is_replica:
            self.rng.choice((self.act_retry, self.act_late, self.act_idempotent))()
        else:
            self.rng.choice((self.act_roll, self.act_flush, self.act_checkpoint, self.act_delete,
                             self.act_retention, self.act_lead, self.act_advance,
                             self.act_restart))()  # fmt: skip

    def carry_out(self, effects: Effects) -> None:
        self.operations += effects.storage
        super().carry_out(effects)

    def done(self, effects: Effects) -> None:
        self.carry_out(effects)
        self.points.append(self.log.recovery_point)
        if not self.is_replica:
            self.model.high_watermark = self.model.end

    def any_values(self) -> tuple[str, ...]:
        self.made += 1
        count = self.rng.randint(1, 3)
        return tuple(f"v{self.made}-{at}" * self.rng.randint(1, 5) for at in range(count))

    def append(self) -> None:
        rng = self.rng
        self.now_ms += rng.choice((-50, 0, 10, 10, 500))
        values = self.any_values()
        producer_id = rng.choice((None, *PRODUCERS))
        producer, transactional = None, producer_id in PRODUCERS[:2]
        if producer_id is not None:
            producer = self._next(producer_id)
        data = build_batch(
            *values, producer=producer, transactional=transactional, timestamp=self.now_ms
        )
        effects = self.effects()
        if self.is_replica:
            leader_epoch = self._replicate(data, effects)
        else:
            leader_epoch = self.log.leader_epoch
            result = self.log.append_as_leader(data, origin=AppendOrigin.CLIENT, effects=effects)
            assert (result.error, result.duplicate) == (ErrorCode.NONE, False), result
        end = self.model.end
        batch = Batch(end, values, self.now_ms, leader_epoch, producer, transactional)
        self.model.batches.append(batch)
        self.done(effects)

    def act_retry(self) -> None:
        """The last batch of a producer once more: it is known, and answered with its offsets."""
        views = {view.producer_id: view for view in self.model.producers()}
        for batch in reversed(self.model.batches):
            if batch.producer is None or batch.marker:
                continue
            producer_id, epoch, sequence = batch.producer
            view, last = views[producer_id], sequence + len(batch.values) - 1
            if (view.producer_epoch, view.last_sequence) == (epoch, last):
                data = build_batch(
                    *batch.values, producer=batch.producer, transactional=batch.transactional,
                    timestamp=batch.timestamp,
                )  # fmt: skip
                result = self.append_bytes(data)
                found = result.error, result.duplicate, result.base_offset
                assert found == (ErrorCode.NONE, True, batch.base), result
                return

    def act_late(self) -> None:
        """A batch of an epoch before."""
        for view in self.model.producers():
            if view.producer_epoch > 0:
                producer = view.producer_id, view.producer_epoch - 1, 7
                result = self.append_bytes(build_batch("late", producer=producer))
                assert result.error is ErrorCode.INVALID_PRODUCER_EPOCH, result

    def act_idempotent(self) -> None:
        """Append without a transaction; inside a transaction that is refused, and changes
        nothing."""
        producer, values = self._next(self.rng.choice(PRODUCERS[:2])), self.any_values()
        result = self.append_bytes(build_batch(*values, producer=producer, timestamp=self.now_ms))
        opened = {txn.producer_id for txn in self.model.transactions() if txn.marker is None}
        if producer[0] in opened:
            assert result.error is ErrorCode.INVALID_TXN_STATE, result
            return
        assert result.error is ErrorCode.NONE, result
        batch = Batch(self.model.end, values, self.now_ms, self.log.leader_epoch, producer)
        self.model.batches.append(batch)
        self.done(self.effects())

    def append_bytes(self, data: bytes) -> AppendResult:
        return LogOnDisk.append(self, data)

    def _replicate(self, data: bytes, effects: Effects) -> int:
        """Append as the follower of leaders that change now and then; return the leader epoch.

        The epoch may be lower than before if a truncation left nothing above the log start: the
        leader does not know then in which epoch the batches below were written (see
        `log.continuity`).
        """
        known = max(self.log.leader_epoch, self.log.latest_epoch)
        leader_epoch = known + (self.rng.random() < 0.2)
        replicated = stamped(data, self.model.end, leader_epoch)
        assert self.log.append_as_follower(replicated, effects).ok
        return leader_epoch

    def _next(self, producer_id: int) -> tuple[int, int, int]:
        for view in self.model.producers():
            if view.producer_id == producer_id:
                if view.producer_epoch == self.epochs[producer_id]:
                    return producer_id, view.producer_epoch, view.last_sequence + 1
                self.epochs[producer_id] = max(self.epochs[producer_id], view.producer_epoch)
        return producer_id, self.epochs[producer_id], 0

    def mark_some(self) -> None:
        rng = self.rng
        producer_id, kind = rng.choice(PRODUCERS[:2]), rng.choice(("commit", "abort"))
        known = self._next(producer_id)[1]
        bumps = rng.random() < 0.3
        epoch, version = known + bumps, rng.choice((1, 2)) if bumps else 1
        self.epochs[producer_id] = epoch
        effects = self.effects()
        marker = TransactionMarker(producer_id, epoch, MarkerType[kind.upper()], 0)
        leader_epoch, end = self.log.leader_epoch, self.model.end
        if self.is_replica:
            data = records.encode_marker(marker, timestamp=self.now_ms)
            leader_epoch = self._replicate(data, effects)
        else:
            append = self.log.append_marker
            assert append(marker, effects=effects, transaction_version=version).ok
        producer = (producer_id, epoch, -1)
        batch = Batch(end, ("",), self.now_ms, leader_epoch, producer, True, kind)
        self.model.batches.append(batch)
        self.done(effects)

    def act_roll(self) -> None:
        self.call(self.log.roll)
        self.done(self.effects())

    def act_flush(self) -> None:
        self.call(self.log.flush)
        self.done(self.effects())

    def act_checkpoint(self) -> None:
        self.checkpoint()
        self.done(self.effects())

    def act_delete(self) -> None:
        start, high = self.model.start, self.model.high_watermark
        wanted = self.rng.randint(start, max(start, high))
        self.delete_below(wanted)
        self.model.start = wanted
        self.done(self.effects())

    def act_retention(self) -> None:
        config, effects = self.log.config, self.effects()
        kept = self.rng.choice((600, 1200, 2400))
        self.log.config = dataclasses.replace(config, retention_bytes=kept)
        self.log.apply_retention(effects)
        self.log.config = config
        self.model.start = self.log.log_start_offset
        self.done(effects)

    def act_lead(self) -> None:
        self.log.become_leader(
            max([self.log.leader_epoch, *(b.leader_epoch for b in self.model.batches[-1:])]) + 1
        )

    def act_advance(self) -> None:
        if self.is_replica:
            model = self.model
            wanted = self.rng.choice([b.end for b in model.batches] or [0])
            self.log.advance_high_watermark(wanted, self.effects())
            model.high_watermark = max(model.high_watermark, min(wanted, model.end))

    def act_restart(self) -> None:
        self.restart_as(self.rng.choice(self.restarts))

    def restart_as(self, kind: str) -> None:
        """After a clean stop, SIGKILL, or a loss of power after a flush."""
        self.end_life(kind, self.rng)
        self.start(self.disk, clean=kind == "clean", recovery_point=self.log.recovery_point)

    def truncate(self) -> Effects:
        """To any offset, mostly one where a batch begins. The operations are not carried out."""
        model = self.model
        offset = self.rng.randint(max(0, model.start - 2), model.end + 1)
        if self.rng.random() < 0.7:
            offset = self.rng.choice([b.base for b in model.batches] or [offset])
        effects = self.effects()
        self.log.truncate_to(offset, effects)
        self.model = model.truncated(offset)
        return effects

    # ------------------------------------------------------------------ lives

    def start(self, disk: SimDisk, *, clean: bool, recovery_point: int, **more: int) -> None:
        """Another life on these files; the high watermark is the log end then."""
        self.disk = disk
        leader_epoch = self.log.leader_epoch
        known = {"log_start_offset": self.model.start, **more}
        self.load(clean=clean, recovery_point=recovery_point, **known)
        self.log.become_leader(leader_epoch)
        self.log.single_replica = not self.is_replica
        self.model.high_watermark = self.log.log_end_offset

    def twin(self, disk: SimDisk, model: Model) -> ListedLog:
        """Another broker on these files, which is not started."""
        other = copy.copy(self)
        other.disk, other.model = disk, model.copy()
        other.operations = []
        other.points = [*self.points]
        return other
