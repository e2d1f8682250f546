"""The recovery point: what a start reads of a log, and that only flushed bytes are not."""

from __future__ import annotations

import random

import pytest
from support.core.counting_disk import CountingDisk
from support.core.log_build import LogOnDisk, build_batch

from broker_sim.core.effects import Append, Delete, Flush, Truncate, WriteFile
from broker_sim.core.log import LogConfig
from broker_sim.core.log.local_log import CHECKPOINT_BYTES
from broker_sim.core.log.offset_checkpoint import decode_offsets, encode_offsets
from broker_sim.core.log.segment_states import FILE_NAME as STATES
from txnlog_kafka.wire.error_codes import ErrorCode

LOG = "t-0/00000000000000000000.log"
BIG = LogConfig(segment_bytes=1 << 20)


def counted(config: LogConfig) -> tuple[LogOnDisk, CountingDisk]:
    disk = CountingDisk()
    on_disk = LogOnDisk(config, disk=disk)
    disk.count()
    return on_disk, disk


def checkpoint(on_disk: LogOnDisk) -> list:
    """The operations."""
    effects = on_disk.effects()
    on_disk.log.checkpoint(effects)
    on_disk.carry_out(effects)
    return effects.storage


def fill(on_disk: LogOnDisk, batch_count: int, batch_bytes: int, *, first: int = 0) -> None:
    """Batches of one idempotent producer, with an aborted transaction of another in between."""
    for i in range(first, first + batch_count):
        on_disk.produce("x" * batch_bytes, producer=(7, 0, i))
        if i % 10 == 5:
            on_disk.produce("aborted", producer=(8, 0, i // 10), transactional=True)
            on_disk.mark(8, 0, "abort")


# --------------------------------------------------------------------------- bytes read


def test_a_clean_start_reads_no_log_and_no_index_however_large_they_are():
    costs = {}
    for batch_count in (20, 1000):
        on_disk, disk = counted(LogConfig(segment_bytes=1 << 24))
        fill(on_disk, batch_count, 5000)
        before = on_disk.log.producers()
        on_disk.restart("clean")
        assert disk.count(ends=".log") == 0
        on_disk.restart("clean")
        assert (disk.read_bytes.get(LOG, 0), on_disk.log.producers()) == (0, before)
        assert sum(n for path, n in disk.read_bytes.items() if path.endswith("index")) == 0
        costs[batch_count] = disk.count()
    assert costs[1000] < costs[20] + 50


def test_a_clean_start_reads_a_few_bytes_for_each_segment():
    on_disk, disk = counted(LogConfig(segment_bytes=50_000))
    fill(on_disk, 500, 5000)
    on_disk.restart("clean")
    segment_count = sum(name.endswith(".log") for name in disk.list("t-0"))
    assert segment_count > 40
    disk.count()
    on_disk.restart("clean")
    assert disk.count() < segment_count * 150 + 1000


def test_after_a_crash_only_what_is_above_the_recovery_point_is_read():
    on_disk, disk = counted(LogConfig(segment_bytes=1 << 30))
    fill(on_disk, 300, 5000)
    assert disk.size_bytes(LOG) > CHECKPOINT_BYTES
    assert checkpoint(on_disk)
    point, recovered_bytes = on_disk.log.recovery_point, disk.size_bytes(LOG) or 0
    assert point == on_disk.log.log_end_offset
    fill(on_disk, 7, 5000, first=300)
    added = (disk.size_bytes(LOG) or 0) - recovered_bytes
    before = on_disk.log.producers()
    disk.count()
    on_disk.restart("kill")
    # Chunks are read again where a batch begins in one and ends in the next.
    assert added <= disk.read_bytes[LOG] <= 2 * added
    assert (on_disk.log.producers(), on_disk.log.recovery_point) == (before, point)
    assert disk.count(ends=".index") < 100


def test_the_recovery_point_lies_in_a_segment_that_was_closed_since():
    on_disk, disk = counted(LogConfig(segment_bytes=200_000, flush_messages=1))
    fill(on_disk, 20, 5000)
    checkpoint(on_disk)
    fill(on_disk, 60, 5000, first=20)
    before = on_disk.log.producers(), on_disk.consume(0, committed=True)
    disk.count()
    on_disk.restart("kill")
    assert disk.read_bytes[LOG] < 2 * ((disk.size_bytes(LOG) or 0) - 100_000)
    assert (on_disk.log.producers(), on_disk.consume(0, committed=True)) == before


def test_without_a_recovery_point_everything_is_read():
    on_disk, disk = counted(BIG)
    fill(on_disk, 300, 5000)
    on_disk.checkpoint()
    again = LogOnDisk(BIG, disk=disk)
    assert again.log.recovery_point == 0
    assert disk.count(ends=".log") >= on_disk.log.size_bytes
    assert again.log.producers() == on_disk.log.producers()


# --------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_flushes_first_and_then_says_so():
    on_disk = LogOnDisk(LogConfig())
    fill(on_disk, 30, 50_000)
    operations = checkpoint(on_disk)
    assert [type(operation) for operation in operations] == [Flush, WriteFile, WriteFile]
    flushed, snapshot, states = operations
    assert set(flushed.paths) == {LOG.replace(".log", s) for s in (
        ".log", ".index", ".timeindex", ".txnindex",
    )}  # fmt: skip
    assert snapshot.path.endswith(f"{on_disk.log.log_end_offset:020d}.snapshot")
    assert states.path == f"t-0/{STATES}"
    assert checkpoint(on_disk) == []
    fill(on_disk, 30, 50_000, first=30)
    later = checkpoint(on_disk)
    assert later[-1] == Delete(snapshot.path)


def test_a_small_log_is_not_flushed_for_a_checkpoint_but_one_that_is_flushed_gets_it():
    on_disk = LogOnDisk(LogConfig())
    on_disk.produce("a")
    assert checkpoint(on_disk) == []
    on_disk.call(on_disk.log.flush)
    assert checkpoint(on_disk)
    assert on_disk.log.recovery_point == 1


def test_what_was_not_flushed_may_be_lost_below_no_recovery_point():
    for seed in range(30):
        on_disk = LogOnDisk(LogConfig())
        fill(on_disk, 12, 500)
        on_disk.checkpoint()
        point, before = on_disk.log.recovery_point, on_disk.consume(0, committed=True)
        fill(on_disk, 12, 500, first=12)
        whole = on_disk.consume(0, committed=True)
        on_disk.disk.lose_power(random.Random(seed))
        on_disk.load(clean=False)
        assert on_disk.log.log_end_offset >= point
        after = on_disk.consume(0, committed=True)
        assert (after[: len(before)], after) == (before, whole[: len(after)])


@pytest.mark.parametrize("point", [1, 20, 10**9])
def test_a_recovery_point_that_is_wrong_costs_time_only(point):
    on_disk = LogOnDisk()
    fill(on_disk, 25, 60)
    on_disk.checkpoint()
    fill(on_disk, 5, 60, first=25)
    before = on_disk.log.producers(), on_disk.consume(0, committed=True)
    on_disk.load(clean=False, recovery_point=point)
    assert (on_disk.log.producers(), on_disk.consume(0, committed=True)) == before


def test_states_that_are_not_true_are_removed_before_the_log_is_cut():
    on_disk = LogOnDisk(LogConfig())
    fill(on_disk, 12, 500)
    on_disk.checkpoint()
    on_disk.disk.apply(Truncate(LOG, (on_disk.disk.size_bytes(LOG) or 0) - 1))
    effects = on_disk.effects()
    on_disk.load(clean=False, effects=effects)
    paths = [operation.path for operation in effects.storage]
    assert paths.index(f"t-0/{STATES}") < paths.index(LOG)
    # What is appended now has other lengths: the old states would point into its middle.
    on_disk.produce("y" * 777)
    on_disk.restart("kill")
    assert on_disk.consume(0, committed=True)[-1][1] == "y" * 777


def test_a_checkpoint_file_has_kafkas_layout():
    offsets = {("b", 1): 7, ("a.b", 0): 2**40}
    assert encode_offsets(offsets) == b"0\n2\na.b 0 1099511627776\nb 1 7\n"
    assert decode_offsets(encode_offsets(offsets)) == offsets
    assert decode_offsets(b"") == decode_offsets(b"0\n0\n") == {}


@pytest.mark.parametrize(
    "data",
    [b"1\n0\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\n1\na 0 x\n", b"0\n1\na 0 -1\n", b"\xff",
     b"0\n2\na 0 1\na 0 2\n", b"0"],
)  # fmt: skip
def test_a_checkpoint_file_that_is_none_is_refused(data):
    assert decode_offsets(data) is None


# --------------------------------------------------------------------------- flush settings


def flushes(effects) -> int:
    return sum(isinstance(operation, Flush) for operation in effects.storage)


def test_flush_messages_counts_records_since_the_last_flush():
    on_disk = LogOnDisk(LogConfig(flush_messages=3))
    counts = []
    for values in (["a"], ["b"], ["c"], ["d", "e", "f", "g"], ["h"]):
        effects = on_disk.effects()
        result = on_disk.log.append_as_leader(
            build_batch(*values), origin=on_disk.client_origin, effects=effects
        )
        assert result.error == ErrorCode.NONE
        on_disk.carry_out(effects)
        counts.append(flushes(effects))
        assert bool(on_disk.log.flush_paths()) == (counts[-1] == 0)
    assert counts == [0, 0, 1, 1, 0]


def test_flush_ms_counts_from_the_last_flush():
    on_disk = LogOnDisk(LogConfig(flush_ms=1000))
    on_disk.produce("a")
    results = []
    for elapsed_ms in (999, 1, 0, 1000):
        on_disk.now_ms += elapsed_ms
        effects = on_disk.effects()
        on_disk.log.flush_if_due(effects)
        on_disk.carry_out(effects)
        results.append(flushes(effects))
        on_disk.produce("b")
    assert results == [0, 1, 0, 1]


def test_an_index_that_was_made_again_is_flushed_before_it_is_vouched_for():
    on_disk = LogOnDisk()
    fill(on_disk, 25, 60)
    names = [n for n in on_disk.disk.list("t-0") if n.endswith(".txnindex")]
    lost = f"t-0/{names[0]}"
    on_disk.disk.apply(Delete(lost))
    on_disk.load(clean=False)
    on_disk.call(on_disk.log.flush)
    operations = checkpoint(on_disk)
    vouched = next(i for i, o in enumerate(operations) if getattr(o, "path", "").endswith(STATES))
    assert any(isinstance(o, Flush) and lost in o.paths for o in operations[:vouched])


def test_a_file_that_lost_its_end_is_told_with_its_name():
    on_disk = LogOnDisk()
    fill(on_disk, 25, 60)
    on_disk.restart("clean")
    lost = next(n for n in on_disk.disk.list("t-0") if n.endswith(".txnindex"))
    on_disk.disk.apply(Delete(f"t-0/{lost}"))
    on_disk.disk.apply(Append(f"t-0/{lost}", 0, b"x" * 10))
    effects = on_disk.effects()
    on_disk.load(clean=True, effects=effects)
    told = [trace for trace in effects.traces if trace.kind == "damaged-file"]
    assert [trace.fields["path"] for trace in told] == [f"t-0/{lost}"]
