"""Rolling segments and removing old ones."""

from __future__ import annotations

from support.core.log_build import NOW_MS, LogOnDisk, build_batch

from broker_sim.core.effects import Flush
from broker_sim.core.log import LogConfig
from txnlog_kafka.wire.error_codes import ErrorCode

BATCH = len(build_batch("value"))


def bases(on_disk: LogOnDisk) -> list[int]:
    return [int(n[:20]) for n in on_disk.disk.list("t-0") if n.endswith(".log")]


def retain(on_disk: LogOnDisk) -> int:
    return on_disk.call(on_disk.log.apply_retention)


def fill(on_disk: LogOnDisk, count: int, *, age_ms: int = 0) -> None:
    for _ in range(count):
        on_disk.append(build_batch("value", timestamp=on_disk.now_ms - age_ms))


def test_a_segment_is_rolled_before_it_grows_over_its_size():
    on_disk = LogOnDisk(LogConfig(segment_bytes=3 * BATCH))
    fill(on_disk, 7)
    assert bases(on_disk) == [0, 3, 6]
    assert on_disk.disk.size_bytes("t-0/00000000000000000000.log") == 3 * BATCH


def test_a_segment_is_rolled_by_the_age_of_its_first_batch():
    on_disk = LogOnDisk(LogConfig(segment_ms=1000))
    for stamp in (0, 1000, 1001, 1500):
        on_disk.append(build_batch("x", timestamp=NOW_MS + stamp))
    assert bases(on_disk) == [0, 2]
    on_disk.restart("clean")
    on_disk.append(build_batch("x", timestamp=NOW_MS + 2002))
    assert bases(on_disk) == [0, 2, 4]


def test_a_segment_is_rolled_when_its_index_is_full():
    on_disk = LogOnDisk(LogConfig(index_interval_bytes=0, segment_index_bytes=16))
    fill(on_disk, 7)
    assert bases(on_disk) == [0, 3, 6]


def test_a_rolled_segment_is_flushed_and_a_snapshot_is_written_first():
    on_disk = LogOnDisk()
    on_disk.produce("x", producer=(7, 0, 0))
    effects = on_disk.effects()
    on_disk.log.roll(effects)
    kinds = [type(operation).__name__ for operation in effects.storage]
    assert kinds == ["Append", "Flush", "WriteFile", "Append", "Append", "Append"]
    assert isinstance(effects.storage[1], Flush)
    assert effects.storage[2].path == "t-0/00000000000000000001.snapshot"
    on_disk.carry_out(effects)
    empty = on_disk.effects()
    on_disk.log.roll(empty)
    assert empty.storage == []


def test_retention_by_size_keeps_that_much():
    on_disk = LogOnDisk(LogConfig(segment_bytes=2 * BATCH, retention_bytes=5 * BATCH))
    fill(on_disk, 11)
    assert retain(on_disk) == 3
    assert on_disk.log.size_bytes == 5 * BATCH
    assert on_disk.log.log_start_offset == 6
    assert bases(on_disk) == [6, 8, 10]
    assert retain(on_disk) == 0


def test_retention_by_time_takes_the_active_segment_too():
    on_disk = LogOnDisk(LogConfig(segment_bytes=2 * BATCH, retention_ms=1000))
    fill(on_disk, 5)
    on_disk.now_ms += 1000
    assert retain(on_disk) == 0
    on_disk.now_ms += 1
    assert retain(on_disk) == 3
    assert (on_disk.log.log_start_offset, on_disk.log.log_end_offset) == (5, 5)
    assert bases(on_disk) == [5]
    assert on_disk.produce("next").base_offset == 5


def test_retention_stops_at_the_first_young_segment_and_at_the_high_watermark():
    on_disk = LogOnDisk(LogConfig(segment_bytes=BATCH, retention_ms=1000))
    fill(on_disk, 1, age_ms=2000)
    fill(on_disk, 1)
    fill(on_disk, 1, age_ms=2000)
    assert retain(on_disk) == 1
    held = LogOnDisk(LogConfig(segment_bytes=BATCH, retention_ms=1000))
    held.log.single_replica = False
    fill(held, 3, age_ms=2000)
    held.log.advance_high_watermark(2, held.effects())
    assert retain(held) == 2


def test_a_segment_without_timestamps_goes_with_the_next_that_has_some():
    """Kafka uses the age of the segment's file, which this broker does not know."""
    on_disk = LogOnDisk(LogConfig(segment_bytes=BATCH, retention_ms=1000))
    for stamp in (-1, -1, NOW_MS - 2000, -1, NOW_MS, -1):
        on_disk.append(build_batch("value", timestamp=stamp))
    assert retain(on_disk) == 3
    on_disk.now_ms += 1001
    assert retain(on_disk) == 2
    on_disk.now_ms += 1001
    assert retain(on_disk) == 0


def test_no_retention_without_limits_or_without_the_policy():
    for config in (
        LogConfig(segment_bytes=BATCH, retention_ms=-1),
        LogConfig(segment_bytes=BATCH, retention_ms=1, cleanup_policy="compact"),
    ):
        on_disk = LogOnDisk(config)
        fill(on_disk, 3, age_ms=86_400_000)
        assert retain(on_disk) == 0


def test_reads_below_the_new_start_are_out_of_range_and_restarts_agree():
    on_disk = LogOnDisk(LogConfig(segment_bytes=2 * BATCH, retention_bytes=BATCH))
    on_disk.log.become_leader(2)
    for sequence in range(7):
        on_disk.append(build_batch("value", producer=(7, 0, sequence)))
    retain(on_disk)
    start = on_disk.log.log_start_offset
    assert start == 6
    for kind in (None, "kill", "clean", "power"):
        log = on_disk.restart(kind) if kind else on_disk.log
        assert log.log_start_offset == start
        assert on_disk.read(start - 1, committed=True).error == ErrorCode.OFFSET_OUT_OF_RANGE
        assert [offset for offset, _ in on_disk.consume(start, committed=True)] == [6]
        assert log.producers()[0].last_sequence == 6
        assert log.end_offset_for_epoch(2) == (2, 7)


def test_an_open_transaction_whose_data_is_gone_is_still_open_and_can_end():
    on_disk = LogOnDisk(LogConfig(segment_bytes=2 * BATCH, retention_bytes=BATCH))
    on_disk.produce("value", producer=(7, 0, 0), transactional=True)
    fill(on_disk, 6)
    retain(on_disk)
    for kind in (None, "kill", "clean"):
        log = on_disk.restart(kind) if kind else on_disk.log
        assert log.first_unstable_offset == log.last_stable_offset == log.log_start_offset > 0
    assert on_disk.mark(7, 0, "abort").error == ErrorCode.NONE
    assert on_disk.log.last_stable_offset == on_disk.log.log_end_offset
    assert on_disk.load(clean=False).last_stable_offset == on_disk.log.log_end_offset
