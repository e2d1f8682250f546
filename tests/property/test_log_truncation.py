"""A truncated log is the log that ended there: what it says, what it takes, what a crash leaves."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.core.log_build import LogOnDisk
from support.models.compacted_log import CompactedLog, carry_out_some, compact, draw
from support.models.listed_log import ListedLog, Model, check_equal, segments_of

from broker_sim.core.effects import Delete
from broker_sim.core.log import LogConfig, segment_states

SEEDS = st.integers(0, 2**32)


def live(seed: int, count: int) -> None:
    log = ListedLog(random.Random(seed))
    for _ in range(count):
        if log.rng.random() < 0.15:
            led, end = log.log.leader_epoch, log.log.log_end_offset
            effects = log.truncate()
            log.done(effects)
            check_equal(log, log.model)
            latest = max((batch.leader_epoch for batch in log.model.batches), default=0)
            if log.log.log_end_offset < end and led > latest:
                assert log.log.end_offset_for_epoch(led)[0] != led
            for is_known_flushed in (True, False):
                again = log.twin(copy.deepcopy(log.disk), log.model)
                if not is_known_flushed:
                    again.disk.apply(Delete(f"t-0/{segment_states.FILE_NAME}"))
                again.start(again.disk, clean=False, recovery_point=log.rng.choice(log.points))
                check_equal(again, again.model)
                assert segments_of(again) == segments_of(log)
            if not log.is_replica:
                # Only a follower truncates. To append as a leader it has to be elected first, in
                # an epoch above all before: a leader never goes on in one that was truncated.
                log.act_lead()
        else:
            log.act()
            check_equal(log, log.model)
    log.act_restart()
    check_equal(log, log.model)


def crash(seed: int, count: int) -> None:
    """Crash at each operation of a truncation, by a kill and by a loss of power."""
    log = ListedLog(random.Random(seed))
    for _ in range(count):
        log.act()
    untouched, before = copy.deepcopy(log.disk), log.model
    flushed = log.log._local.flushed_offset
    first_base = log.log._local.segments[0].base_offset
    operations = log.truncate().storage
    after = log.model
    # The caller lowers the log start that is on disk before anything else.
    known = min(before.start, after.start)
    for at in range(len(operations) + 1):
        for power in (False, True):
            disk = copy.deepcopy(untouched)
            for operation in operations[:at]:
                disk.apply(operation)
            if power:
                disk.lose_power(log.rng)
            survivor = log.twin(disk, after if at else before)
            if not at:
                survivor.model.start = max(known, first_base)
            _start(survivor, known)
            end = survivor.log.log_end_offset
            if after.batches or not at:
                assert (min(flushed, survivor.model.end) if power else survivor.model.end) <= end
                survivor.model = survivor.model.truncated(end)
            else:
                assert end in (known, after.end)[at == len(operations) :]
                survivor.model = Model([], end, end, end)
            survivor.model.high_watermark = end
            check_equal(survivor, survivor.model)
            _go_on(survivor)


def _start(log: ListedLog, known: int) -> None:
    """Start on the state that the crash left; this start may crash as well."""
    more = {"log_start_offset": known, "may_truncate": log.rng.random() < 0.5}
    point = log.rng.choice(log.points)
    if log.rng.random() < 0.5:
        half = log.twin(copy.deepcopy(log.disk), log.model)
        effects = half.effects()
        half.start(half.disk, clean=False, recovery_point=point, effects=effects, **more)
        for operation in effects.storage[: log.rng.randint(0, len(effects.storage))]:
            log.disk.apply(operation)
    log.start(log.disk, clean=False, recovery_point=point, **more)


def _go_on(log: ListedLog) -> None:
    """Append batches of other leaders, and check them again after a restart."""
    log.act_lead()
    for _ in range(log.rng.randint(0, 3)):
        log.append()
    check_equal(log, log.model)
    log.act_restart()
    check_equal(log, log.model)


@settings(max_examples=120)
@given(SEEDS, st.integers(5, 45))
def test_a_truncated_log_is_the_list_without_its_end(seed, count):
    live(seed, count)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_left_of_a_compacted_log_survives_a_crash_at_any_operation(seed):
    """Below the high watermark, after an unclean election: then the end may lie in a gap."""
    rng = random.Random(seed)
    log = CompactedLog()
    for _ in range(30):
        log.put(draw(rng), producer_id=7)
    compact(log)
    log.put(("last", "one"))
    start = {"clean": False, "was_cleaned": True, "may_truncate": False}
    for offset in range(1, log.log.log_end_offset, 3):
        survivor = log.copy()
        survivor.load(recovery_point=log.log.recovery_point, **start)
        effects = survivor.effects()
        survivor.log.truncate_to(offset, effects)
        end, before = survivor.log.log_end_offset, log.log.log_end_offset
        kept = {at: pair for at, pair in log.consume_pairs().items() if at < end}
        assert end <= offset
        for count in range(len(effects.storage) + 1):
            crashed = log.copy()
            carry_out_some(effects, crashed.disk, count)
            for _ in range(3):
                crashed.load(recovery_point=log.log.recovery_point, **start)
                assert crashed.log.log_end_offset == (end if count else before)
                found = crashed.consume_pairs()
                assert {at: pair for at, pair in found.items() if at < end} == kept
                crashed.disk.apply(Delete(f"t-0/{segment_states.FILE_NAME}"))


@settings(max_examples=20)
@given(SEEDS, st.integers(3, 40))
@example(12664270, 41)
def test_a_crash_at_any_operation_leaves_the_log_before_or_after(seed, count):
    crash(seed, count)


@pytest.mark.chaos
@settings(max_examples=3000)
@given(SEEDS, st.integers(20, 120))
def test_a_truncated_log_is_the_list_without_its_end_for_long(seed, count):
    live(seed, count)


@pytest.mark.chaos
@settings(max_examples=2000)
@given(SEEDS, st.integers(10, 100))
def test_a_crash_at_any_operation_leaves_the_log_before_or_after_for_long(seed, count):
    crash(seed, count)


@pytest.mark.parametrize("seed", range(8))
def test_a_log_that_was_emptied_begins_at_the_offset_after_a_loss_of_power(seed):
    """Its segment is empty; without it the log would begin at the log start that is known."""
    on_disk = LogOnDisk()
    on_disk.produce("a", "b", "c")
    for change in (on_disk.log.increase_log_start, on_disk.log.truncate_to):
        on_disk.call(change, on_disk.log.log_start_offset + 1)
    assert (on_disk.log.log_start_offset, on_disk.log.log_end_offset) == (2, 2)
    on_disk.disk.lose_power(random.Random(seed))
    on_disk.load(clean=False, log_start_offset=1)
    assert (on_disk.log.log_start_offset, on_disk.log.log_end_offset) == (2, 2)


def test_a_producer_that_expired_is_not_known_again_after_a_truncation():
    on_disk = LogOnDisk(LogConfig(producer_id_expiration_ms=1000))
    on_disk.produce("a", producer=(7, 0, 0))
    on_disk.now_ms += 5000
    on_disk.produce("b")
    effects = on_disk.effects()
    on_disk.log.expire_producers(effects)
    on_disk.log.truncate_to(1, effects)
    assert (on_disk.log.log_end_offset, on_disk.log.producers()) == (1, ())
