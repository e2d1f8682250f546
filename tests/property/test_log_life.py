"""A compacted log through crashes, retention, DeleteRecords and other policies, all at once."""

from __future__ import annotations

import pytest
from support.log_life import live


@pytest.mark.parametrize(
    ("seeds", "at_least"),
    [(range(50), 3), pytest.param(range(100_000, 104_000), 300, marks=pytest.mark.chaos)],
)
def test_readers_and_producers_find_what_they_may_whatever_came_together(seeds, at_least):
    counts: dict[str, int] = {}
    for seed in seeds:
        for what, count in live(seed, 30 + seed % 170).items():
            counts[what] = counts.get(what, 0) + count
    for what in ("append", "marker", "step", "roll", "checkpoint", "delete-records", "retention"):
        assert counts[f"crash-{what}"] >= at_least, counts
    assert min(counts["round"], counts["crash-round"], counts["kill"]) >= at_least
