"""A cluster whatever happens: one history of its metadata, and in the end everything is led."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lives.membership_run import MembershipRun


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_a_cluster_has_one_history_and_heals_with_all_that_was_acknowledged(seed: int) -> None:
    run = MembershipRun(seed)
    run.live(120)
    run.finish()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
def test_clusters_that_live_long_heal(seed: int) -> None:
    run = MembershipRun(seed)
    run.live(1000)
    run.finish()
