"""Drivers that share a `stagingLocation` remove what they have staged themselves, and no more."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from support.core.core_broker import CoreBroker

from txnlog_spark.foreachbatch import QUERY_ID_PROPERTY
from txnlog_spark.sink import committer, writers
from txnlog_spark.sink.columns import check_columns
from txnlog_spark.sink.settings import SinkSettings, read_sink_settings
from txnlog_spark.sink.writers import (
    BATCH_ID_PROPERTY,
    TxnLogBatchWriter,
    TxnLogStreamWriter,
    look_at_topic,
)
from txnlog_spark.staging.messages import RESULT_SIZE_PROPERTY, StagedBatches

VALUE = bytes(range(256)) * 16
"""More than a commit message takes where Spark's driver takes hardly any result."""
SCHEMA = StructType().add("value", "binary").add("at", "timestamp")
AT = datetime.fromtimestamp(1_700_000_000, UTC)
"""Time of the rows, by the clock of the scripted cluster."""


class Host:
    """The client of a driver: operations run on the scripted cluster."""

    def __init__(self, cluster: CoreBroker) -> None:
        self.session = cluster.session()
        self.run = cluster.run

    def topic_partitions(self, topics: list[str], **_: Any) -> dict[str, range]:
        return {each: range(2) for each in topics}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CoreBroker:
    made = CoreBroker(2)
    for module in (committer, writers):
        monkeypatch.setattr(module, "client_for", lambda *_where: Host(made))
        monkeypatch.setattr(module, "resolve_bootstrap", lambda _connection: "h:1")
    return made


class Task:
    """A task's context; `query_id` is None if Spark does not name the query."""

    def __init__(self, batch_id: int, query_id: str | None) -> None:
        self._properties = {
            BATCH_ID_PROPERTY: str(batch_id),
            QUERY_ID_PROPERTY: query_id,
            RESULT_SIZE_PROPERTY: "4k",
        }

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802  Spark's name
        return self._properties.get(name)

    def partitionId(self) -> int:  # noqa: N802
        return 0

    def taskAttemptId(self) -> int:  # noqa: N802
        return 7


class Driver:
    """A query's driver, in a container of its own that has the checkpoint under `mount`."""

    def __init__(self, mount: Path, volume: Path, query_id: str, **options: str) -> None:
        self.mount, self.volume, self.query_id = mount, volume, query_id
        for folder in ("offsets", "commits"):
            (volume / folder).mkdir(parents=True, exist_ok=True)
        (volume / "metadata").write_text(json.dumps({"id": query_id}))
        self.options = {
            "kafka.bootstrap.servers": "h:1",
            "topic": "out",
            "timestampColumn": "at",
            "checkpointLocation": str(mount),
            "stagingLocation": str(mount.parent / "staged"),
        } | options

    def _enter(self) -> None:
        """Be in the container."""
        self.mount.unlink(missing_ok=True)
        self.mount.symlink_to(self.volume)

    def stage(
        self, monkeypatch: pytest.MonkeyPatch, batch_id: int, *, function: bool, is_told: bool
    ) -> tuple[SinkSettings, StagedBatches]:
        """Return the sink's settings and the commit message of a batch's only task."""
        self._enter()
        log = f"v1\n{{}}\n{json.dumps({'in': {'0': batch_id + 1}, 'txnlog/cluster.id/c': {}})}"
        (self.volume / "offsets" / str(batch_id)).write_text(log)
        task = Task(batch_id, self.query_id if is_told else None)
        monkeypatch.setattr(writers, "_task", lambda: task)
        named = {"txnVersion": str(batch_id), "sinkRun": "run"} if function else {}
        settings = read_sink_settings(self.options | named, streaming=not function)
        columns, view = (
            check_columns(SCHEMA, settings),
            look_at_topic(settings, is_function=function),
        )
        writer: Any = (
            TxnLogBatchWriter(settings, columns, view)
            if function
            else TxnLogStreamWriter(settings, columns, view, "run")
        )
        rows = pa.RecordBatch.from_pydict({"value": [VALUE], "at": [AT]})
        message: StagedBatches = writer.write(iter([rows]))
        assert message.path is not None
        return settings, message

    def commit(self, staged: tuple[SinkSettings, StagedBatches]) -> None:
        self._enter()
        settings, message = staged
        committer.commit_streaming(settings, [message], message.batch_id, "run")
        (self.volume / "commits" / str(message.batch_id)).write_text("v1\n{}")


KINDS = pytest.mark.parametrize(
    ("function", "is_told"), [(False, True), (True, True), (True, False)]
)


@KINDS
def test_a_driver_leaves_what_another_ones_query_with_a_checkpoint_of_the_same_path_has_staged(
    cluster: CoreBroker, tmp_path: Path, monkeypatch, function: bool, is_told: bool
) -> None:
    mount, how = tmp_path / "checkpoint", {"function": function, "is_told": is_told}
    one = Driver(mount, tmp_path / "one", "query-1")
    other = Driver(mount, tmp_path / "other", "query-2")
    mine = one.stage(monkeypatch, 0, **how)
    theirs = other.stage(monkeypatch, 0, **how)
    other.commit(theirs)
    later = other.stage(monkeypatch, 1, **how)
    other.commit(later)
    one.commit(mine)
    assert cluster.committed_values("out", 0) + cluster.committed_values("out", 1) == [VALUE] * 3
    assert not list((tmp_path / "staged").rglob("*.staged"))


@KINDS
def test_what_a_run_left_is_removed_by_the_next_one(
    cluster: CoreBroker, tmp_path: Path, monkeypatch, function: bool, is_told: bool
) -> None:
    query = Driver(tmp_path / "checkpoint", tmp_path / "one", "query-1")
    query.stage(monkeypatch, 0, function=function, is_told=not function or not is_told)
    query.commit(query.stage(monkeypatch, 0, function=function, is_told=is_told))
    assert not list((tmp_path / "staged").rglob("*.staged"))


@KINDS
def test_a_copy_of_a_checkpoint_and_another_sink_of_the_query_stage_in_folders_of_their_own(
    cluster: CoreBroker, tmp_path: Path, monkeypatch, function: bool, is_told: bool
) -> None:
    how = {"function": function, "is_told": is_told}
    query = Driver(tmp_path / "checkpoint", tmp_path / "one", "query-1")
    left = [query.stage(monkeypatch, 0, **how)[1]]
    if function:
        query.options["sinkName"] = "side"
        left.append(query.stage(monkeypatch, 0, **how)[1])
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    copy = Driver(tmp_path / "copied", tmp_path / "two", "query-1")
    copy.options["kafka.transactional.id"] = "copy"
    copy.commit(copy.stage(monkeypatch, 0, **how))
    assert [Path(str(each.path)).is_file() for each in left] == [True] * len(left)
    assert len({each.attempt.write for each in left}) == len(left)
