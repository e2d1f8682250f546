"""subscribePattern on real brokers: what is asked of them while a query runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.brokers.probe import wait_until
from support.clients.librdkafka import create_topic

from txnlog_kafka.host.client import Client
from txnlog_kafka.wire.messages import ApiKey, api_of
from txnlog_spark.offsets import from_json_value
from txnlog_spark.source import available
from txnlog_spark.source.settings import read_source_settings
from txnlog_spark.source.stream import TxnLogStreamReader


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...] | None]:
    """The topics of each Metadata request, None for all; partitions are asked for at each poll."""
    found: list[tuple[str, ...] | None] = []
    original = Client._send_call

    def send(client, call, requests):
        if api_of(call.message).key is ApiKey.METADATA:
            topics = call.message.topics
            found.append(None if topics is None else tuple(t.name for t in topics))
        return original(client, call, requests)

    monkeypatch.setattr(Client, "_send_call", send)
    monkeypatch.setattr(available, "DISCOVERY_MS", 0)
    return found


class Reader:
    """A reader of a pattern that matches topics of this test alone."""

    def __init__(self, broker, unique: Callable[[str], str], max_age_ms: int) -> None:
        self.prefix = unique("p")
        self.bootstrap = broker.bootstrap_servers
        self.first = create_topic(self.bootstrap, f"{self.prefix}-1", 1)
        options = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribePattern": f"{self.prefix}-.",
            "startingOffsets": "earliest",
        }
        settings = read_source_settings(options, streaming=True)
        self.source = TxnLogStreamReader(replace(settings, metadata_max_age_ms=max_age_ms))
        self.offset = self.source.initialOffset()

    def topics(self) -> set[str]:
        """Poll, and say which topics are read."""
        self.offset = self.source.latestOffset(self.offset, ReadAllAvailable())
        return {p.topic for p in from_json_value(self.offset)}


def test_while_a_query_runs_it_asks_for_the_topics_that_it_reads_alone(
    broker, unique: Callable[[str], str], asked: list[tuple[str, ...] | None]
) -> None:
    reader = Reader(broker, unique, max_age_ms=3_600_000)
    assert reader.topics() == {reader.first}
    asked.clear()
    create_topic(broker.bootstrap_servers, f"{reader.prefix}-2", 1)
    for _ in range(3):
        assert reader.topics() == {reader.first}
    assert asked == [(reader.first,)] * 3


def test_a_new_topic_is_found_when_the_list_of_topics_is_too_old(
    broker, unique: Callable[[str], str], asked: list[tuple[str, ...] | None]
) -> None:
    reader = Reader(broker, unique, max_age_ms=0)
    assert reader.topics() == {reader.first}
    second = create_topic(broker.bootstrap_servers, f"{reader.prefix}-2", 1)
    create_topic(broker.bootstrap_servers, f"x{reader.prefix}-3", 1)
    wait_until(lambda: reader.topics() == {reader.first, second}, "the new topic")
    assert None in asked
