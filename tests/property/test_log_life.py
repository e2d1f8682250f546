"""A compacted log through crashes, retention, DeleteRecords and other policies, all at once."""

from __future__ import annotations

import pytest
from support.histories.log_history import damage, live


@pytest.mark.parametrize(
    ("seeds", "at_least"),
    [(range(50), 3), pytest.param(range(100_000, 104_000), 300, marks=pytest.mark.chaos)],
)
def test_readers_and_producers_find_what_they_may_whatever_came_together(seeds, at_least):
    counts: dict[str, int] = {}
    for seed in seeds:
        for what, count in live(seed, 30 + seed % 170).items():
            counts[what] = counts.get(what, 0) + count
    for what in (
        "append",
        "marker",
        "step",
        "roll",
        "checkpoint",
        "delete-records",
        "retention",
        "truncate",
    ):
        assert counts[f"crash-{what}"] >= at_least, counts
    assert min(counts["round"], counts["crash-round"], counts["kill"]) >= at_least


@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(100_000, 104_000), marks=pytest.mark.chaos)]
)
def test_no_damage_makes_a_compacted_log_serve_what_it_may_not(seeds):
    for seed in seeds:
        damage(seed, 30 + seed % 120)
