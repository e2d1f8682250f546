"""The rules of compaction, one by one."""

from __future__ import annotations

import dataclasses

import pytest
from support.compaction import COMPACTED, CompactedLog, keyed_batch
from support.log_build import NOW_MS

from broker_sim.core.effects import Append, Delete, Effects, Flush, Rename
from broker_sim.core.log import AppendOrigin
from broker_sim.core.log.batch_filter import empty_batch
from broker_sim.core.log.cleaning import CannotClean, CleanerLimits
from broker_sim.core.log.compression import Codecs
from broker_sim.server.codecs import CODECS
from txnlog_spark.codec import compression
from txnlog_spark.wire import records
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.records import Compression, CorruptBatch, parse_header


@pytest.fixture
def log() -> CompactedLog:
    return CompactedLog()


def compact(log: CompactedLog) -> None:
    """Close the active segment and clean, with something after it that stays dirty."""
    log.roll()
    assert log.clean()
    log.check()


def headers(log: CompactedLog) -> list[records.BatchHeader]:
    return [header for header, _ in log.batches()]


def bases(log: CompactedLog) -> list[int]:
    return [int(n[:20]) for n in log.disk.list("t-0") if n.endswith(".log")]


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
    batch = bytearray(keyed_batch([("a", "1" * 50), ("b", "2" * 50)], timestamp=NOW_MS))
    packed = compression.compress(codec, bytes(batch[61:]))
    header = parse_header(batch)
    batch = bytearray(
        records.encode_header(header._replace(attributes=int(codec), length=49 + len(packed)))
        + packed
    )
    records.refresh_crc(batch, 0, len(batch))
    result = log.append(bytes(batch), origin=AppendOrigin.CLIENT)
    assert result.error is ErrorCode.NONE
    log.put(("a", "new"))
    log.roll()
    assert log.clean()
    first, data = log.batches()[0]
    assert (first.compression, first.record_count, first.last_offset_delta) == (codec, 1, 1)
    plain = compression.decompress(codec, data[61:])
    assert b"2" * 50 in plain
    assert b"1" * 50 not in plain


def test_without_codecs_a_compressed_batch_cannot_be_cleaned(log):
    batch = bytearray(keyed_batch([("a", "1")], timestamp=NOW_MS))
    header = parse_header(batch)
    batch[:61] = records.encode_header(header._replace(attributes=int(Compression.ZSTD)))
    records.refresh_crc(batch, 0, len(batch))
    log.append(bytes(batch), origin=AppendOrigin.CLIENT)
    log.roll()
    with pytest.raises(CorruptBatch, match="without a codec"):
        log.clean()


def test_a_record_without_a_key_is_dropped(log):
    log.config = log.log.config = dataclasses.replace(COMPACTED, cleanup_policy="delete")
    log.append(
        records.encode_batch([records.Record(None, b"x", NOW_MS)]), origin=AppendOrigin.CLIENT
    )
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
    header = parse_header(plain)
    body = compression.compress(codec, plain[61:])
    batch = bytearray(
        records.encode_header(header._replace(attributes=int(codec), length=49 + len(body))) + body
    )
    records.refresh_crc(batch, 0, len(batch))
    result = log.append(bytes(batch), origin=AppendOrigin.CLIENT)
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
    again = log.append(retry, origin=AppendOrigin.CLIENT)
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
    result = log.append(zombie, origin=AppendOrigin.CLIENT)
    assert result.error is ErrorCode.INVALID_PRODUCER_EPOCH


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


# --------------------------------------------------------------------------- what may be cleaned


def plan_of(log: CompactedLog, **config):
    log.log.config = dataclasses.replace(COMPACTED, **config)
    return log.log.find_cleanable(log.cleaned_to, log.now_ms)


def test_the_active_segment_is_never_cleaned(log):
    log.put(("a", "1"))
    assert plan_of(log).end_offset == 0
    assert not log.clean()


def test_a_log_is_due_when_its_dirty_part_is_over_the_ratio(log):
    log.put(("a", "1"))
    compact(log)
    log.put(("b", "1"))
    log.roll()
    plan = plan_of(log)
    assert (plan.first_dirty_offset, plan.end_offset) == (1, 2)
    assert plan.dirty_ratio == 0.5
    assert not plan.is_due(dataclasses.replace(COMPACTED, min_cleanable_dirty_ratio=0.5))
    assert plan.is_due(dataclasses.replace(COMPACTED, min_cleanable_dirty_ratio=0.49))


def test_records_younger_than_the_minimum_lag_stay_dirty(log):
    log.put(("a", "1"))
    log.roll()
    log.now_ms += 500
    log.put(("a", "2"))
    log.roll()
    assert plan_of(log, min_compaction_lag_ms=500).end_offset == 1
    assert plan_of(log, min_compaction_lag_ms=501).end_offset == 0
    assert plan_of(log, min_compaction_lag_ms=0).end_offset == 2


def test_a_log_over_the_maximum_lag_is_due_whatever_its_ratio(log):
    log.put(("a", "1"))
    log.roll()
    log.now_ms += 501
    config = {"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 500}
    assert plan_of(log, **config).is_due(log.log.config)
    log.now_ms -= 1
    assert not plan_of(log, **config).is_due(log.log.config)


def test_the_maximum_lag_rolls_the_active_segment_too(log):
    log.log.config = dataclasses.replace(COMPACTED, max_compaction_lag_ms=100)
    log.put(("a", "1"))
    log.now_ms += 101
    log.put(("a", "2"))
    assert bases(log) == [0, 1]


def test_a_checkpoint_outside_the_log_counts_for_nothing(log):
    log.put(("a", "1"))
    log.put(("a", "2"))
    log.roll()
    log.cleaned_to = 99
    assert plan_of(log).first_dirty_offset == 0
    assert log.clean()
    assert log.cleaned_to == 2


# --------------------------------------------------------------------------- segments and steps


def test_small_segments_become_one_as_large_as_a_segment_may_be(log):
    for index in range(12):
        log.put((f"k{index}", "v" * 40))
        log.roll()
    size_bytes = len(keyed_batch([("k0", "v" * 40)], timestamp=NOW_MS))
    per_segment = COMPACTED.segment_bytes // size_bytes
    log.clean()
    assert bases(log) == [*range(0, 12, per_segment), 12]
    log.check()
    found = headers(log)
    assert [h.base_offset for h in found] == list(range(12))


def test_a_segment_of_which_nothing_is_left_ends_where_the_next_begins(log):
    for _ in range(4):
        log.put(("a", "v" * 400))
        log.roll()
    log.clean()
    log.check()
    assert [(h.base_offset, h.record_count) for h in headers(log)] == [
        (0, 0), (1, 0), (2, 0), (3, 1)
    ]  # fmt: skip
    log.put(("a", "new"))
    compact(log)
    assert headers(log)[0].last_offset == bases(log)[1] - 1


def test_a_full_map_cleans_a_part_and_the_next_round_goes_on(log):
    for index in range(20):
        log.put((f"k{index % 10}", str(index)))
    log.roll()
    rounds = 0
    while log.clean(CleanerLimits(1 << 20, 4)):
        rounds += 1
        log.check()
    assert rounds > 2
    assert len(log.consume_pairs()) == 10


def test_a_batch_with_more_keys_than_the_map_holds_cannot_be_cleaned(log):
    log.put(*((f"k{index}", "v") for index in range(5)))
    log.roll()
    with pytest.raises(CannotClean, match="more than 4 keys"):
        log.clean(CleanerLimits(1 << 20, 4))


def test_a_step_reads_no_more_than_it_may_and_others_append_in_between(log):
    for index in range(30):
        log.put((f"k{index % 3}", "v" * 100))
    log.roll()
    batch_bytes = len(keyed_batch([("k0", "v" * 100)], timestamp=NOW_MS))
    cleaning = log.begin_cleaning(CleanerLimits(2 * batch_bytes, 100))
    steps, is_done = 0, False
    while not is_done:
        effects = log.effects()
        is_done = cleaning.step(effects)
        written = sum(len(op.data) for op in effects.storage if isinstance(op, Append))
        assert written <= 3 * batch_bytes + 200
        log.carry_out(effects)
        log.put(("during", str(steps)))
        log.check()
        steps += 1
    assert steps >= 30
    log.cleaned_to = cleaning.end_offset
    log.check()


def test_the_swap_flushes_first_and_renames_the_log_file_before_its_indexes(log):
    log.put(("a", "1"))
    log.put(("b", "2"))
    log.roll()
    cleaning = log.begin_cleaning()
    effects = log.effects()
    while not cleaning.step(effects):
        pass
    stem = "t-0/" + "0" * 20
    names = (".log", ".index", ".timeindex")
    ops = effects.storage
    flush = ops.index(Flush(tuple(f"{stem}{name}.cleaned" for name in names)))
    swaps = [Rename(f"{stem}{n}.cleaned", f"{stem}{n}.swap") for n in names]
    places = [Rename(f"{stem}{n}.swap", f"{stem}{n}") for n in names]
    order = [flush, *map(ops.index, swaps), ops.index(Delete(f"{stem}.log")),
             *map(ops.index, places)]  # fmt: skip
    assert order == sorted(order)


def test_a_round_given_up_leaves_no_file_behind(log):
    for index in range(10):
        log.put((f"k{index}", "v" * 30))
    log.roll()
    cleaning = log.begin_cleaning(CleanerLimits(1, 100))
    while not log.disk_names():
        effects = log.effects()
        assert not cleaning.step(effects)
        log.carry_out(effects)
    assert cleaning.is_valid
    log.log.config = dataclasses.replace(COMPACTED, cleanup_policy="delete")
    assert not cleaning.is_valid
    effects = log.effects()
    cleaning.abandon(effects)
    log.carry_out(effects)
    assert log.disk_names() == []
    log.check()


def test_a_round_ends_when_its_segments_are_removed(log):
    log.log.config = dataclasses.replace(COMPACTED, cleanup_policy="compact,delete")
    for index in range(10):
        log.put((f"k{index}", "v" * 100))
    log.roll()
    cleaning = log.begin_cleaning(CleanerLimits(1, 100))
    effects = log.effects()
    cleaning.step(effects)
    assert log.log.increase_log_start(8, effects)
    assert log.log.remove_below_start(effects)
    assert not cleaning.is_valid


def test_damage_in_the_log_stops_the_cleaner(log):
    log.put(("a", "1"))
    log.put(("a", "2"))
    log.roll()
    file = log.disk._files["t-0/" + "0" * 20 + ".log"]
    file.content[-1] ^= 1
    with pytest.raises(CorruptBatch):
        log.clean()


def test_codecs_that_are_not_there_are_named():
    header = parse_header(keyed_batch([("a", "1")], timestamp=0))._replace(attributes=4)
    with pytest.raises(CorruptBatch, match="without a codec"):
        Codecs().plain_records(header, b"")
    broken = Codecs(decompress=lambda codec, data: bytes([int("x")]))
    with pytest.raises(CorruptBatch, match="invalid literal"):
        broken.plain_records(header, bytes(200))


def test_effects_of_one_step_go_into_its_own_collector(log):
    log.put(("a", "1"))
    log.roll()
    cleaning = log.begin_cleaning()
    first, second = log.effects(), Effects(log.now_ms, 0)
    assert not cleaning.step(first)
    assert cleaning.step(second)
    assert first.storage
    assert not second.storage
