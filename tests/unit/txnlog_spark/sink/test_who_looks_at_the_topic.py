"""Spark asks for a stream's writer where it plans a batch, and again where it commits it."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import StructType

from txnlog_spark import datasource
from txnlog_spark.datasource import TxnLogDataSource
from txnlog_spark.sink import writers
from txnlog_spark.sink.settings import SinkSettings
from txnlog_spark.sink.writers import OutputView

OPTIONS = {
    "kafka.bootstrap.servers": "127.0.0.1:9",
    "topic": "out",
    "checkpointLocation": "/tmp/checkpoint",
}
SCHEMA = StructType().add("value", "binary")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The topics that were looked at."""
    found: list[str | None] = []

    def look(settings: SinkSettings, *, is_function: bool) -> OutputView:
        assert not is_function
        found.append(settings.topic)
        return OutputView(OPTIONS["kafka.bootstrap.servers"], {"out": 3}, None)

    monkeypatch.setattr(writers, "look_at_topic", look)
    return found


def test_what_is_loaded_is_frozen_before_a_commit_loads_more_and_once_where_it_is_planned(
    looks, monkeypatch
) -> None:
    frozen = []

    class CountedFrozen:
        """Instead of the one that does it."""

        def __init__(self) -> None:
            frozen.append(self)

    monkeypatch.setattr(datasource, "Frozen", CountedFrozen)
    source = TxnLogDataSource(dict(OPTIONS))
    assert frozen == []
    copy = pickle.loads(pickle.dumps(source))
    assert len(frozen) == 1
    for made in (copy, source, pickle.loads(pickle.dumps(source))):
        made.streamWriter(SCHEMA, False)
    assert len(frozen) == 1


def test_the_topic_is_looked_at_for_the_tasks_and_not_for_the_commit(looks) -> None:
    source = TxnLogDataSource(dict(OPTIONS))
    for_tasks = pickle.loads(pickle.dumps(source.streamWriter(SCHEMA, False)))
    assert looks == ["out"]
    assert for_tasks._view.counts == {"out": 3}
    copy = pickle.loads(pickle.dumps(source))
    for_commit = copy.streamWriter(SCHEMA, False)
    assert (for_commit._columns, for_commit._view) == (None, None)
    assert looks == ["out"]
    assert copy._run_id == source._run_id


def test_a_batch_write_is_planned_once_and_its_writer_commits(looks) -> None:
    options = {key: value for key, value in OPTIONS.items() if key != "checkpointLocation"}
    for source in (
        TxnLogDataSource(options),
        pickle.loads(pickle.dumps(TxnLogDataSource(options))),
    ):
        assert source.writer(SCHEMA, False)._view.counts == {"out": 3}
    assert looks == ["out", "out"]
