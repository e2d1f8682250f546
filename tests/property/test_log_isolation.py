"""Any interleaving of producers, markers, rolls and restarts reads like a naive list."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from support.log_build import LogOnDisk, build_batch

from txnlog_spark.wire.errors import ErrorCode

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
        return next(firsts, len(self.slots))

    def expected(self, start_offset: int, *, committed: bool) -> list[tuple[int, str]]:
        end = self.last_stable_offset if committed else len(self.slots)
        return [
            (offset, slot.value)
            for offset, slot in enumerate(self.slots[:end])
            if offset >= start_offset
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
        assert log.log_end_offset == len(model.slots)
        assert log.last_stable_offset == model.last_stable_offset
        for committed in (False, True):
            for start in range(len(model.slots) + 1):
                got = self.on_disk.consume(start, committed=committed, max_bytes=max_bytes)
                assert got == model.expected(start, committed=committed)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(actions, max_size=40),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 200, 500, 1 << 20]),
)
def test_every_fetch_equals_the_naive_list(steps, transaction_version, max_bytes):
    run = _Run(transaction_version)
    for step in steps:
        run.do(step)
        assert run.on_disk.log.last_stable_offset == run.model.last_stable_offset
    run.check(max_bytes)
    run.do_restart("kill", 0)
    run.check(max_bytes)
    run.do_restart("clean", 0)
    run.check(max_bytes)
