"""The tests and the seeds of a day."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from support.harness.days import DAY, WEEK_DAYS, is_of_day, seeds_of_day, today

FIRST = date(2026, 11, 29)
WEEK = [FIRST + timedelta(days) for days in range(WEEK_DAYS)]


def test_each_weekly_test_belongs_to_one_day_of_a_week_and_to_the_same_one_a_week_later() -> None:
    for number in range(100):
        days = [is_of_day(f"test_it[{number}]", day) for day in WEEK]
        assert sum(days) == 1
        assert days == [is_of_day(f"test_it[{number}]", day + timedelta(7)) for day in WEEK]


def test_each_day_has_about_a_seventh_of_the_tests() -> None:
    for day in WEEK:
        assert 60 < sum(is_of_day(f"test_it[{number}]", day) for number in range(700)) < 140


def test_a_test_that_names_its_day_belongs_to_that_day_whatever_its_name() -> None:
    sunday = date(2026, 11, 29)
    for own in range(WEEK_DAYS):
        days = [day for day in WEEK if is_of_day(f"test_it[{own}]", day, own)]
        assert days == [sunday + timedelta(own)]


def test_the_seeds_of_successive_days_are_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    for days in range(10):
        monkeypatch.setenv(DAY, (FIRST + timedelta(days)).isoformat())
        seen += seeds_of_day(30, 300)
    assert sorted(seen) == [*range(300)]


def test_the_day_that_is_given_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DAY, "2024-02-29")
    assert today() == date(2024, 2, 29)
    monkeypatch.setenv(DAY, "yesterday")
    with pytest.raises(ValueError, match="yesterday"):
        today()
