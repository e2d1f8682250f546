"""Any interleaving of producers, markers, rolls, deletions and restarts reads like a naive list."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.log_build import LogOnDisk, build_batch

from txnlog_kafka.wire.errors import ErrorCode

PRODUCERS = (7, 8, 9)


@dataclass
class _Slot:
    """One offset as the naive list has it."""

    value: str | None
    txn: int | None


@dataclass
class _Model:
    """The dumb twin: a list of offsets, and what became of each transaction."""

    slots: list[_Slot] = field(default_factory=list)
    decided: dict[int, str] = field(default_factory=dict)
    open_txn: dict[int, int] = field(default_factory=dict)
    txn_count: int = 0
    start: int = 0
    """The log start: what lies below is gone, decided or not."""

    def append(self, values: list[str], producer_id: int | None) -> None:
        txn = None
        if producer_id is not None:
            if producer_id not in self.open_txn:
                self.txn_count += 1
                self.open_txn[producer_id] = self.txn_count
            txn = self.open_txn[producer_id]
        self.slots += [_Slot(value, txn) for value in values]

    def mark(self, producer_id: int, kind: str) -> None:
        self.slots.append(_Slot(None, None))
        txn = self.open_txn.pop(producer_id, None)
        if txn is not None:
            self.decided[txn] = kind

    @property
    def last_stable_offset(self) -> int:
        undecided = set(self.open_txn.values())
        firsts = (i for i, slot in enumerate(self.slots) if slot.txn in undecided)
        return max(next(firsts, len(self.slots)), self.start)

    def expected(self, start_offset: int, *, committed: bool) -> list[tuple[int, str]]:
        end = self.last_stable_offset if committed else len(self.slots)
        return [
            (offset, slot.value)
            for offset, slot in enumerate(self.slots[:end])
            if offset >= max(start_offset, self.start)
            and slot.value is not None
            and not (committed and slot.txn is not None and self.decided[slot.txn] == "abort")
        ]


class _Producers:
    """Epochs and sequences as a correct client keeps them, under either transaction version."""

    def __init__(self, transaction_version: int) -> None:
        self.tv = transaction_version
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.sequences = dict.fromkeys(PRODUCERS, 0)

    def batch(self, producer_id: int, values: list[str]) -> bytes:
        producer = (producer_id, self.epochs[producer_id], self.sequences[producer_id])
        self.sequences[producer_id] += len(values)
        return build_batch(*values, producer=producer, transactional=True)

    def marker_epoch(self, producer_id: int) -> int:
        if self.tv >= 2:
            self.epochs[producer_id] += 1
            self.sequences[producer_id] = 0
        return self.epochs[producer_id]


producer_ids = st.sampled_from(PRODUCERS)
counts = st.integers(1, 4)
actions = st.one_of(
    st.tuples(st.just("produce"), producer_ids, counts),
    st.tuples(st.just("produce"), producer_ids, counts),
    st.tuples(st.just("plain"), st.none(), counts),
    st.tuples(st.just("commit"), producer_ids, st.none()),
    st.tuples(st.just("abort"), producer_ids, st.none()),
    st.tuples(st.just("retry"), producer_ids, st.none()),
    st.tuples(st.just("idempotent"), producer_ids, counts),
    st.tuples(st.just("fence"), producer_ids, st.none()),
    st.tuples(st.just("delete"), st.none(), st.integers(0, 100)),
    st.tuples(st.just("retention"), st.none(), st.integers(1, 3)),
    st.tuples(st.just("checkpoint"), st.none(), st.none()),
    st.tuples(st.just("roll"), st.none(), st.none()),
    st.tuples(st.just("restart"), st.sampled_from(["clean", "kill", "power"]), st.integers(0, 99)),
)


class _Run:
    def __init__(self, transaction_version: int) -> None:
        self.on_disk = LogOnDisk()
        self.model = _Model()
        self.producers = _Producers(transaction_version)
        self.last_batch: dict[int, tuple[bytes, int]] = {}
        self.made = 0

    def values(self, count: int) -> list[str]:
        self.made += count
        return [f"v{self.made - count + i}" for i in range(count)]

    def do(self, action: tuple) -> None:
        kind, who, much = action
        getattr(self, f"do_{kind}")(who, much)

    def do_produce(self, producer_id: int, count: int) -> None:
        values = self.values(count)
        batch = self.producers.batch(producer_id, values)
        result = self.on_disk.append(batch)
        assert result.error == ErrorCode.NONE, result
        assert result.base_offset == len(self.model.slots)
        self.last_batch[producer_id] = (batch, result.base_offset)
        self.model.append(values, producer_id)

    def do_plain(self, _: None, count: int) -> None:
        values = self.values(count)
        assert self.on_disk.append(build_batch(*values)).error == ErrorCode.NONE
        self.model.append(values, None)

    def do_idempotent(self, producer_id: int, count: int) -> None:
        """Outside a transaction; inside one it is refused and changes nothing."""
        values = self.values(count)
        sequence = self.producers.sequences[producer_id]
        producer = (producer_id, self.producers.epochs[producer_id], sequence)
        batch = build_batch(*values, producer=producer)
        result = self.on_disk.append(batch)
        if producer_id in self.model.open_txn:
            assert result.error == ErrorCode.INVALID_TXN_STATE
            return
        assert result.error == ErrorCode.NONE, result
        self.producers.sequences[producer_id] += count
        self.last_batch[producer_id] = (batch, result.base_offset)
        self.model.append(values, None)

    def do_fence(self, producer_id: int, _: None) -> None:
        """The coordinator ends a timed out transaction in a new epoch, which the old one meets."""
        old_epoch = self.producers.epochs[producer_id]
        self.producers.epochs[producer_id] = old_epoch + 1
        self.producers.sequences[producer_id] = 0
        self.last_batch.pop(producer_id, None)
        result = self.on_disk.mark(producer_id, old_epoch + 1, "abort", tv=self.producers.tv)
        assert result.error == ErrorCode.NONE, result
        self.model.mark(producer_id, "abort")
        late = build_batch("late", producer=(producer_id, old_epoch, 7), transactional=True)
        assert self.on_disk.append(late).error == ErrorCode.INVALID_PRODUCER_EPOCH

    def do_delete(self, _: None, percent: int) -> None:
        """DeleteRecords up to some offset; segments below it go."""
        log = self.on_disk.log
        wanted = self.model.start + (len(self.model.slots) - self.model.start) * percent // 100
        effects = self.on_disk.effects()
        log.flush(effects)
        log.increase_log_start(wanted, effects)
        log.remove_below_start(effects)
        self.on_disk.carry_out(effects)
        self.model.start = max(self.model.start, wanted)
        assert log.log_start_offset == self.model.start

    def do_retention(self, _: None, kept: int) -> None:
        """The oldest segments go by their size; whole ones, never the unread end."""
        log, config = self.on_disk.log, self.on_disk.config
        log.config = dataclasses.replace(config, retention_bytes=kept * 900)
        effects = self.on_disk.effects()
        log.apply_retention(effects)
        self.on_disk.carry_out(effects)
        log.config = config
        assert self.model.start <= log.log_start_offset <= len(self.model.slots)
        self.model.start = log.log_start_offset

    def do_checkpoint(self, _: None, __: None) -> None:
        self.on_disk.checkpoint()

    def do_mark(self, producer_id: int, kind: str) -> None:
        epoch = self.producers.marker_epoch(producer_id)
        result = self.on_disk.mark(producer_id, epoch, kind, tv=self.producers.tv)
        assert result.error == ErrorCode.NONE, result
        self.model.mark(producer_id, kind)
        if self.producers.tv >= 2:
            self.last_batch.pop(producer_id, None)

    def do_commit(self, producer_id: int, _: None) -> None:
        self.do_mark(producer_id, "commit")

    def do_abort(self, producer_id: int, _: None) -> None:
        self.do_mark(producer_id, "abort")

    def do_retry(self, producer_id: int, _: None) -> None:
        if producer_id in self.last_batch:
            batch, base_offset = self.last_batch[producer_id]
            result = self.on_disk.append(batch)
            assert (result.error, result.base_offset) == (ErrorCode.NONE, base_offset)
            assert result.duplicate

    def do_roll(self, _: None, __: None) -> None:
        effects = self.on_disk.effects()
        self.on_disk.log.roll(effects)
        self.on_disk.carry_out(effects)

    def do_restart(self, kind: str, seed: int) -> None:
        before = self.on_disk.log.producers()
        self.on_disk.restart(kind, seed)
        assert self.on_disk.log.producers() == before

    def check(self, max_bytes: int) -> None:
        log, model = self.on_disk.log, self.model
        assert (log.log_start_offset, log.log_end_offset) == (model.start, len(model.slots))
        assert log.last_stable_offset == model.last_stable_offset
        for committed in (False, True):
            for start in range(model.start, len(model.slots) + 1):
                got = self.on_disk.consume(start, committed=committed, max_bytes=max_bytes)
                assert got == model.expected(start, committed=committed)


def check_story(steps: list[tuple], transaction_version: int, max_bytes: int) -> None:
    """Do all of it, then read from every offset, in this life and in two later ones."""
    run = _Run(transaction_version)
    for step in steps:
        run.do(step)
        assert run.on_disk.log.last_stable_offset == run.model.last_stable_offset
    run.check(max_bytes)
    run.do_restart("kill", 0)
    run.check(max_bytes)
    run.do_restart("clean", 0)
    run.check(max_bytes)


versions = st.sampled_from([1, 2])
sizes = st.sampled_from([1, 200, 500, 1 << 20])


@pytest.mark.invariant(1, 26, 27)
@settings(max_examples=400, deadline=None)
@given(st.lists(actions, max_size=40), versions, sizes)
def test_every_fetch_equals_the_naive_list(steps, transaction_version, max_bytes):
    check_story(steps, transaction_version, max_bytes)


@pytest.mark.parametrize("removal", [("delete", None, 100), ("retention", None, 0)])
@pytest.mark.parametrize("seed", range(40))
def test_a_log_whose_segments_all_went_begins_where_it_ended(removal, seed: int):
    """Its new segment is empty and was never flushed; without it the log would begin at 0."""
    run = _Run(1)
    for step in [("produce", 7, 2), ("commit", 7, None), ("roll", None, None), removal]:
        run.do(step)
    run.do_restart("power", seed)
    assert (run.on_disk.log.log_start_offset, run.on_disk.log.log_end_offset) == (3, 3)
    run.check(1)


@pytest.mark.chaos
@settings(max_examples=2500, deadline=None)
@given(st.lists(actions, min_size=20, max_size=150), versions, sizes)
def test_every_fetch_equals_the_naive_list_for_long(steps, transaction_version, max_bytes):
    check_story(steps, transaction_version, max_bytes)
