"""Cleaning of a log: the range that is compacted, the new segments, and the steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from support.core.log_build import NOW_MS
from support.models.compacted_log import (
    COMPACTED,
    CompactedLog,
    bases,
    carry_out_some,
    compact,
    headers,
    keyed_batch,
)

from broker_sim.core.effects import Append, Delete, Effects, Flush, Rename
from broker_sim.core.log import cleaning as cleaning_module
from broker_sim.core.log.cleaning import CannotClean, CleanerLimits, Cleaning
from broker_sim.core.log.compression import Codecs
from txnlog_kafka.wire import records
from txnlog_kafka.wire.records import CorruptBatch, parse_header


@pytest.fixture
def log() -> CompactedLog:
    return CompactedLog()


def steps_of(log: CompactedLog, cleaning: Cleaning) -> Iterator[Effects]:
    """The effects of each step of the round, which are carried out before the next step."""
    is_done = False
    while not is_done:
        effects = log.effects()
        is_done = cleaning.step(effects)
        yield effects
        log.carry_out(effects)
    log.cleaned_to = cleaning.end_offset


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


def test_no_loss_of_power_in_a_round_takes_what_came_after_it(log):
    """The active segment, not yet flushed, tells where the log goes on, and of its producers."""
    log.put(("a", "1"), producer_id=9)
    log.put(("b", "1"))
    log.put(("a", "2"))
    for appended in (False, True):
        log.roll()
        if appended:
            log.put(("a", "4"), producer_id=9)
        for effects in steps_of(log, log.begin_cleaning()):
            for count in range(len(effects.storage) + 1):
                crashed = log.copy()
                carry_out_some(effects, crashed.disk, count)
                for path, file in list(crashed.disk._files.items()):
                    del file.content[max(0, file.flushed_bytes) :]
                    if file.flushed_bytes < 0:
                        del crashed.disk._files[path]
                crashed.load(clean=False)
                found = crashed.consume_pairs()
                latest = {key: value for _, (key, value) in sorted(found.items())}
                assert latest["b"] == "1", (appended, count)
                assert latest["a"] in {"2", "3", "4"}, (appended, count)
                (producer,) = crashed.log.producers()
                assert producer.last_sequence in {0, 1}, (appended, count)
        log.put(("a", "3"))


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


def test_a_long_rewrite_is_flushed_on_the_way(log, monkeypatch):
    monkeypatch.setattr(cleaning_module, "FLUSH_BYTES", 150)
    for index in range(4):
        log.put((f"k{index}", "v" * 100))
    log.roll()
    flush = Flush((f"t-0/{'0' * 20}.log.cleaned",))
    steps = steps_of(log, log.begin_cleaning(CleanerLimits(1, 100)))
    assert sum(flush in effects.storage for effects in steps) == 3
    log.check()


@pytest.mark.parametrize("end", ["alive", "clean"])
def test_a_lookup_by_time_ends_though_offsets_changed_on_disk(log, end):
    """Base offsets lie outside the CRC, and two emptied batches send the lookup to the next batch.

    A broker that wrote the batches itself knows their offsets from memory. After a restart it sees
    that a batch does not follow the batch before.
    """
    log.put(("x", "1"))
    for producer_id in (7, 8):
        log.put(("a", "1"), ("a", "2"), producer_id=producer_id)
    log.put(("a", "3"))
    compact(log)
    assert [h.record_count for h in headers(log)] == [1, 0, 0, 1]
    file = log.disk._files["t-0/" + "0" * 20 + ".log"]
    at = sum(h.size_bytes for h in headers(log)[:2])
    assert file.content[at + 7] == 3
    file.content[at + 7] ^= 2
    if end == "clean":
        log.restart("clean")
        with pytest.raises(CorruptBatch, match="at position 131 has offsets from 1 to 2"):
            log.log.offset_for_timestamp(NOW_MS + 1)
        return
    found = log.log.offset_for_timestamp(NOW_MS + 1)
    assert found is None or found[0] > NOW_MS


def test_a_segment_that_grows_over_what_an_index_can_hold_is_given_up(log, monkeypatch):
    """A horizon is far from the records' times: a batch of tombstones is longer with it."""
    log.put(*((f"k{index}", None) for index in range(9)))
    log.roll()
    size_bytes = log.log_bytes()
    monkeypatch.setattr(cleaning_module, "SEGMENT_BYTES_MAX", size_bytes)
    with pytest.raises(CannotClean, match=f"over {size_bytes} bytes"):
        log.clean()


def test_lookups_by_time_find_what_is_left(log):
    for index in range(12):
        log.put((f"k{index % 4}", str(index)), (f"j{index}", str(index)))
        log.now_ms += 100
    log.roll()
    log.clean()
    stamps = {
        r.record_offset: r.timestamp
        for header, data in log.batches()
        for r in records.decode_records(data, 0, header)
    }
    for wanted in range(NOW_MS - 1, log.now_ms + 2, 25):
        later = [(at, ms) for at, ms in sorted(stamps.items()) if ms >= wanted]
        found = log.log.offset_for_timestamp(wanted)
        assert found == ((later[0][1], later[0][0]) if later else None)
    newest = max(stamps.values())
    first = min(at for at, ms in stamps.items() if ms == newest)
    assert log.log.max_timestamp_offset() == (newest, first)
