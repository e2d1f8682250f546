"""The audit's checks: silent on a clean history, and each planted anomaly is named.

The history: an input of 2 partitions and 40 records with 5 keys (some null), an output of 3
partitions written by one producer in micro-batches of 10, of which the third was first tried by an
older epoch that was fenced. `World` is plain rows, so that a test plants by editing rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pytest

from jobs import audit_checks as audit
from jobs.audit_checks import ABORTED, COMMITTED, UNDECIDED

PRODUCER_ID = 4000


@dataclass(frozen=True)
class Row:
    """A record of the output, as read_uncommitted shows it."""

    partition: int
    offset: int
    key: bytes | None
    source: tuple[int, int]
    epoch: int
    decision: int = COMMITTED
    delivered: bool = True


@dataclass(frozen=True)
class Marker:
    """A transaction marker of the output."""

    partition: int
    offset: int
    epoch: int
    data_epoch: int
    committed: bool


@dataclass
class World:
    """Input, output, markers and offsets; `check()` audits them."""

    source: list[tuple[int, int, bytes | None]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    group: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def input_records(self) -> audit.InputRecords:
        partitions, offsets, keys = zip(*self.source, strict=True)
        return audit.InputRecords(int64s(partitions), int64s(offsets), binary(keys))

    def output_records(self) -> audit.OutputRecords:
        rows = self.rows
        return audit.OutputRecords(
            partitions=int64s([r.partition for r in rows]),
            offsets=int64s([r.offset for r in rows]),
            keys=binary([r.key for r in rows]),
            source_partitions=int64s([r.source[0] for r in rows]),
            source_offsets=int64s([r.source[1] for r in rows]),
            producer_ids=int64s([PRODUCER_ID] * len(rows)),
            producer_epochs=int64s([r.epoch for r in rows]),
            decisions=int64s([r.decision for r in rows]),
            delivered=np.array([r.delivered for r in rows], dtype=bool),
        )

    def marker_records(self) -> audit.Markers:
        marks = self.markers
        return audit.Markers(
            partitions=int64s([m.partition for m in marks]),
            offsets=int64s([m.offset for m in marks]),
            producer_ids=int64s([PRODUCER_ID] * len(marks)),
            producer_epochs=int64s([m.epoch for m in marks]),
            data_epochs=int64s([m.data_epoch for m in marks]),
            committed=np.array([m.committed for m in marks], dtype=bool),
        )

    def check(self) -> dict[str, int]:
        """Anomaly name -> count."""
        found = audit.check_all(
            self.input_records(),
            self.output_records(),
            self.marker_records(),
            group_offsets=self.group,
            input_end_offsets=self.ends,
        )
        assert all(0 < len(a.examples) <= audit.EXAMPLES_MAX for a in found)
        return {a.name: a.count for a in found}

    def counts(self) -> audit.TransactionCounts:
        return audit.count_transactions(self.output_records(), self.marker_records())

    def edit(self, chosen: Callable[[Row], bool], **changes: object) -> int:
        """Change the rows that `chosen` picks; how many there were."""
        hit = sum(map(chosen, self.rows))
        self.rows = [replace(r, **changes) if chosen(r) else r for r in self.rows]
        return hit


def int64s(values: object) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def binary(values: object) -> pa.Array:
    return pa.array(list(values), type=pa.binary())


def clean_world(*, version: int = 2) -> World:
    """The history of the module's docstring, under transaction version 1 or 2."""
    world = World()
    for n in range(40):
        partition, offset = n % 2, n // 2
        key = None if n % 10 == 9 else f"k{n % 5 * 2 + partition}".encode()
        world.source.append((partition, offset, key))
    world.group = world.ends = {0: 20, 1: 20}
    ends = [0, 0, 0]
    bump = 1 if version == 2 else 0
    epoch = 0
    for batch in (0, 1, 2, 3):
        chunk = [s for s in world.source if s[1] // 5 == batch]
        if batch == 2:
            attempt(world, chunk, ends, epoch, committed=False, marker_epoch=epoch + 1)
            epoch += 2
        attempt(world, chunk, ends, epoch, committed=True, marker_epoch=epoch + bump)
        epoch += bump
    return world


def attempt(
    world: World,
    chunk: list[tuple[int, int, bytes | None]],
    ends: list[int],
    epoch: int,
    *,
    committed: bool,
    marker_epoch: int,
) -> None:
    """Write one transaction's rows, then a marker in each partition."""
    decision = COMMITTED if committed else ABORTED
    for partition, offset, key in chunk:
        to = 0 if key is None else key[1] % 3
        row = Row(to, ends[to], key, (partition, offset), epoch, decision, committed)
        world.rows.append(row)
        ends[to] += 1
    for to in range(3):
        world.markers.append(Marker(to, ends[to], marker_epoch, epoch, committed))
        ends[to] += 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_clean_history_has_no_anomaly_and_its_transactions_are_counted(version: int) -> None:
    world = clean_world(version=version)
    assert world.check() == {}
    assert world.counts() == audit.TransactionCounts(
        committed=4, aborted=1, fenced=1, undecided=0, aborted_records=10, markers=15
    )


def test_a_record_written_twice_is_a_duplicate() -> None:
    world = clean_world()
    last = world.rows[-1]
    world.rows.append(replace(last, offset=last.offset + 100))
    assert world.check() == {"duplicate": 1}


def test_a_whole_batch_committed_twice_is_duplicates() -> None:
    world = clean_world()
    world.edit(lambda r: r.decision == ABORTED, decision=COMMITTED, delivered=True)
    world.markers = [replace(m, committed=True) for m in world.markers]
    assert world.check()["duplicate"] == 10


def test_a_hole_is_a_lost_write_and_a_missing_tail_is_unseen() -> None:
    world = clean_world()
    world.rows = [r for r in world.rows if r.source not in {(0, 7), (1, 18), (1, 19)}]
    assert world.check() == {"lost-write": 1, "unseen": 2}


def test_an_empty_output_is_all_unseen() -> None:
    world = clean_world()
    world.edit(lambda r: True, delivered=False, decision=ABORTED)
    assert world.check()["unseen"] == 40


@pytest.mark.invariant(4)
def test_an_output_record_from_nowhere_is_a_phantom() -> None:
    world = clean_world()
    assert world.edit(lambda r: r.source == (1, 19), source=(1, 99)) == 1
    assert world.check() == {"phantom": 1, "unseen": 1}


def test_records_of_another_program_are_foreign_and_nothing_else() -> None:
    world = clean_world()
    ends = max(r.offset for r in world.rows)
    for n in (1, 2):
        world.rows.append(Row(0, ends + n, b"k0", (-1, -1), 0))
    (found,) = audit.check_foreign(world.output_records())
    assert str(found) == (
        "foreign: 2 (they were not written by consume_transform_produce.py; "
        f"the first is output partition 0 offset {ends + 1})"
    )
    assert world.check() == {"foreign": 2}


def test_a_topic_that_another_program_wrote_is_said_to_be_that() -> None:
    world = clean_world()
    world.edit(lambda r: True, source=(-1, -1))
    (found,) = audit.check_foreign(world.output_records())
    assert "this topic was not written by consume_transform_produce.py" in str(found)
    assert set(world.check()) == {"foreign", "unseen"}


@pytest.mark.parametrize("key", [b"other", None])
def test_a_changed_key_is_named(key: bytes | None) -> None:
    world = clean_world()
    assert world.edit(lambda r: r.source == (0, 0), key=key) == 1
    assert world.check() == {"wrong-key": 1}


def test_a_reordered_key_is_a_nonmonotonic_send() -> None:
    world = clean_world()
    mine = [r for r in world.rows if r.key == b"k0" and r.delivered]
    world.edit(lambda r: r == mine[0], source=mine[1].source)
    world.edit(lambda r: r == mine[1], source=mine[0].source)
    assert world.check() == {"nonmonotonic-send": 1}


def test_one_key_in_two_output_partitions_is_a_nonmonotonic_send() -> None:
    world = clean_world()
    mine = [r for r in world.rows if r.key == b"k0" and r.delivered]
    world.edit(lambda r: r == mine[-1], partition=(mine[-1].partition + 1) % 3, offset=500)
    assert world.check() == {"nonmonotonic-send": 1}


def test_records_without_a_key_have_no_order() -> None:
    world = clean_world()
    mine = [r for r in world.rows if r.key is None and r.delivered]
    world.edit(lambda r: r == mine[0], source=mine[1].source)
    world.edit(lambda r: r == mine[1], source=mine[0].source)
    assert world.check() == {}


def test_a_delivered_record_of_an_aborted_transaction_is_g1a() -> None:
    world = clean_world()
    row = next(r for r in world.rows if r.decision == ABORTED)
    world.edit(lambda r: r == row, delivered=True)
    found = world.check()
    assert found["G1a"] == 1
    assert found["duplicate"] == 1


def test_a_delivered_record_of_an_open_transaction_is_a_precommitted_read() -> None:
    world = clean_world()
    last = world.rows[-1]
    world.edit(lambda r: r == last, decision=UNDECIDED)
    assert world.check() == {"precommitted-read": 1, "hanging-transaction": 1}


def test_a_committed_record_that_was_not_delivered_is_a_poll_skip() -> None:
    world = clean_world()
    assert world.edit(lambda r: r.source == (0, 3) and r.delivered, delivered=False) == 1
    assert world.check() == {"poll-skip": 1, "lost-write": 1}


def test_an_open_transaction_is_a_hanging_one_and_counted() -> None:
    world = clean_world()
    world.edit(lambda r: r.decision == ABORTED, decision=UNDECIDED)
    world.markers = [m for m in world.markers if m.committed]
    assert world.check() == {"hanging-transaction": 1}
    assert world.counts().undecided == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_committed_here_and_aborted_there_is_torn(version: int) -> None:
    world = clean_world(version=version)
    # The last transaction: its part in partition 1 was aborted.
    epoch, place = world.rows[-1].epoch, [r.source for r in world.rows[-10:]]
    hit = world.edit(
        lambda r: r.partition == 1 and r.epoch == epoch and r.source in place,
        decision=ABORTED,
        delivered=False,
    )
    mark = world.markers[-2]
    world.markers[-2] = replace(mark, committed=False)
    assert mark.partition == 1
    assert hit > 0
    found = world.check()
    assert found.pop("torn-transaction") == 1
    assert sum(found.values()) == hit
    assert set(found) <= {"lost-write", "unseen"}


def test_group_offsets_behind_absent_or_foreign_are_inconsistent() -> None:
    world = clean_world()
    world.group = {0: 19}
    assert world.check() == {"inconsistent-offsets": 2}
    world.group = {0: 20, 1: 20, 2: 1}
    assert world.check() == {"inconsistent-offsets": 1}
    world.group, world.ends = {0: 20, 1: 20}, {0: 20, 1: 20, 2: 0}
    assert world.check() == {}


def test_a_producer_that_aborts_by_itself_and_goes_on_is_not_fenced() -> None:
    world = World(ends={0: 10, 1: 0}, group={0: 10})
    world.source = [(0, n, b"k0") for n in range(10)]
    ends = [0, 0, 0]
    attempt(world, world.source[:5], ends, 7, committed=False, marker_epoch=8)
    attempt(world, world.source, ends, 8, committed=True, marker_epoch=9)
    assert world.check() == {}
    assert (world.counts().aborted, world.counts().fenced) == (1, 0)


def test_decide_takes_the_first_marker_of_the_producer_after_the_record() -> None:
    decisions, index = audit.decide(
        offsets=int64s([0, 1, 2, 4, 5, 7]),
        producer_ids=int64s([1, 2, 1, 1, -1, 2]),
        transactional=np.array([True, True, True, True, False, True]),
        marker_offsets=int64s([3, 6]),
        marker_producer_ids=int64s([1, 2]),
        marker_committed=np.array([False, True]),
    )
    assert decisions.tolist() == [ABORTED, COMMITTED, ABORTED, UNDECIDED, 3, UNDECIDED]
    assert index.tolist() == [0, 1, 0, -1, -1, -1]


def test_a_third_of_a_million_clean_records_pass() -> None:
    count = 336_776
    offsets = np.arange(count, dtype=np.int64)
    keys = binary([f"N{n % 4043}".encode() for n in range(count)])
    zeros = np.zeros(count, dtype=np.int64)
    source = audit.InputRecords(zeros, offsets, keys)
    output = audit.OutputRecords(
        zeros, offsets, keys, zeros, offsets, zeros, zeros, zeros + COMMITTED, offsets >= 0
    )
    empty = int64s([])
    markers = audit.Markers(empty, empty, empty, empty, empty, np.array([], dtype=bool))
    found = audit.check_all(
        source, output, markers, group_offsets={0: count}, input_end_offsets={0: count}
    )
    assert found == []
