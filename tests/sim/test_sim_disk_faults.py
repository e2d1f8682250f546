"""Full disks, failed flushes and flipped bits: what is left, and what the process does."""

import random

import pytest

from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import Append, Delete, Flush, Truncate, WriteFile
from simulation.checkers.batches import decode_batches
from simulation.faults.bit_flips import flip_beside_logs, flip_in_closed_segment
from simulation.hosts.clock import MachineClock
from simulation.hosts.disk import FlushFailed, NoSpace, SimDisk
from simulation.hosts.process_files import FAILED_FLUSH, LOW_BYTES, NO_SPACE, RETRY_US
from simulation.hosts.scheduler import Scheduler
from simulation.hosts.sim_broker import Observer, SimulatedBroker
from simulation.trace import Trace
from txnlog_kafka.wire.records import CorruptBatch, Record, encode_batch, stamp_offsets


def test_a_write_that_does_not_fit_leaves_its_first_part_and_a_replacement_the_old_file():
    disk = SimDisk()
    disk.apply(WriteFile("meta", b"old"))
    disk.free_bytes = 5
    with pytest.raises(NoSpace):
        disk.apply(Append("a/1.log", 0, b"abcdefgh"))
    assert (disk.read("a/1.log", 0, 9), disk.free_bytes) == (b"abcde", 0)
    with pytest.raises(NoSpace):
        disk.apply(WriteFile("meta", b"n"))
    assert disk.read("meta", 0, 9) == b"old"
    disk.apply(Truncate("a/1.log", 2))
    disk.apply(Delete("meta"))
    assert disk.free_bytes == 6
    assert disk.volume().usable_bytes == 6


def test_after_a_failed_flush_any_part_of_what_was_not_flushed_is_there_or_zeros():
    seen = set()
    for seed in range(80):
        fails = iter((False, True))
        disk = SimDisk(lambda fails=fails: next(fails))
        disk.apply(Append("a/1.log", 0, b"abc"))
        disk.apply(Flush(("a/1.log",)))
        disk.apply(Append("a/1.log", 3, b"def"))
        disk.apply(Append("a/2.log", 0, b"xyz"))
        with pytest.raises(FlushFailed):
            disk.apply(Flush(("a/1.log",)))
        disk.read_medium(random.Random(seed))
        assert disk.read("a/2.log", 0, 9) == b"xyz"
        seen.add(disk.read("a/1.log", 0, 9))
    assert seen == {b"abc", b"abcd", b"abcde", b"abcdef", b"abc\0\0\0"}


class Reasons(Observer):
    """Why the process ended, each time."""

    flushes_fail = False

    def flush_fails(self, _process):
        return self.flushes_fail

    def on_died(self, process, reason):
        process.reasons.append(reason)


def running():
    scheduler = Scheduler()
    lines = []
    broker = SimulatedBroker(
        name="b",
        config=BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:9092"}),
        scheduler=scheduler,
        trace=Trace(lambda: scheduler.now_us, lines.append),
        seed="1",
        observer=Reasons(),
    )
    broker.reasons = []
    return scheduler, broker, lines


def run(scheduler, for_us):
    scheduler.run_until(lambda: False, limit_us=scheduler.now_us + for_us)


def test_a_start_that_finds_no_room_twice_ends_the_process():
    _, broker, _ = running()
    broker.disk.free_bytes = 0
    broker.disk.reserve(0)
    broker._space.release()
    broker.disk.free_bytes = 0
    broker.start()
    assert (broker.reasons, broker.is_running) == ([NO_SPACE], False)


def test_a_start_takes_the_reserve_when_there_is_no_other_room():
    _, broker, lines = running()
    broker.disk.free_bytes = 0
    broker.start()
    assert (broker.reasons, broker.is_up) == ([], True)
    assert any(line.endswith("no-space") for line in lines)


def test_a_process_without_space_for_a_core_goes_on_when_there_is_some():
    scheduler, broker, _ = running()
    broker.start()
    broker.disk.free_bytes = 0
    broker._space.release()
    broker.disk.free_bytes = 0
    broker._start_anew()
    broker.disk.free_bytes = 0
    run(scheduler, 2 * RETRY_US)
    broker.disk.free_bytes = None
    run(scheduler, 2 * RETRY_US)
    assert (broker.reasons, broker.is_up, broker.incarnation) == ([], True, 1)


def test_a_failed_flush_ends_the_process_and_the_boot_of_its_machine_is_not_known():
    _, broker, _ = running()
    broker.start()
    assert broker.disk.size_bytes("machine.boot")
    broker._observer.flushes_fail = True
    broker.stop()
    assert broker.reasons == [FAILED_FLUSH]
    assert broker.disk.size_bytes("machine.boot") is None


def test_room_is_low_before_it_is_gone():
    _, broker, _ = running()
    broker.disk.free_bytes = LOW_BYTES
    assert not broker._space.is_low()
    broker.disk.free_bytes = LOW_BYTES - 1
    assert broker._space.is_low()


def test_a_clock_that_drifts_never_jumps_and_says_how_long_it_takes():
    scheduler = Scheduler()
    clock = MachineClock(scheduler)
    run(scheduler, 10_000_000)
    clock.drift(monotonic=1_100_000, wall=900_000)
    before = clock.wall_ms
    assert clock.monotonic_ms == 10_000
    assert clock.us_until(10_110) == 100_000
    run(scheduler, 100_000)
    assert (clock.monotonic_ms, clock.wall_ms - before) == (10_110, 90)
    assert clock.us_until(10_110) == 0
    clock.drift()
    run(scheduler, 1_000_000)
    assert clock.monotonic_ms == 11_110


def disk_with_segments():
    disk = SimDisk()
    for base_offset, name in enumerate(("00.log", "01.log", "02.log")):
        data = bytearray(encode_batch([Record(b"k", b"v")]))
        stamp_offsets(data, 0, base_offset=base_offset, leader_epoch=0)
        disk.apply(Append(f"t-0/{name}", 0, bytes(data)))
    disk.apply(WriteFile("t-0/01.index", b"index"))
    disk.apply(WriteFile("t-0/segment-state-checkpoint", b"states"))
    disk.apply(WriteFile("meta.properties", b"not this one"))
    return disk


def changed(before, after):
    """The bits that differ, by file; a file that is gone has all of them."""
    found = {}
    for folder in ("", "t-0/"):
        for name in before.list(folder.rstrip("/")):
            old, new = (disk.read(folder + name, 0, 999) for disk in (before, after))
            bits = sum((a ^ b).bit_count() for a, b in zip(old, new, strict=False))
            if bits or len(old) != len(new):
                found[folder + name] = bits if len(old) == len(new) else None
    return found


def whole_batches(data):
    try:
        return list(decode_batches(data))
    except CorruptBatch:
        return []


def test_a_bit_flips_in_a_closed_segment_and_nothing_says_that_it_is_whole():
    seen = set()
    for seed in range(30):
        before, disk = disk_with_segments(), disk_with_segments()
        path = flip_in_closed_segment(disk, random.Random(seed))
        assert changed(before, disk) == {path: 1, "t-0/segment-state-checkpoint": None}
        assert whole_batches(disk.read(path, 0, 999)) == []
        seen.add(path)
    assert seen == {"t-0/00.log", "t-0/01.log"}
    assert flip_in_closed_segment(SimDisk(), random.Random(1)) is None


def test_a_bit_flips_beside_the_logs():
    seen = set()
    for seed in range(30):
        before, disk = disk_with_segments(), disk_with_segments()
        path = flip_beside_logs(disk, random.Random(seed))
        assert changed(before, disk) == {path: 1}
        seen.add(path)
    assert seen == {"t-0/01.index", "t-0/segment-state-checkpoint"}
    assert flip_beside_logs(SimDisk(), random.Random(1)) is None
