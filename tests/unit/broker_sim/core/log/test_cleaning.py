"""The rules of compaction, one by one."""

from __future__ import annotations

import dataclasses

import pytest
from support.core.log_build import NOW_MS, packed
from support.models.compacted_log import COMPACTED, CompactedLog, compact, headers, keyed_batch

from broker_sim.core.effects import Delete
from broker_sim.core.log.batch_filter import empty_batch
from broker_sim.server.codecs import CODECS
from txnlog_kafka.wire import compression, records
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import Compression, CorruptBatch, parse_header
from txnlog_kafka.wire.varint import encode_signed


@pytest.fixture
def log() -> CompactedLog:
    return CompactedLog()


# --------------------------------------------------------------------------- keys


def test_of_each_key_the_latest_record_stays_at_its_offset(log):
    log.put(("a", "1"), ("b", "1"))
    log.put(("a", "2"))
    log.put(("c", "1"), ("a", "3"))
    compact(log)
    assert log.consume_pairs() == {1: ("b", "1"), 3: ("c", "1"), 4: ("a", "3")}
    assert log.log.log_end_offset == 5
    assert log.put(("a", "4")) == 5


def test_what_is_above_the_cleaned_range_does_not_count_yet(log):
    log.put(("a", "1"))
    log.roll()
    log.put(("a", "2"))
    assert log.clean()
    assert log.consume_pairs() == {0: ("a", "1"), 1: ("a", "2")}


def test_a_batch_keeps_its_place_its_producer_and_its_codec():
    log = CompactedLog()
    log.put(("a", "1"), ("b", "1"), ("a", "2"), producer_id=7, epoch=3)
    log.put(("c", "1"), producer_id=7, epoch=3)
    before = headers(log)
    compact(log)
    after = headers(log)
    assert [h.base_offset for h in after] == [0, 3]
    for old, new in zip(before, after, strict=True):
        changed = {
            name for name in records.BatchHeader._fields if getattr(old, name) != getattr(new, name)
        }
        assert changed <= {"length", "crc", "record_count", "max_timestamp"}
    assert (after[0].record_count, after[0].last_offset_delta) == (2, 2)


@pytest.mark.parametrize("codec", [c for c in Compression if c], ids=lambda codec: codec.name)
def test_a_compressed_batch_is_filtered_and_compressed_again(codec):
    log = CompactedLog()
    log.log._codecs = CODECS
    batch = packed(keyed_batch([("a", "1" * 50), ("b", "2" * 50)], timestamp=NOW_MS), codec)
    assert log.append(batch).error is ErrorCode.NONE
    log.put(("a", "new"))
    log.roll()
    assert log.clean()
    first, data = log.batches()[0]
    assert (first.compression, first.record_count, first.last_offset_delta) == (codec, 1, 1)
    plain = compression.decompress(codec, data[61:])
    assert b"2" * 50 in plain
    assert b"1" * 50 not in plain


def test_without_codecs_a_compressed_batch_cannot_be_cleaned(log):
    log.append(packed(keyed_batch([("a", "1")], timestamp=NOW_MS), Compression.ZSTD))
    log.roll()
    with pytest.raises(CorruptBatch, match="without a codec"):
        log.clean()


def test_a_record_without_a_key_is_dropped(log):
    log.config = log.log.config = dataclasses.replace(COMPACTED, cleanup_policy="delete")
    log.append(records.encode_batch([records.Record(None, b"x", NOW_MS)]))
    log.config = log.log.config = COMPACTED
    log.put(("a", "1"))
    log.roll()
    log.clean()
    assert log.consume_pairs() == {1: ("a", "1")}


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD], ids=lambda c: c.name)
def test_a_compacted_topic_takes_no_record_without_a_key(log, codec):
    log.log._codecs = CODECS
    plain = records.encode_batch(
        [records.Record(b"k", b"x", NOW_MS), records.Record(None, b"x", NOW_MS)]
    )
    result = log.append(packed(plain, codec))
    assert result.error is ErrorCode.INVALID_RECORD
    assert result.record_indexes == (1,)
    assert "Compacted topic cannot accept message without key" in result.message
    assert log.log.log_end_offset == 0


# --------------------------------------------------------------------------- tombstones


def test_a_tombstone_stays_for_delete_retention_after_it_was_first_cleaned(log):
    log.put(("a", "1"), ("b", "1"))
    log.put(("c", "1"), ("a", None))
    stamps = [r.timestamp for h, d in log.batches() for r in records.decode_records(d, 0, h)]
    compact(log)
    assert log.consume_pairs() == {1: ("b", "1"), 2: ("c", "1"), 3: ("a", None)}
    horizons = [h.delete_horizon_ms for h in headers(log)]
    assert horizons == [None, NOW_MS + 1000]
    kept = [r.timestamp for h, d in log.batches() for r in records.decode_records(d, 0, h)]
    assert kept == stamps[1:]
    for at, alive in ((999, True), (1000, False)):
        log.now_ms = NOW_MS + at
        log.put(("d", str(at)))
        compact(log)
        assert (("a", None) in log.consume_pairs().values()) is alive


def test_the_horizon_is_set_once(log):
    log.put(("a", None))
    compact(log)
    log.now_ms += 500
    log.put(("b", "1"))
    compact(log)
    assert headers(log)[0].delete_horizon_ms == NOW_MS + 1000


def test_tombstones_that_stay_for_ever_do_not_stop_the_cleaner(log):
    log.log.config = dataclasses.replace(COMPACTED, delete_retention_ms=2**63 - 1)
    log.put(("a", "1"))
    log.put(("a", None))
    compact(log)
    assert headers(log)[-1].delete_horizon_ms == 2**63 - 1
    log.now_ms += 10**12
    log.put(("b", "1"))
    compact(log)
    assert log.consume_pairs() == {1: ("a", None), 2: ("b", "1")}


# --------------------------------------------------------------------------- batches that lie


def lying_batch(deltas: list[tuple[int, int, bytes | None]], *, base_timestamp: int) -> bytes:
    """Records of the key "a" by (timestamp delta, offset delta, value), as no client sends them."""
    body = bytearray()
    for timestamp_delta, offset_delta, value in deltas:
        record = b"\x00" + encode_signed(timestamp_delta)
        record += encode_signed(offset_delta) + encode_signed(1) + b"a"
        length = -1 if value is None else len(value)
        record += encode_signed(length) + (value or b"") + b"\x00"
        body += encode_signed(len(record)) + record
    header = parse_header(keyed_batch([("a", "1")] * len(deltas), timestamp=NOW_MS))
    header = header._replace(length=49 + len(body), base_timestamp=base_timestamp)
    batch = bytearray(records.encode_header(header) + body)
    records.refresh_crc(batch, 0, len(batch))
    return bytes(batch)


@pytest.mark.parametrize(
    ("base_timestamp", "delta"),
    [(2**63 - 1, 5), (0, 2**63 - 1), (-(2**63), -1), (-1, -(2**63)), (2**63 - 1, 2**69 - 1)],
)
def test_timestamps_out_of_bounds_do_not_stop_the_cleaner_nor_a_lookup(log, base_timestamp, delta):
    deltas = [(delta, 0, b"x"), (delta, 1, None), (1, 2, b"y"), (delta, 3, None)]
    result = log.append(lying_batch(deltas, base_timestamp=base_timestamp))
    assert result.error is ErrorCode.NONE
    log.put(("b", "1"))
    found = log.log.offset_for_timestamp(NOW_MS)
    log.roll()
    assert log.clean()
    for timestamp, _ in filter(None, (found, log.log.max_timestamp_offset())):
        assert -(2**63) <= timestamp < 2**63
    assert log.consume_pairs() == {3: ("a", None), 4: ("b", "1")}


@pytest.mark.parametrize("offset_delta", [1, 50, 2**31 - 1, -1, -(2**40)])
def test_a_record_that_claims_another_offset_does_not_outlive_later_ones(log, offset_delta):
    lie = lying_batch([(0, offset_delta, b"pinned")], base_timestamp=NOW_MS)
    assert log.append(lie).error is ErrorCode.NONE
    log.put(("a", "2"))
    log.put(("a", "3"))
    log.roll()
    assert log.clean()
    values = [
        record.value
        for header, data in log.batches()
        for record in records.decode_records(data, 0, header)
    ]
    assert values == [b"3"]


# --------------------------------------------------------------------------- transactions


def test_aborted_records_go_at_once_and_do_not_hide_committed_ones(log):
    log.put(("a", "old"))
    log.put(("a", "aborted"), producer_id=7, transactional=True)
    log.put(("x", "1"), producer_id=7, transactional=True)
    log.end(7, "abort")
    compact(log)
    assert log.consume_pairs(committed=False) == {0: ("a", "old")}


def test_a_commit_marker_goes_after_its_data_and_the_horizon(log):
    log.put(("a", "1"), producer_id=7, transactional=True)
    marker = log.end(7, "commit")
    log.put(("z", "1"))
    compact(log)
    assert marker in [h.base_offset for h in headers(log)]
    # The data goes: the marker learns its horizon, for its producer is forgotten by then.
    log.now_ms += 2 * 24 * 3600 * 1000
    log.log.expire_producers(log.effects())
    log.put(("a", "2"), ("z", "2"))
    compact(log)
    assert [h.delete_horizon_ms for h in headers(log) if h.is_control] == [None]
    log.put(("z", "3"))
    compact(log)
    assert [h.delete_horizon_ms for h in headers(log) if h.is_control] == [log.now_ms + 1000]
    log.now_ms += 1000
    log.put(("z", "5"))
    compact(log)
    assert [h for h in headers(log) if h.is_control] == []


def test_an_abort_marker_and_its_index_entry_stay_while_a_batch_of_it_is_left(log):
    log.put(("a", "1"), producer_id=7, transactional=True)
    marker = log.end(7, "abort")
    compact(log)  # the batch stays, emptied: it has the producer's last sequence
    empty = headers(log)[0]
    assert (empty.record_count, empty.producer_id, empty.is_transactional) == (0, 7, True)
    read = log.read(0, committed=True)
    assert [(a.first_offset, a.last_offset) for a in read.aborted] == [(0, marker)]
    log.restart("kill")
    read = log.read(0, committed=True)
    assert [(a.first_offset, a.last_offset) for a in read.aborted] == [(0, marker)]


def test_nothing_above_the_last_stable_offset_is_cleaned(log):
    log.put(("a", "1"))
    log.roll()
    log.put(("a", "2"), producer_id=7, transactional=True)
    log.roll()
    log.put(("a", "3"))
    log.roll()
    log.clean()
    assert log.cleaned_to == 1
    assert len(log.consume_pairs(committed=False)) == 3
    log.end(7, "abort")
    compact(log)
    assert log.consume_pairs() == {2: ("a", "3")}


# --------------------------------------------------------------------------- producers


@pytest.mark.parametrize("kind", ["kill", "clean"])
def test_a_producer_goes_on_where_it_was_when_all_its_records_are_gone(log, kind):
    log.put(("a", "1"), ("a", "2"), producer_id=7, epoch=2)
    log.put(("a", "3"))
    compact(log)
    assert log.consume_pairs() == {2: ("a", "3")}
    log.restart(kind)
    retry = keyed_batch([("a", "1"), ("a", "2")], producer=(7, 2, 0), timestamp=NOW_MS)
    again = log.append(retry)
    assert (again.duplicate, again.base_offset, again.last_offset) == (True, 0, 1)
    log.put(("b", "1"), producer_id=7, epoch=2)


def test_the_epoch_of_a_marker_fences_after_the_marker_might_have_gone(log):
    log.put(("a", "1"), producer_id=7, transactional=True)
    log.end(7, "commit", epoch=1)
    log.put(("a", "2"))
    for _ in range(3):
        log.now_ms += 2000
        log.put(("b", str(log.now_ms)))
        compact(log)
    for name in log.disk.list("t-0"):
        if name.endswith((".snapshot", "-checkpoint")):
            log.disk.apply(Delete(f"t-0/{name}"))
    log.restart("kill")
    zombie = keyed_batch([("a", "z")], producer=(7, 0, 1), timestamp=NOW_MS)
    result = log.append(zombie)
    assert result.error is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("recovery_point", [0, 4, 6])
def test_a_producer_whose_batches_were_removed_is_known_after_a_kill(log, recovery_point):
    """The producer is in a snapshot alone; the file of recovery points is up to a minute older."""
    log.log.config = dataclasses.replace(COMPACTED, cleanup_policy="compact,delete")
    log.put(("p", "v" * 300), producer_id=9, epoch=4)
    log.put(("q", "v" * 300))
    for index in range(4):
        log.put((f"k{index}", "v" * 200))
    log.delete_below(2)
    log.roll()
    assert log.clean()
    before = log.log.producers()
    log.load(clean=False, recovery_point=recovery_point, log_start_offset=2, was_cleaned=True)
    assert log.log.producers() == before
    zombie = keyed_batch([("a", "z")], producer=(9, 3, 0), timestamp=NOW_MS)
    assert log.append(zombie).error is ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_empty_batch_is_a_header_that_keeps_what_counts():
    header = parse_header(
        keyed_batch([("a", "1"), ("b", "2")], producer=(7, 3, 40), transactional=True, timestamp=9)
    )
    batch = empty_batch(header._replace(base_offset=100, leader_epoch=5, attributes=0x5B))
    empty = parse_header(batch)
    records.check_crc(batch, 0, empty)
    assert len(batch) == 61
    assert empty == header._replace(
        base_offset=100,
        leader_epoch=5,
        length=49,
        crc=empty.crc,
        attributes=0x18,
        base_timestamp=-1,
        record_count=0,
    )
    assert (empty.last_offset, empty.last_sequence, empty.max_timestamp) == (101, 41, 10)
