"""Compaction changes nothing for a read_committed reader, whatever happens around it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.histories.compaction_history import TRANSACTIONAL, Story, tell_crashes, tell_story

SEEDS = st.integers(0, 2**32)


@pytest.mark.invariant(50)
@settings(max_examples=50)
@given(SEEDS, st.integers(10, 120))
def test_the_latest_committed_value_of_every_key_stays(seed, count):
    tell_story(seed, count)


@settings(max_examples=20)
@given(SEEDS, st.integers(20, 80), st.booleans())
def test_a_crash_between_any_two_operations_of_the_cleaner_loses_nothing(seed, count, power):
    tell_crashes(seed, count, power=power)


@pytest.mark.parametrize("seed", range(3))
def test_cleaning_again_and_again_reaches_an_end_and_forgets_what_is_gone(seed):
    story = Story(seed)
    log = story.log
    for _ in range(300):
        story.write()
    for producer_id in TRANSACTIONAL:
        log.end(producer_id, "abort")
    sizes = []
    for at in range(4):
        log.put(("fill", str(at)))
        log.roll()
        log.now_ms += 2000
        assert log.clean()
        log.check()
        sizes.append(log.log_bytes())
    assert sizes[-1] <= sizes[0]
    live = len(log.latest())
    assert len(log.consume_pairs()) <= live + 1
