"""A hanging transaction in the input: the warning's commands find it, on both brokers."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.brokers.hanging import VERIFICATION_OFF, plant_hanging_transaction
from support.clients.librdkafka import create_topic, produce_values
from support.harness.availability import available
from support.kafka.java_tools import TRANSACTIONS, JavaHost, java_command

from txnlog_spark.client_cache import client_for
from txnlog_spark.source.hanging_transactions import HANGING_MS
from txnlog_spark.source.settings import read_source_settings
from txnlog_spark.source.stream import TxnLogStreamReader

ALL = ReadAllAvailable()


def table(lines: list[str]) -> list[dict[str, str]]:
    """The rows of a tool's table."""
    header, *rows = [[cell.strip() for cell in line.split("\t")] for line in lines]
    return [dict(zip(header, row, strict=False)) for row in rows]


@pytest.mark.live
def test_the_commands_of_the_warning_find_the_transaction_and_its_abort_lets_the_query_on(
    new_broker: Callable,
    tmp_path: Path,
    unique: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    available(java_command)
    broker = new_broker(VERIFICATION_OFF)
    topic = create_topic(broker.bootstrap_servers, unique("in"))
    produce_values(broker.bootstrap_servers, topic, ["before"])
    plant_hanging_transaction(broker, topic, 0, unique("hangs"))
    produce_values(broker.bootstrap_servers, topic, ["after"])
    # A source on a clock of the test stands still until the warning is due.
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}
    settings = read_source_settings(options | {"startingOffsets": "earliest"}, streaming=True)
    session = client_for(settings.connection).session
    now_ms = session.monotonic_ms()
    monkeypatch.setattr(session, "monotonic_ms", lambda: now_ms)
    source = TxnLogStreamReader(settings)
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    now_ms += HANGING_MS
    assert source.latestOffset(end, ALL) == end
    (text,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert f"{topic}-0 (last stable offset 1, high watermark 3)" in text
    caplog.clear()
    TxnLogStreamReader(settings).prepareForTriggerAvailableNow()
    (at_once,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert f"{topic}-0 (last stable offset 1, high watermark 3)" in at_once

    # The commands of the warning find the transaction, and its abort ends it.
    with JavaHost(tmp_path / "java") as java:
        for found, column in zip(
            re.findall(r"`kafka-transactions\.sh ([^`]+)`", text),
            ("CurrentTransactionStartOffset", "StartOffset"),
            strict=True,
        ):
            rows = table(java.ok(TRANSACTIONS, *found.split()).lines)
            assert "1" in [row[column] for row in rows]
        where = ("--bootstrap-server", broker.bootstrap_servers, "abort", "--topic", topic)
        java.ok(TRANSACTIONS, *where, "--partition", 0, "--start-offset", 1)
    # The source goes on behind the marker.
    now_ms += HANGING_MS
    assert source.latestOffset(end, ALL)[topic] == {"0": 4}
    assert source.reportLatestOffset()[topic] == {"0": 4}
