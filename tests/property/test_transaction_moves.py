"""Transactions over several leaders, whatever happens: each is committed or aborted as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lives.transaction_run import TransactionRun


@settings(max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_transactions_end_everywhere_as_they_were_answered(seed: int) -> None:
    run = TransactionRun(seed)
    run.live(1000)
    run.finish()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
def test_long_lives_of_transactions_end_well(seed: int) -> None:
    run = TransactionRun(seed)
    run.live(5000)
    run.finish()
