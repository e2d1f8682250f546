"""The tables of docs/performance.md that compare connectors are made of committed measurements."""

from __future__ import annotations

import sys

import pytest
from tidy.tree import ROOT

sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
from bench_tables import saved, table_of

PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("work", saved())
def test_a_table_is_made_of_the_saved_rounds_and_says_when_they_were_measured(work: str) -> None:
    measured = saved()[work]
    table = table_of(work, measured["brokers"])
    assert table in PAGE, f"put this into docs/performance.md:\n{table}"


def test_the_two_connectors_are_compared_by_saved_rounds() -> None:
    assert {"copy", "sink"} <= saved().keys()
