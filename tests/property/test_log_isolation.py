"""Any interleaving of producers, markers, rolls, deletions and restarts reads like a naive list."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.log_build import LogOnDisk
from support.models.listed_log import ListedLog, check_equal, check_every_fetch

from broker_sim.core.log import LogConfig

SEEDS = st.integers(0, 2**32)
sizes = st.sampled_from([1, 200, 500, 1 << 20])


def check_story(seed: int, count: int, max_bytes: int) -> None:
    """Make `count` random changes; read from every offset, then again after a kill and a clean
    stop."""
    log = ListedLog(random.Random(seed))
    for _ in range(count):
        log.act()
        assert log.log.last_stable_offset == log.model.last_stable_offset()
    for kind in ("", "kill", "clean"):
        if kind:
            log.restart_as(kind)
        check_equal(log, log.model)
        check_every_fetch(log, log.model, max_bytes)


@pytest.mark.invariant(1, 26, 27)
@settings(max_examples=200)
@given(SEEDS, st.integers(0, 40), sizes)
def test_every_fetch_equals_the_naive_list(seed, count, max_bytes):
    check_story(seed, count, max_bytes)


@pytest.mark.parametrize("retention", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_a_log_whose_segments_all_went_begins_where_it_ended(retention, seed: int):
    """Its new segment is empty and was never flushed; without it the log would begin at 0."""
    on_disk = LogOnDisk()
    on_disk.produce("a", "b", producer=(7, 0, 0), transactional=True)
    on_disk.mark(7, 0, "commit")
    on_disk.call(on_disk.log.roll)
    if retention:
        on_disk.log.config = LogConfig(retention_bytes=0)
        on_disk.call(on_disk.log.apply_retention)
    else:
        on_disk.delete_below(3)
    on_disk.restart("power", seed)
    assert (on_disk.log.log_start_offset, on_disk.log.log_end_offset) == (3, 3)
    assert on_disk.consume(3, committed=True) == []


@pytest.mark.chaos
@settings(max_examples=2500)
@given(SEEDS, st.integers(20, 150), sizes)
def test_every_fetch_equals_the_naive_list_for_long(seed, count, max_bytes):
    check_story(seed, count, max_bytes)
