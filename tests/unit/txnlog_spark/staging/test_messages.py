"""Limits of the output that a task may send in its commit message."""

from __future__ import annotations

import dataclasses

import pytest
from support.query.staged_messages import stage

from txnlog_spark.errors import StagedBatchesInvalid
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.messages import (
    INLINE_BYTES_MAX,
    INLINE_BYTES_MIN,
    INLINE_TOTAL_BYTES_MAX,
    inline_limit,
)
from txnlog_spark.staging.staged_output import check_versions


@pytest.mark.parametrize("task_count", [1, 24, 48, 49, 200, 1_100, 2_000, 10_000])
def test_all_messages_of_a_batch_stay_far_below_what_the_driver_takes(task_count: int) -> None:
    limits = [inline_limit(index) for index in range(task_count)]
    assert sum(limits) <= INLINE_TOTAL_BYTES_MAX
    assert max(limits) <= INLINE_BYTES_MAX
    assert limits == sorted(limits, reverse=True)


def test_tiny_outputs_travel_inline_however_many_tasks_there_are() -> None:
    assert inline_limit(99_999) == INLINE_BYTES_MIN
    assert inline_limit(5, "1") == INLINE_BYTES_MIN


def test_the_first_tasks_may_take_the_whole_limit() -> None:
    assert {inline_limit(index) for index in range(48)} == {INLINE_BYTES_MAX}


@pytest.mark.parametrize("size", ["10m", "10MB", "10485760", " 10240k "])
@pytest.mark.parametrize("task_count", [20, 500])
def test_a_smaller_result_size_makes_all_limits_smaller(size: str, task_count: int) -> None:
    total = sum(inline_limit(index, size) for index in range(task_count))
    assert 500_000 < total < 10 * 2**20 / 2


@pytest.mark.parametrize("size", [None, "", "0", "1g", "16g", "much"])
def test_a_larger_or_no_result_size_changes_nothing(size: str | None) -> None:
    assert [inline_limit(i, size) for i in (0, 100)] == [inline_limit(i) for i in (0, 100)]


def test_a_message_of_another_version_is_refused() -> None:
    message = stage(TaskAttempt("q", 3, "r", "r-0-1"), [])
    check_versions([message])
    with pytest.raises(StagedBatchesInvalid, match="one version of txnlog_spark"):
        check_versions([message, dataclasses.replace(message, version=99)])
