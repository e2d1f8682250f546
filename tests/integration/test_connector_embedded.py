"""Cluster of a query: always the cluster that the query's author has named."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from support.spark.connector import Pipe, error_of, finish


def test_a_path_given_to_load_start_and_save_is_the_embedded_broker_which_is_started_again(
    connector_spark, tmp_path: Path
) -> None:
    spark, path = connector_spark, str(tmp_path / "log")
    rows = spark.createDataFrame([("a",), ("b",)], "value string")
    rows.write.format("txnlog").option("topic", "in").mode("append").save(path)
    record = tmp_path / "log" / "embedded.json"
    first = json.loads(record.read_text())
    assert spark.read.format("txnlog").option("subscribe", "in").load(path).count() == 2
    stream = spark.readStream.format("txnlog").option("subscribe", "in")
    stream = stream.option("startingOffsets", "earliest").load(path)
    writer = stream.select("value").writeStream.format("txnlog").option("topic", "out")
    writer = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True)
    finish(writer.start(path))
    assert json.loads(record.read_text()) == first
    os.kill(first["pid"], signal.SIGKILL)
    read = spark.read.format("txnlog").option("subscribe", "out").option("path", path).load()
    assert sorted(row.value.decode() for row in read.collect()) == ["a", "b"]
    assert json.loads(record.read_text())["pid"] != first["pid"]


@pytest.mark.parametrize("kind", ["read", "readStream"])
def test_load_refuses_a_query_that_names_no_cluster_and_says_how(connector_spark, kind) -> None:
    reader = getattr(connector_spark, kind).format("txnlog").option("subscribe", "t")
    line = error_of(reader.load)
    assert '.option("kafka.bootstrap.servers", "host:9092")' in line
    assert '.load(".txnlog")' in line


def test_load_refuses_a_query_that_names_two(pipe: Pipe, tmp_path: Path) -> None:
    reader = pipe.spark.readStream.format("txnlog").option("subscribe", pipe.input)
    reader = reader.option("kafka.bootstrap.servers", pipe.bootstrap)
    assert "only one of them can be meant" in error_of(lambda: reader.load(str(tmp_path)))


def test_a_writer_that_names_no_cluster_is_refused_and_starts_no_broker(
    pipe: Pipe, tmp_path: Path, monkeypatch
) -> None:
    """Rows for a production cluster once went to a broker in the working directory."""
    monkeypatch.chdir(tmp_path)
    pipe.feed(range(3))
    assert "kafka.bootstrap.servers" in pipe.copy_error(sink={"kafka.bootstrap.servers": None})
    writer = pipe.rows(["x"]).write.format("txnlog").option("topic", pipe.output).mode("append")
    assert '.save(".txnlog")' in error_of(writer.save)
    assert not (tmp_path / ".txnlog").exists()


@pytest.mark.parametrize("kind", ["read", "readStream"])
def test_a_read_of_a_mistyped_path_makes_no_broker(
    connector_spark, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / ".txnlgo"
    reader = getattr(connector_spark, kind).format("txnlog").option("subscribe", "in")
    rows = reader.load(str(path))
    writer = rows.writeStream.format("noop") if rows.isStreaming else None
    line = error_of(rows.count if writer is None else lambda: finish(writer.start()))
    assert f"[TXNLOG_OPTION] option path='{path}': there is no broker's data at {path}" in line
    assert not path.exists()


def test_a_path_of_a_file_is_refused_by_name(connector_spark, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reader = connector_spark.read.format("txnlog").option("subscribe", "in")
    line = error_of(lambda: reader.load(str(tmp_path / "file")).count())
    assert f"path='{tmp_path}/file': {tmp_path}/file is a file" in line
    writer = connector_spark.createDataFrame([("a",)], "value string").write.format("txnlog")
    writer = writer.option("topic", "out").mode("append")
    assert "is a file" in error_of(lambda: writer.save(str(tmp_path / "file")))


def shown(action: Callable[[], object]) -> str:
    """Return the text that Spark shows of the error that `action` must raise."""
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


WRONG = {
    "an unknown option": {"no.such.option": "1"},
    "a missing topic": {
        "subscribe": "no-such-topic", "topic": "not a topic",
        "kafka.default.api.timeout.ms": "2000", "kafka.request.timeout.ms": "1000",
    },
    "nobody there": {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.default.api.timeout.ms": "500", "kafka.request.timeout.ms": "400",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("read", "an unknown option"),
        ("readStream", "a missing topic"),
        ("write", "a missing topic"),
        ("writeStream", "an unknown option"),
        ("writeStream", "nobody there"),
    ],
)
def test_our_text_has_the_second_line_that_spark_shows_and_no_frames(
    pipe: Pipe, kind: str, wrong: str
) -> None:
    pipe.feed(range(3))
    reads = kind.startswith("read")
    options = {n: v for n, v in WRONG[wrong].items() if n != ("topic" if reads else "subscribe")}
    actions = {
        "read": lambda: pipe.read(**options).count(),
        "readStream": lambda: pipe.copy(source=options),
        "write": lambda: pipe.save(pipe.rows(["x"]), **options),
        "writeStream": lambda: pipe.copy(sink=options),
    }
    text = shown(actions[kind])
    assert text.splitlines()[1].startswith("[TXNLOG_")
    assert "Traceback" not in text
