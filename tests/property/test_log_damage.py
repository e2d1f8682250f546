"""A bit flipped, a byte lost, a file gone: the log is as it was, a prefix of it, or it refuses."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.batch_layout import LAST_OFFSET_DELTA_AT
from support.core.damage import (
    BASE_OFFSET_BYTES,
    Truth,
    bits_of,
    consume_until_damage,
    copied,
    filled,
    flip,
    load,
    replace,
    truth_of,
)
from support.core.log_build import LogOnDisk

from broker_sim.core.effects import Delete, Truncate
from broker_sim.core.log import InconsistentTopicId, LogConfig
from txnlog_kafka.wire.records import HEADER_BYTES, iter_batches

SIDE_FILES = (
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
    "leader-epoch-checkpoint",
    "segment-state-checkpoint",
    "partition.metadata",
)
SOME, ALL = 24, 10**9
counts = pytest.mark.parametrize("count", [SOME, pytest.param(ALL, marks=pytest.mark.chaos)])
ends = pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])


def stopped(*, clean: bool) -> tuple[LogOnDisk, Truth]:
    """A log as the end of a broker leaves it, and all that can be asked of it."""
    on_disk = filled()
    if clean:
        on_disk.call(on_disk.log.close)
    return on_disk, truth_of(on_disk)


def paths_of(on_disk: LogOnDisk, suffix: str) -> list[str]:
    return [f"t-0/{name}" for name in on_disk.disk.list("t-0") if name.endswith(suffix)]


def check_goes_on(on_disk: LogOnDisk, truth: Truth) -> None:
    """Check that the log takes an append, and that another start finds every record."""
    on_disk.produce("and on")
    load(on_disk, clean=False)
    assert on_disk.consume(truth.offsets[1], committed=False) == [(truth.offsets[1], "and on")]


def check_unchanged(
    damaged: LogOnDisk, truth: Truth, path: str, *what: object, clean: bool
) -> None:
    """A start finds all that there was; only of another topic's folder it may say so."""
    try:
        load(damaged, clean=clean)
    except InconsistentTopicId:
        # A text that was cut may name no topic; it never names another one unnoticed.
        assert path.endswith("partition.metadata")
        return
    assert truth_of(damaged) == truth, (path, *what)
    check_goes_on(damaged, truth)


# --------------------------------------------------------------------------- beside the log


@ends
@counts
@pytest.mark.parametrize("suffix", SIDE_FILES)
def test_a_bit_flipped_beside_the_log_changes_nothing(suffix, clean, count):
    on_disk, truth = stopped(clean=clean)
    paths = paths_of(on_disk, suffix)
    assert paths
    for path in paths:
        for bit in bits_of(on_disk.disk, path, count // len(paths) + 1):
            damaged = copied(on_disk)
            flip(damaged.disk, path, bit)
            check_unchanged(damaged, truth, path, bit, clean=clean)


@ends
@pytest.mark.parametrize("suffix", SIDE_FILES)
def test_a_file_beside_the_log_that_is_lost_or_cut_changes_nothing(suffix, clean):
    on_disk, truth = stopped(clean=clean)
    for path in paths_of(on_disk, suffix):
        size_bytes = on_disk.disk.size_bytes(path) or 0
        for kept in (None, 0, 1, size_bytes // 2, max(size_bytes - 34, 0), size_bytes - 1):
            damaged = copied(on_disk)
            damaged.disk.apply(Delete(path) if kept is None else Truncate(path, kept))
            check_unchanged(damaged, truth, path, kept, clean=clean)


@ends
def test_all_files_beside_the_log_may_be_lost_at_once(clean):
    on_disk, truth = stopped(clean=clean)
    for suffix in SIDE_FILES:
        for path in paths_of(on_disk, suffix):
            on_disk.disk.apply(Delete(path))
    load(on_disk, clean=clean)
    assert truth_of(on_disk) == truth
    load(on_disk, clean=False)
    assert truth_of(on_disk) == truth


# --------------------------------------------------------------------------- the log itself


@pytest.mark.parametrize("bit", range(3))
def test_a_last_offset_that_shrank_on_disk_hides_no_record_from_a_read(bit):
    """The CRC covers the last offset delta, but a broker that looks for an offset skips the CRC."""
    on_disk = LogOnDisk(LogConfig())
    for i in range(4):
        on_disk.produce(*"abcdefgh"[: i + 5])
    on_disk.restart("clean")
    (path,) = paths_of(on_disk, ".log")
    header, position = list(iter_batches(on_disk.disk.read(path, 0, 10**6)))[3]
    flip(on_disk.disk, path, 8 * (position + LAST_OFFSET_DELTA_AT + 3) + bit)
    load(on_disk, clean=True)
    assert consume_until_damage(on_disk, header.last_offset, committed=False) == []
    on_disk.produce("next")
    assert consume_until_damage(on_disk, header.last_offset, committed=False) == []


def check_prefix(damaged: LogOnDisk, truth: Truth, *what: object) -> None:
    """Whatever is delivered is what was written, from each offset on, up to the damage."""
    for (committed, start), records in truth.records.items():
        got = consume_until_damage(damaged, start, committed=committed)
        assert got == records[: len(got)], (*what, committed, start)


@ends
@counts
def test_a_bit_flipped_in_any_segment_is_never_served(clean, count):
    """A read also checks base offsets, which lie outside the CRC, below the recovery point."""
    on_disk, truth = stopped(clean=clean)
    for path in paths_of(on_disk, ".log"):
        for bit in bits_of(on_disk.disk, path, count):
            damaged = copied(on_disk)
            flip(damaged.disk, path, bit)
            load(damaged, clean=clean)
            check_prefix(damaged, truth, path, bit)


@pytest.mark.parametrize("lost", [".snapshot", ".txnindex"])
def test_two_batches_at_one_offset_where_producers_are_replayed_stop_nothing(lost):
    """Below the recovery point the broker compares no offsets, unless other data is damaged too."""
    on_disk = filled(LogConfig())
    on_disk.call(on_disk.log.close)
    truth = truth_of(on_disk)
    (path,) = paths_of(on_disk, ".log")
    for header, at in iter_batches(on_disk.disk.read(path, 0, 10**6)):
        if header.base_offset % 2 == 0 or header.is_control:
            continue
        damaged = copied(on_disk)
        flip(damaged.disk, path, 8 * (at + 7))
        for other in paths_of(on_disk, lost):
            flip(damaged.disk, other, 70)
        load(damaged, clean=True)
        for start in (0, header.next_offset):
            got = consume_until_damage(damaged, start, committed=True)
            assert {value for _, value in got} <= {v for _, v in truth.records[True, 0]}


@counts
def test_every_bit_of_a_batch_header_above_the_recovery_point_cuts_the_log_before_it(count):
    on_disk = filled(LogConfig(), tail=8)
    truth = truth_of(on_disk)
    path = paths_of(on_disk, ".log")[0]
    data = on_disk.disk.read(path, 0, 10**6)
    above = [(h, at) for h, at in iter_batches(data) if h.base_offset >= on_disk.log.recovery_point]
    assert len(above) > 6
    for header, at in above if count == ALL else (above[1], above[-1]):
        for bit in range(8 * at, 8 * (at + HEADER_BYTES)):
            damaged = copied(on_disk)
            flip(damaged.disk, path, bit)
            load(damaged, clean=False)
            assert damaged.log.log_end_offset == header.base_offset, bit - 8 * at
            got = consume_until_damage(damaged, 0, committed=True)
            records = truth.records[True, 0]
            assert got == records[: len(got)], bit


def test_every_length_of_the_last_segment_leaves_the_longest_valid_prefix():
    on_disk = filled(LogConfig(), tail=8)
    truth = truth_of(on_disk)
    path = paths_of(on_disk, ".log")[0]
    data = on_disk.disk.read(path, 0, 10**6)
    batches = [
        (h, at) for h, at in iter_batches(data) if h.base_offset >= on_disk.log.recovery_point
    ]
    for kept in range(batches[0][1], len(data)):
        damaged = copied(on_disk)
        damaged.disk.apply(Truncate(path, kept))
        load(damaged, clean=False)
        whole = [h.next_offset for h, at in batches if at + h.size_bytes <= kept]
        assert damaged.log.log_end_offset == max(whole, default=on_disk.log.recovery_point)
    check_prefix(damaged, truth)


def test_every_batch_lost_below_the_recovery_point_is_noticed():
    on_disk = filled(LogConfig())
    truth = truth_of(on_disk)
    path = paths_of(on_disk, ".log")[0]
    data = on_disk.disk.read(path, 0, 10**6)
    for header, at in iter_batches(data):
        damaged = copied(on_disk)
        damaged.disk.apply(Truncate(path, at))
        load(damaged, clean=False)
        assert damaged.log.log_end_offset == header.base_offset
        check_prefix(damaged, truth, at)


@ends
@pytest.mark.parametrize("how", ["empty", "gone"])
def test_a_lost_segment_does_not_turn_aborted_records_into_committed_ones(how, clean):
    """The marker that aborted them is among what is lost, and so is its index entry."""
    on_disk = LogOnDisk()
    on_disk.produce("aborted", producer=(8, 0, 0), transactional=True)
    for kind in ("abort", "commit"):
        on_disk.call(on_disk.log.roll)
        on_disk.mark(8, 0, kind)
        on_disk.produce("second", producer=(8, 0, 1 + (kind == "commit")), transactional=True)
    on_disk.mark(8, 0, "commit")
    if clean:
        on_disk.call(on_disk.log.close)
    path = "t-0/00000000000000000001.log"
    on_disk.disk.apply(Truncate(path, 0) if how == "empty" else Delete(path))
    for life in range(3):
        load(on_disk, clean=clean and life == 0)
        assert consume_until_damage(on_disk, 0, committed=True) == []
        assert on_disk.consume(3, committed=True) == [(4, "second")]
        assert on_disk.log.last_stable_offset == on_disk.log.log_end_offset
        assert [a.first_offset for a in on_disk.read(0, committed=True).aborted] == [0]
    on_disk.call(on_disk.log.close)
    for path in paths_of(on_disk, ".txnindex"):
        flip(on_disk.disk, path, 70)
    load(on_disk, clean=True)
    assert consume_until_damage(on_disk, 0, committed=True) == []
    assert [a.first_offset for a in on_disk.read(0, committed=True).aborted] == [0]


def test_an_index_that_was_looked_into_while_its_log_is_loaded_is_not_written_twice():
    on_disk, truth = stopped(clean=True)
    paths = paths_of(on_disk, ".index")
    before = [on_disk.disk.read(path, 0, 10**6) for path in paths]
    assert before[-1]
    for suffix in (".snapshot", ".timeindex"):
        on_disk.disk.apply(Delete(paths_of(on_disk, suffix)[-1 if suffix == ".snapshot" else 0]))
    load(on_disk, clean=True)
    assert [on_disk.disk.read(path, 0, 10**6) for path in paths] == before
    assert truth_of(on_disk) == truth
    check_goes_on(on_disk, truth)


def test_a_closed_segment_that_was_cut_says_so_and_the_others_stay_readable():
    for clean in (True, False):
        on_disk, truth = stopped(clean=clean)
        paths = paths_of(on_disk, ".log")
        assert len(paths) >= 4
        cut = (on_disk.disk.size_bytes(paths[1]) or 0) - 1
        on_disk.disk.apply(Truncate(paths[1], cut))
        for life in range(3):
            load(on_disk, clean=clean and life == 0)
            check_prefix(on_disk, truth, clean, life)
            base = int(paths[2].split("/")[1].split(".")[0])
            later = [r for r in truth.records[False, 0] if r[0] >= base]
            assert on_disk.consume(base, committed=False) == later


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.booleans())
def test_a_start_on_scrambled_files_ends_and_serves_nothing_false(seed, clean):
    """Several kinds of damage at once, in any file."""
    scramble(seed, clean)


@pytest.mark.chaos
@settings(max_examples=3000)
@given(st.integers(0, 2**32), st.booleans())
def test_a_start_on_scrambled_files_ends_and_serves_nothing_false_for_long(seed, clean):
    scramble(seed, clean)


def keep_base_offsets(bad: bytearray, before: bytes, good: bytes) -> None:
    """Restore the base offsets: they lie outside the CRC, so changed ones may agree by chance."""
    for _, at in iter_batches(good):
        for byte in BASE_OFFSET_BYTES:
            if at + byte < len(bad):
                bad[at + byte] = before[at + byte]


def scramble(seed: int, clean: bool) -> None:
    rng = random.Random(seed)
    on_disk, truth = stopped(clean=clean)
    names = [n for n in on_disk.disk.list("t-0") if n != "partition.metadata"]
    good = {f"t-0/{name}": on_disk.disk.read(f"t-0/{name}", 0, 10**6) for name in names}
    for _ in range(rng.randint(1, 4)):
        path = f"t-0/{rng.choice(names)}"
        data = on_disk.disk.read(path, 0, 10**6)
        kind = rng.randrange(5)
        if kind == 0:
            on_disk.disk.apply(Delete(path))
        elif kind == 1:
            replace(on_disk.disk, path, data[: rng.randint(0, len(data))])
        elif kind == 2:
            replace(on_disk.disk, path, data + rng.randbytes(rng.randint(1, 200)))
        elif kind == 3:
            replace(on_disk.disk, path, rng.randbytes(rng.randint(0, 400)))
        elif data:
            at = rng.randrange(len(data))
            changed = rng.randbytes(rng.randint(1, 20))
            bad = bytearray(data[:at] + changed + data[at + len(changed) :])
            if path.endswith(".log"):
                keep_base_offsets(bad, data, good[path])
            replace(on_disk.disk, path, bytes(bad))
    load(on_disk, clean=clean)
    true_records = dict(truth.records[False, 0])
    for start in range(on_disk.log.log_start_offset, on_disk.log.log_end_offset, 5):
        for offset, value in consume_until_damage(on_disk, start, committed=False):
            assert true_records[offset] == value
    load(on_disk, clean=False)
    on_disk.produce("after")
