"""Appends that the leader accepts, refuses or stamps, before any producer state matters."""

from __future__ import annotations

import pytest
from support.core.log_build import NOW_MS, LogOnDisk, build_batch

from broker_sim.core.log import AppendOrigin, LogConfig
from txnlog_kafka.wire import records
from txnlog_kafka.wire.error_codes import ErrorCode


def patched(batch: bytes, at: int, new: bytes) -> bytes:
    """The batch with other bytes and a right CRC."""
    out = bytearray(batch)
    out[at : at + len(new)] = new
    records.refresh_crc(out, 0, len(out))
    return bytes(out)


@pytest.mark.invariant(2)
def test_offsets_are_dense_over_appends_and_batches_of_one_append():
    on_disk = LogOnDisk()
    first = on_disk.produce("a", "b")
    second = on_disk.append(build_batch("c") + build_batch("d", "e"))
    assert (first.base_offset, first.last_offset) == (0, 1)
    assert (second.base_offset, second.last_offset) == (2, 4)
    assert on_disk.log.log_end_offset == 5
    assert on_disk.consume(0, committed=False) == list(enumerate("abcde"))


@pytest.mark.invariant(12)
def test_the_bytes_are_the_producers_but_for_base_offset_and_leader_epoch():
    on_disk = LogOnDisk()
    on_disk.log.become_leader(6)
    on_disk.produce("a")
    sent = build_batch("b", "c", producer=(4, 2, 0))
    on_disk.append(sent)
    stored = on_disk.data_of(on_disk.read(1, committed=False))
    assert stored[12:16] == (6).to_bytes(4, "big")
    assert stored[:8] == (1).to_bytes(8, "big")
    assert stored[8:12] + stored[16:] == sent[8:12] + sent[16:]


def test_log_append_time_is_the_brokers_and_the_crc_is_right():
    on_disk = LogOnDisk(LogConfig(message_timestamp_type="LogAppendTime"))
    result = on_disk.append(build_batch("a", "b", timestamp=5))
    assert result.log_append_time_ms == NOW_MS
    data = on_disk.data_of(on_disk.read(0, committed=False))
    header = records.parse_header(data)
    records.check_crc(data, 0, header)
    assert header.is_log_append_time
    assert [r.timestamp for r in records.decode_records(data, 0, header)] == [NOW_MS, NOW_MS]


def test_create_time_answers_no_append_time():
    assert LogOnDisk().produce("a").log_append_time_ms == -1


GOOD = build_batch("abc", "def", producer=(1, 0, 0))
REFUSED = {
    "no batch": (b"", ErrorCode.INVALID_RECORD),
    "cut in the header": (GOOD[:40], ErrorCode.CORRUPT_MESSAGE),
    "cut in the records": (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
    "bytes after the batch": (GOOD + b"\0" * 10, ErrorCode.CORRUPT_MESSAGE),
    "wrong crc": (GOOD[:-1] + b"\x55", ErrorCode.CORRUPT_MESSAGE),
    "magic 1": (GOOD[:16] + b"\1" + GOOD[17:], ErrorCode.INVALID_RECORD),
    "negative length": (GOOD[:8] + b"\xff" * 4 + GOOD[12:], ErrorCode.CORRUPT_MESSAGE),
    "base offset not 0": (b"\0" * 7 + b"\1" + GOOD[8:], ErrorCode.INVALID_RECORD),
    "control batch": (patched(GOOD, 21, b"\0\x20"), ErrorCode.INVALID_RECORD),
    "count 0": (patched(GOOD, 57, b"\0\0\0\0"), ErrorCode.INVALID_RECORD),
    "count is not the delta": (patched(GOOD, 57, b"\0\0\0\5"), ErrorCode.INVALID_RECORD),
    "negative delta": (patched(GOOD, 23, b"\xff" * 4), ErrorCode.CORRUPT_MESSAGE),
    "sequence -1 with an id": (patched(GOOD, 53, b"\xff" * 4), ErrorCode.INVALID_RECORD),
    "epoch -1 with an id": (patched(GOOD, 51, b"\xff" * 2), ErrorCode.INVALID_RECORD),
    "transactional without id": (
        patched(build_batch("a"), 21, b"\0\x10"),
        ErrorCode.INVALID_RECORD,
    ),
    "compression 7": (patched(GOOD, 21, b"\0\7"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "append time from a producer": (patched(GOOD, 21, b"\0\x08"), ErrorCode.INVALID_TIMESTAMP),
    "timestamp of next year": (
        build_batch("a", timestamp=NOW_MS + 365 * 86_400_000),
        ErrorCode.INVALID_TIMESTAMP,
    ),
    "second batch is bad": (GOOD + GOOD[:-1] + b"\x55", ErrorCode.CORRUPT_MESSAGE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_append_names_the_fault_and_changes_nothing(name):
    on_disk = LogOnDisk()
    on_disk.produce("kept")
    data, error = REFUSED[name]
    effects = on_disk.effects()
    result = on_disk.log.append_as_leader(data, origin=AppendOrigin.CLIENT, effects=effects)
    assert result.error == error, result
    assert result.message
    assert (result.base_offset, effects.storage) == (-1, [])
    assert on_disk.log.log_end_offset == 1
    assert on_disk.log.producers() == ()


def test_limits_of_batch_and_segment_are_inclusive():
    size = len(GOOD)
    exact = LogOnDisk(LogConfig(max_message_bytes=size, segment_bytes=size))
    assert exact.append(GOOD).error == ErrorCode.NONE
    small_batch = LogOnDisk(LogConfig(max_message_bytes=size - 1))
    assert small_batch.append(GOOD).error == ErrorCode.MESSAGE_TOO_LARGE
    small_segment = LogOnDisk(LogConfig(segment_bytes=size - 1))
    assert small_segment.append(GOOD).error == ErrorCode.RECORD_LIST_TOO_LARGE


def test_an_old_timestamp_is_refused_only_where_configured():
    old = build_batch("a", timestamp=NOW_MS - 10_000)
    assert LogOnDisk().append(old).error == ErrorCode.NONE
    strict = LogOnDisk(LogConfig(message_timestamp_before_max_ms=9_000))
    assert strict.append(old).error == ErrorCode.INVALID_TIMESTAMP


def test_a_lie_about_the_records_inside_hurts_no_other_batch():
    on_disk = LogOnDisk()
    lying = patched(patched(build_batch("x"), 23, b"\0\0\0\4"), 57, b"\0\0\0\5")
    assert on_disk.append(lying).error == ErrorCode.NONE
    after = on_disk.produce("after")
    assert after.base_offset == on_disk.log.log_end_offset - 1
    assert on_disk.consume(after.base_offset, committed=True) == [(after.base_offset, "after")]


def test_a_cluster_may_hold_the_high_watermark_back():
    on_disk = LogOnDisk()
    on_disk.log.single_replica = False
    on_disk.produce("a")
    on_disk.produce("b")
    assert (on_disk.log.high_watermark, on_disk.consume(0, committed=False)) == (0, [])
    on_disk.log.advance_high_watermark(1, on_disk.effects())
    assert on_disk.consume(0, committed=True) == [(0, "a")]
    on_disk.log.advance_high_watermark(0, on_disk.effects())
    on_disk.log.advance_high_watermark(99, on_disk.effects())
    assert on_disk.log.high_watermark == 2
