"""Neighbours that disagree: what of a log file is taken for the log, and what a read believes."""

from __future__ import annotations

import dataclasses

import pytest
from support.core.batch_layout import LAST_OFFSET_DELTA_AT
from support.core.damage import consume_until_damage, flip, replace
from support.core.log_build import SMALL, LogOnDisk, build_batch

from broker_sim.core.effects import Append, Truncate
from broker_sim.core.log import LogConfig
from broker_sim.core.log.continuity import BatchRules, whole_batches
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import (
    CorruptBatch,
    iter_batches,
    stamp_offsets,
)

LOG = "t-0/00000000000000000000.log"
RULES = BatchRules(
    next_offset=10, end_offset=100, may_skip_offsets=False, leader_epoch_min=1, leader_epoch_max=7
)
GAPS = dataclasses.replace(RULES, may_skip_offsets=True)


def kept(rules: BatchRules, *batches: tuple[int, int]) -> list[int]:
    """The base offsets that are taken, of batches of one record with (base offset, epoch)."""
    disk, size_bytes = SimDisk(), 0
    for base_offset, leader_epoch in batches:
        batch = bytearray(build_batch("x"))
        stamp_offsets(batch, 0, base_offset=base_offset, leader_epoch=leader_epoch)
        disk.apply(Append("f.log", size_bytes, bytes(batch)))
        size_bytes += len(batch)
    found = []
    try:
        found += [h.base_offset for h, _ in whole_batches(disk, "f.log", 0, size_bytes, rules)]
    except CorruptBatch:
        pytest.fail("raised before it gave what is good")
    return found


def kept_until_damage(rules: BatchRules, *batches: tuple[int, int]) -> list[int]:
    """The same, where the last of them is damage."""
    disk, size_bytes = SimDisk(), 0
    for base_offset, leader_epoch in batches:
        batch = bytearray(build_batch("x"))
        stamp_offsets(batch, 0, base_offset=base_offset, leader_epoch=leader_epoch)
        disk.apply(Append("f.log", size_bytes, bytes(batch)))
        size_bytes += len(batch)
    found = []
    with pytest.raises(CorruptBatch, match=r"f\.log: the batch at position \d+ has"):
        for header, _ in whole_batches(disk, "f.log", 0, size_bytes, rules):
            found.append(header.base_offset)
    return found


def test_batches_that_follow_one_another_are_all_taken():
    assert kept(RULES, (10, 1), (11, 1), (12, 4), (13, 7)) == [10, 11, 12, 13]
    assert kept(GAPS, (12, 1), (20, 2), (99, 2)) == [12, 20, 99]
    assert kept(RULES, (10, -1)) == [10]


@pytest.mark.parametrize("bad", [(12, 1), (10, 1), (11, 0), (11, 8), (11, 2**31 - 1)])
def test_a_batch_that_does_not_follow_ends_the_log_before_it(bad):
    assert kept_until_damage(RULES, (10, 1), bad, (12, 1)) == [10]


def test_where_either_of_two_may_be_wrong_the_log_ends_before_both():
    assert kept_until_damage(RULES, (10, 1), (11, 5), (12, 1)) == [10]
    assert kept_until_damage(GAPS, (10, 1), (43, 1), (12, 1)) == [10]
    # The first of two agrees with the one before it: the second is wrong.
    assert kept_until_damage(RULES, (10, 5), (11, 5), (12, 1)) == [10, 11]


def test_a_batch_reaches_over_no_later_segment():
    assert kept_until_damage(GAPS, (10, 1), (100, 1)) == [10]


# --------------------------------------------------------------------------- reads


def cold(*sizes: int) -> tuple[LogOnDisk, list[int]]:
    """A log that was not read since its start: batches of so many records, and where they lie."""
    on_disk = LogOnDisk(LogConfig())
    for size in sizes:
        on_disk.produce(*(f"{size}:{i}" for i in range(size)))
    on_disk.restart("clean")
    return on_disk, [at for _, at in iter_batches(on_disk.disk.read(LOG, 0, 10**6))]


def test_a_batch_that_shrank_in_the_middle_hides_no_record():
    on_disk, positions = cold(2, 8, 2, 2)
    flip(on_disk.disk, LOG, 8 * (positions[1] + LAST_OFFSET_DELTA_AT + 3))
    on_disk.load(clean=True)
    assert consume_until_damage(on_disk, 9, committed=False) == []
    assert on_disk.read(9, committed=False).error == ErrorCode.CORRUPT_MESSAGE
    assert [offset for offset, _ in consume_until_damage(on_disk, 10, committed=False)] == [
        10, 11, 12, 13,
    ]  # fmt: skip


def test_a_batch_whose_offsets_lie_outside_of_its_segment_is_damage():
    on_disk, positions = cold(1, 1, 1)
    flip(on_disk.disk, LOG, 8 * (positions[1] + 3))
    on_disk.load(clean=True)
    assert on_disk.read(1, committed=False).error == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("max_bytes", [100, 10**6])
def test_a_base_offset_that_changed_after_a_clean_stop_delivers_nothing_at_a_wrong_offset(
    max_bytes,
):
    on_disk, positions = cold(3, 1, 2, 1, 4)
    written = consume_until_damage(on_disk, 0, committed=False)
    for position in positions:
        for bit in range(64):
            on_disk.load(clean=True)
            flip(on_disk.disk, LOG, 8 * position + bit)
            on_disk.load(clean=True)
            found = consume_until_damage(on_disk, 0, committed=False, max_bytes=max_bytes)
            assert found == written[: len(found)], (position, bit)
            assert len(found) < len(written), (position, bit)
            flip(on_disk.disk, LOG, 8 * position + bit)


def test_a_base_offset_that_fell_hides_no_aborted_transaction():
    on_disk = LogOnDisk(LogConfig())
    on_disk.produce("0")
    on_disk.produce("aborted", producer=(8, 0, 0), transactional=True)
    on_disk.mark(8, 0, "abort")
    for value in ("3", "4", "5"):
        on_disk.produce(value)
    on_disk.restart("clean")
    positions = [at for _, at in iter_batches(on_disk.disk.read(LOG, 0, 10**6))]
    flip(on_disk.disk, LOG, 8 * (positions[4] + 7) + 2)  # 4 becomes 0
    on_disk.load(clean=True)
    read = on_disk.read(0, committed=True, max_bytes=positions[5] + 1)
    assert read.size_bytes == positions[4]
    assert [aborted.producer_id for aborted in read.aborted or ()] == [8]


def test_a_damaged_index_is_written_again_once():
    on_disk = LogOnDisk()
    on_disk.produce("gone", producer=(8, 0, 0), transactional=True)
    on_disk.mark(8, 0, "abort")
    on_disk.restart("clean")
    path = LOG.replace(".log", ".txnindex")
    good = on_disk.disk.read(path, 0, 1000)
    flip(on_disk.disk, path, 100)
    on_disk.load(clean=True)
    assert on_disk.consume(0, committed=True) == []
    written = []
    for _ in range(2):
        effects = on_disk.effects()
        on_disk.log.append_as_leader(
            build_batch("x"), origin=on_disk.client_origin, effects=effects
        )
        on_disk.carry_out(effects)
        written.append([o for o in effects.storage if getattr(o, "path", "") == path])
    assert written == [[Truncate(path, 0), Append(path, 0, good)], []]


def test_a_closed_segment_of_a_compacted_log_that_was_cut_is_damaged_in_every_later_life():
    on_disk = LogOnDisk()
    for i in range(20):
        on_disk.produce(f"value {i}" * 3)
    on_disk.restart("clean")
    data = on_disk.disk.read(LOG, 0, 10**6)
    *_, (last, at) = iter_batches(data)
    replace(on_disk.disk, LOG, data[:at])
    on_disk.config = dataclasses.replace(SMALL, cleanup_policy="compact")
    for kind in ("clean", "kill", "clean", "clean"):
        on_disk.load(clean=kind == "clean")
        read = on_disk.read(last.base_offset, committed=False)
        assert read.error == ErrorCode.CORRUPT_MESSAGE, kind
        on_disk.log.config = SMALL  # these records have no keys
        on_disk.produce("and on")
        on_disk.restart(kind)
