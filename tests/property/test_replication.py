"""Replication whatever happens: nothing that was acknowledged or read is lost or changed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lives.replication_run import ReplicationRun


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_replicas_become_one_log_with_all_that_was_acknowledged_and_read(seed: int) -> None:
    run = ReplicationRun(seed)
    run.live(400)
    run.finish()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
def test_long_lives_lose_nothing(seed: int) -> None:
    run = ReplicationRun(seed)
    run.live(2000)
    run.finish()
