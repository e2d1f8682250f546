"""Ranges that begin together: how many are asked for where an answer has no place for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from txnlog_kafka.operations.fetch import SHARE_BYTES_MIN, FetchCursor
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.source import partition
from txnlog_spark.source.partition import TOGETHER_MAX, FirstAnswers

ANSWER_BYTES = 8 * 1024 * 1024


class AskedClient:
    """A client whose leader has one batch of this size in each partition."""

    session = None

    def __init__(self, batch_bytes: int) -> None:
        self.batch_bytes = batch_bytes
        self.asked: list[int] = []

    def together(self, session: None, cursors: Sequence[FetchCursor]) -> dict[Any, str]:
        """The first of them has its batch whatever its size is, others as far as they fit."""
        self.asked.append(len(cursors))
        share = max(SHARE_BYTES_MIN, ANSWER_BYTES // len(cursors))
        fit = ANSWER_BYTES // self.batch_bytes if self.batch_bytes <= share else 1
        return {each.partition: "its batch" for each in cursors[:fit]}

    def run(self, answered: dict[Any, str]) -> dict[Any, str]:
        return answered


@pytest.mark.parametrize("batch_bytes", [100, 30_000, 90_000, 700_000, 10_000_000])
def test_ranges_that_do_not_fit_into_one_answer_are_asked_for_a_few_times(
    monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    client, count = AskedClient(batch_bytes), 2 * TOGETHER_MAX
    monkeypatch.setattr(partition, "fetch_together", client.together)
    cursors = [
        FetchCursor(TopicPartition("t", n), 0, 9, read_committed=True, max_bytes=ANSWER_BYTES)
        for n in range(count)
    ]
    first: Any = FirstAnswers(client, cursors)  # type: ignore[arg-type]
    alone = [first.take(n) for n in range(count)].count(None)
    assert sum(client.asked) + alone < 4 * count
    if batch_bytes == 100:
        assert client.asked == [TOGETHER_MAX] * 2
