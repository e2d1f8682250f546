"""Writers: Spark asks for one where it plans a batch and where it commits it."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import StructType

from txnlog_spark import datasource
from txnlog_spark.datasource import TxnLogDataSource
from txnlog_spark.errors import SparkSettingRefused
from txnlog_spark.sink import writers
from txnlog_spark.sink.settings import SinkSettings
from txnlog_spark.sink.writers import (
    FULL_RETRY_PROPERTY,
    MASTER_PROPERTY,
    PUSH_PROPERTY,
    OutputView,
    check_full_retry,
)

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


CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum.enabled"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {FULL_RETRY_PROPERTY: "true"},
        {CHECKSUMS: "false"},
        {PUSH_PROPERTY: "true", MASTER_PROPERTY: "spark://host:7077"},
        {PUSH_PROPERTY: "false", MASTER_PROPERTY: "yarn"},
        {MASTER_PROPERTY: "yarn"},
    ],
)
def test_settings_with_which_spark_computes_a_batch_again_as_a_whole_are_taken(
    settings: dict[str, str],
) -> None:
    check_full_retry(settings.get)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({FULL_RETRY_PROPERTY: "false"}, f"{FULL_RETRY_PROPERTY}=false"),
        ({FULL_RETRY_PROPERTY: " FALSE ", CHECKSUMS: "true"}, f"{FULL_RETRY_PROPERTY}=false"),
        ({PUSH_PROPERTY: "TRUE", MASTER_PROPERTY: "yarn"}, f"{PUSH_PROPERTY}=true"),
    ],
)
def test_settings_with_which_spark_keeps_parts_of_two_computations_are_refused_by_name(
    settings: dict[str, str], named: str
) -> None:
    with pytest.raises(SparkSettingRefused) as caught:
        check_full_retry(settings.get)
    assert named in str(caught.value)
    assert "Nothing was written" in str(caught.value)
