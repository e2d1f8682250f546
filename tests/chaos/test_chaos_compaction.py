"""The long run of the stories of compaction."""

from __future__ import annotations

import pytest
from support.histories.compaction_history import tell_crashes, tell_story

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("start", range(0, 2000, 250))
def test_compaction_changes_nothing_in_many_stories(start):
    for seed in range(start, start + 250):
        tell_story(seed, 20 + seed % 150)


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_no_crash_of_the_cleaner_loses_anything_in_many_stories(start):
    for seed in range(start, start + 50):
        tell_crashes(seed, 20 + seed % 100, power=bool(seed % 2))
