"""Fetch limits, ranges, lookups by timestamp, and damaged files."""

from __future__ import annotations

import gzip
import struct

import pytest
from support.core.log_build import NOW_MS, LogOnDisk, build_batch

from broker_sim.core.effects import Append, Truncate
from broker_sim.core.log import AppendOrigin, Folder, LogConfig, PartitionLog, timestamps
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire import records
from txnlog_kafka.wire.error_codes import ErrorCode

SPARSE = LogConfig(segment_bytes=2000, index_interval_bytes=300)


def filled(count: int = 40, config: LogConfig = SPARSE) -> LogOnDisk:
    """Batches of two records, one second apart; several segments."""
    on_disk = LogOnDisk(config)
    for i in range(count):
        on_disk.append(build_batch(f"{2 * i}", f"{2 * i + 1}", timestamp=NOW_MS - 60_000 + i * 100))
    return on_disk


@pytest.mark.parametrize("restart", [None, "clean", "kill"])
@pytest.mark.parametrize("max_bytes", [1, 100, 333, 5000])
def test_every_start_offset_reads_on_with_every_limit(restart, max_bytes):
    on_disk = filled()
    if restart:
        on_disk.restart(restart)
        on_disk.append(build_batch("80", "81"))
    end = on_disk.log.log_end_offset
    for start in range(end + 1):
        got = on_disk.consume(start, committed=False, max_bytes=max_bytes)
        assert got == [(i, str(i)) for i in range(start, end)]


@pytest.mark.parametrize("restart", [None, "clean"])
def test_a_read_keeps_within_its_bytes_unless_it_must_make_progress(restart):
    on_disk = filled()
    if restart:
        on_disk.restart(restart)
    size = len(build_batch("0", "1"))
    for start in (0, 1, 38, 77):
        for max_bytes in (0, 1, size - 1, size, size + 1, 3 * size + 5):
            bounded = on_disk.read(start, committed=False, max_bytes=max_bytes, at_least_one=False)
            assert bounded.size_bytes <= max_bytes
            assert list(records.iter_batches(on_disk.data_of(bounded))) or max_bytes < size + 2
            at_least = on_disk.read(start, committed=False, max_bytes=max_bytes)
            assert at_least.size_bytes == bounded.size_bytes or bounded.size_bytes == 0
            assert at_least.size_bytes > 0


def test_one_read_goes_over_segments():
    on_disk = filled()
    read = on_disk.read(0, committed=False)
    assert len(read.slices) == len([n for n in on_disk.disk.list("t-0") if n.endswith(".log")])
    assert read.size_bytes == on_disk.log.size_bytes


def test_offsets_outside_the_log_are_out_of_range():
    on_disk = filled(3)
    for start, error in (
        (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (6, ErrorCode.NONE),
        (7, ErrorCode.OFFSET_OUT_OF_RANGE),
    ):
        read = on_disk.read(start, committed=True)
        assert (read.error, read.slices) == (error, ())
        assert (read.log_start_offset, read.high_watermark) == (0, 6)


def test_what_was_just_appended_needs_no_file():
    config = LogConfig(segment_bytes=300)
    effects = LogOnDisk().effects()
    log = PartitionLog.create(Folder("t", 0, b"x" * 16, config, SimDisk()), effects)
    for _ in range(10):
        log.append_as_leader(build_batch("a"), origin=AppendOrigin.CLIENT, effects=effects)
    read = log.read(3, max_bytes=1 << 20, read_committed=True, at_least_one_batch=True)
    assert (read.error, read.size_bytes) == (ErrorCode.NONE, 7 * len(build_batch("a")))
    assert log.offset_for_timestamp(NOW_MS) == (NOW_MS, 0)


# --------------------------------------------------------------------------- timestamps


@pytest.mark.parametrize("restart", [None, "clean", "kill"])
def test_the_first_record_that_is_not_older_is_found(restart):
    on_disk = filled()
    if restart:
        on_disk.restart(restart)
    log = on_disk.log
    stamps = [NOW_MS - 60_000 + i * 100 + j for i in range(40) for j in range(2)]
    for timestamp in (0, stamps[0], stamps[1], stamps[33], stamps[33] + 1, stamps[-1]):
        offset = next(i for i, stamp in enumerate(stamps) if stamp >= timestamp)
        assert log.offset_for_timestamp(timestamp) == (stamps[offset], offset)
    assert log.offset_for_timestamp(stamps[-1] + 1) is None
    assert log.max_timestamp_offset() == (stamps[-1], 79)


def test_timestamps_out_of_order_are_found_too():
    on_disk = LogOnDisk(LogConfig(segment_bytes=400, index_interval_bytes=100))
    for stamp in (500, 100, 900, 200, 300, 800, 50):
        on_disk.append(build_batch("x", timestamp=stamp))
    for restart in (None, "clean", "kill"):
        if restart:
            on_disk.restart(restart)
        found = [on_disk.log.offset_for_timestamp(t) for t in (0, 400, 501, 900, 901)]
        assert found == [(500, 0), (500, 0), (900, 2), (900, 2), None]
        assert on_disk.log.max_timestamp_offset() == (900, 2)


def test_lying_batches_cost_the_lookups_of_a_request_no_more_than_their_budget():
    """Their headers promise a timestamp that no record of theirs has."""
    budget = timestamps.ReadBudget(50, 10_000)
    plain = bytearray(build_batch(*"abcdefgh", timestamp=NOW_MS))
    struct.pack_into(">q", plain, records.MAX_TIMESTAMP_AT, NOW_MS + 500)
    records.refresh_crc(plain, 0, len(plain))
    on_disk = LogOnDisk()
    for _ in range(20):
        on_disk.append(bytes(plain))
    log = on_disk.log
    assert log.offset_for_timestamp(NOW_MS + 100, budget=budget) == (NOW_MS + 500, 48)
    # The next lookup with it reads no further than the first batch.
    assert log.offset_for_timestamp(NOW_MS + 100, budget=budget) == (NOW_MS + 500, 0)

    compressed = LogOnDisk()
    body = gzip.compress(bytes(plain[records.HEADER_BYTES :]) + bytes(3000))
    packed = bytearray(plain[: records.HEADER_BYTES]) + body
    struct.pack_into(">i", packed, 8, len(packed) - records.LENGTH_END)
    packed[records.ATTRIBUTES_AT + 1] |= 1
    records.refresh_crc(packed, 0, len(packed))
    for _ in range(20):
        compressed.append(bytes(packed))
    calls: list[int] = []

    def counting(_codec: int, data: bytes) -> bytes:
        calls.append(len(data))
        return gzip.decompress(data)

    budget = timestamps.ReadBudget(50, 10_000)
    for _ in range(3):
        assert compressed.log.offset_for_timestamp(NOW_MS + 100, counting, budget) is not None
    assert len(calls) <= 4


def test_an_empty_log_has_no_timestamps():
    log = LogOnDisk().log
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None


def test_a_compressed_batch_is_searched_where_it_can_be_decompressed():
    on_disk = LogOnDisk()
    plain = build_batch("a", "b", "c")
    batch = bytearray(plain[:61] + gzip.compress(plain[61:]))
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[22] |= 1
    records.refresh_crc(batch, 0, len(batch))
    on_disk.append(bytes(batch))
    log = on_disk.log
    assert log.offset_for_timestamp(NOW_MS + 1) == (NOW_MS + 2, 0)
    found = log.offset_for_timestamp(NOW_MS + 1, lambda codec, data: gzip.decompress(data))
    assert found == (NOW_MS + 1, 1)


# --------------------------------------------------------------------------- whole batches


def test_batches_come_whole_from_any_offset():
    on_disk = filled()
    for start in (0, 1, 40, 79, 80):
        headers = [header for header, _ in on_disk.log.batches(start)]
        assert [h.base_offset for h in headers] == list(range(start // 2 * 2, 80, 2))
    for header, data in on_disk.log.batches(0):
        assert records.parse_header(data) == header


# --------------------------------------------------------------------------- damage


def overwrite(on_disk: LogOnDisk, name: str, at: int, new: bytes) -> None:
    path = f"t-0/{name}"
    data = bytearray(on_disk.disk.read(path, 0, 1 << 30))
    data[at : at + len(new)] = new
    on_disk.disk.apply(Truncate(path, 0))
    on_disk.disk.apply(Append(path, 0, bytes(data)))


FIRST = "00000000000000000000"


def test_a_damaged_segment_in_the_middle_is_an_error_and_not_a_gap():
    on_disk = filled()
    overwrite(on_disk, f"{FIRST}.log", 600, b"\xff" * 600)
    on_disk.disk.apply(Truncate(f"t-0/{FIRST}.index", 0))
    log = on_disk.load(clean=False)
    assert log.log_end_offset == 80
    first = on_disk.read(0, committed=False)
    last = list(records.iter_batches(on_disk.data_of(first)))[-1][0]
    assert first.error == ErrorCode.NONE
    assert on_disk.read(last.next_offset, committed=False).error == ErrorCode.CORRUPT_MESSAGE
    assert on_disk.consume(60, committed=False) == [(i, str(i)) for i in range(60, 80)]
    with pytest.raises(records.CorruptBatch):
        list(log.batches(0))


@pytest.mark.parametrize("at", range(24))
def test_a_wrong_index_entry_does_not_lead_astray(at):
    on_disk = filled()
    size = on_disk.disk.size_bytes(f"t-0/{FIRST}.index") or 0
    assert size >= 24
    byte = on_disk.disk.read(f"t-0/{FIRST}.index", at, 1)[0]
    overwrite(on_disk, f"{FIRST}.index", at, bytes([byte ^ 4]))
    on_disk.load(clean=False)
    for start in range(0, 40, 3):
        got = on_disk.consume(start, committed=False, max_bytes=200)
        assert got == [(i, str(i)) for i in range(start, 80)]
