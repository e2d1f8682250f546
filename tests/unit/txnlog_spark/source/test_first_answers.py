"""Ranges that begin together: how often partitions are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from txnlog_kafka.operations.fetch import SHARE_BYTES_MIN
from txnlog_kafka.operations.fetch_cursor import FetchCursor
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import UnknownTopic
from txnlog_spark.source import partition
from txnlog_spark.source.partition import TOGETHER_MAX, RangePartition, first_answers, read_ranges
from txnlog_spark.source.planning import OffsetRange
from txnlog_spark.source.settings import read_source_settings

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
    client: Any = AskedClient(batch_bytes)
    count = 2 * TOGETHER_MAX
    monkeypatch.setattr(partition, "fetch_together", client.together)
    cursors = [
        FetchCursor(TopicPartition("t", n), 0, 9, read_committed=True, max_bytes=ANSWER_BYTES)
        for n in range(count)
    ]
    alone = list(first_answers(client, cursors)).count(None)
    assert sum(client.asked) + alone < 4 * count
    if batch_bytes == 100:
        assert client.asked == [TOGETHER_MAX] * 2


class GoneClient(AskedClient):
    """A client whose brokers have topic `u` alone, with no records."""

    def fetch_rest(self, cursor: FetchCursor, _answer: None) -> Iterator[Any]:
        self.asked.append(cursor.partition)  # type: ignore[arg-type]
        if cursor.partition.topic == "t":
            raise UnknownTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "gone", topics=("t",))
        return iter(())


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_is_gone_is_asked_for_once_in_a_task_and_not_for_each_partition(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    client: Any = GoneClient(100)
    monkeypatch.setattr(partition, "fetch_together", lambda *_: {})
    monkeypatch.setattr(partition, "client_for", lambda *_: client)
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t,u", "failOnDataLoss": fails}
    settings = read_source_settings(options, streaming=True)
    names = [TopicPartition(topic, n) for topic in "tu" for n in range(3)]
    share = RangePartition(tuple(OffsetRange(name, 0, 9) for name in names), "h:1")
    reading = read_ranges(settings, share)
    if fails == "true":
        with pytest.raises(UnknownTopic):
            next(reading)
    else:
        assert list(reading) == []
        assert client.asked == [names[0], *names[3:]]
