"""Wrong input: every case is one line of ours in what Spark shows, and it says what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from support.brokers.probe import free_ports
from support.clients.librdkafka import committed_offsets
from support.spark.connector import Pipe, error_of, finish

from txnlog_spark import foreach_batch
from txnlog_spark.client_cache import ConnectionSettings, client_for
from txnlog_spark.sink.writers import FULL_RETRY_PROPERTY

FAST = {"kafka.default.api.timeout.ms": 8000, "kafka.request.timeout.ms": 2000}


def write_error(pipe: Pipe, select: str, **options: object) -> str:
    rows = pipe.stream().selectExpr(*select.split(";"))
    query = pipe.write(rows, **options).trigger(availableNow=True)
    return error_of(lambda: finish(query.start()))


def nothing_written(pipe: Pipe) -> bool:
    offsets = committed_offsets(pipe.bootstrap, pipe.group, pipe.input, 3)
    return not pipe.output_values("read_uncommitted") and not offsets


def test_an_unreachable_cluster_is_named_when_the_time_is_over(pipe: Pipe) -> None:
    short = {"kafka.default.api.timeout.ms": 500, "kafka.request.timeout.ms": 400}
    nowhere = {"kafka.bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}", **short}
    line = error_of(lambda: pipe.read(**nowhere).count())
    assert "DeadlineExceeded" in line
    assert str(nowhere["kafka.bootstrap.servers"]) in line
    assert "kafka.bootstrap.servers" in line
    assert "DeadlineExceeded" in pipe.copy_error(source=nowhere)
    assert "DeadlineExceeded" in pipe.copy_error(sink=nowhere)


@pytest.mark.matrix
def test_an_unknown_input_topic_is_named_and_not_created(pipe: Pipe) -> None:
    unknown = {"subscribe": "no-such-topic", **FAST}
    for line in (error_of(lambda: pipe.read(**unknown).count()), pipe.copy_error(source=unknown)):
        assert "UnknownTopic" in line
        assert "no-such-topic" in line
    client = client_for(ConnectionSettings.of({"kafka.bootstrap.servers": pipe.bootstrap}))
    assert "no-such-topic" not in client.topic_partitions(None)


def test_an_output_topic_that_cannot_be_is_named(pipe: Pipe) -> None:
    pipe.feed(range(3))
    line = pipe.copy_error(sink={"topic": "not a topic", **FAST})
    assert "not a topic" in line
    assert nothing_written(pipe)


def test_an_option_that_the_brokers_find_wrong_is_named_with_what_is_allowed(pipe: Pipe) -> None:
    start = {"startingOffsets": f'{{"{pipe.input}":{{"0":9,"1":0,"2":0}}}}'}
    assert "asks for offset 9" in pipe.copy_error(source=start)


def test_a_sink_without_a_topic_is_told_and_nothing_is_written(pipe: Pipe) -> None:
    pipe.feed(range(3))
    assert "option topic: set it to the output topic" in pipe.copy_error(sink={"topic": None})
    assert nothing_written(pipe)


def test_a_job_with_the_tuning_options_of_kafkas_clients_runs(pipe: Pipe) -> None:
    tuning = {"kafka.linger.ms": 5, "kafka.batch.size": 65536, "kafka.retries": 3, "kafka.acks": -1}
    pipe.feed(range(3))
    pipe.copy(source=tuning | {"kafka.max.poll.records": 500}, sink=tuning)
    assert pipe.output_values() == ["0", "1", "2"]


def test_a_checkpoint_from_the_sessions_configuration_is_refused_and_told_why(
    pipe: Pipe, tmp_path: Path
) -> None:
    pipe.feed(range(3))
    name = "spark.sql.streaming.checkpointLocation"
    pipe.spark.conf.set(name, str(tmp_path / "session"))
    try:
        line = pipe.copy_error(sink={"checkpointLocation": None})
    finally:
        pipe.spark.conf.unset(name)
    assert 'writeStream.option("checkpointLocation", ...)' in line
    assert nothing_written(pipe)


def test_a_wrong_column_is_named_and_nothing_is_written(pipe: Pipe) -> None:
    pipe.feed(range(3))
    assert "column value" in write_error(pipe, "value as v")
    assert nothing_written(pipe)


@pytest.mark.matrix
def test_an_oversized_record_is_named_by_its_key_and_nothing_is_written(pipe: Pipe) -> None:
    pipe.feed(range(3))
    select = "key;if(cast(value as string) = '1', repeat('x', 2000000), 'small') as value"
    line = write_error(pipe, select)
    assert "MESSAGE_TOO_LARGE" in line
    assert "b'1'" in line
    assert nothing_written(pipe)


def test_a_corrupt_batch_on_disk_is_named_and_never_read_as_data(pipe: Pipe) -> None:
    pipe.feed(["good" * 50], partition=0)
    (log,) = pipe.broker.data_dir.rglob(f"{pipe.input}-0/*.log")
    data = bytearray(log.read_bytes())
    at = data.index(b"goodgood")
    with log.open("r+b") as file:
        file.seek(at + 4)
        file.write(b"evil")
    line = pipe.copy_error()
    assert "TXNLOG_DATA_LOSS.CORRUPT" in line
    assert f"{pipe.input}-0" in line
    assert nothing_written(pipe)


def test_overwriting_a_log_is_refused(pipe: Pipe) -> None:
    options = {"kafka.bootstrap.servers": pipe.bootstrap, "topic": pipe.output}
    writer = pipe.rows(["x"]).write.format("txnlog").options(**options).mode("overwrite")
    assert "append: a log cannot be overwritten" in error_of(writer.save)


def test_a_schema_of_ones_own_is_refused(pipe: Pipe) -> None:
    reader = pipe.spark.read.format("txnlog").schema("a int")
    options = {"kafka.bootstrap.servers": pipe.bootstrap, "subscribe": pipe.input}
    assert "leave it out" in error_of(lambda: reader.options(**options).load().count())


HUGE = "repeat('x', 2000000) AS value"
FAILING: dict[str, dict[str, Any]] = {
    "option endingOffsets": {"source": {"endingOffsets": "earliest"}},
    "INVALID_TRANSACTION_TIMEOUT": {"sink": {"kafka.transaction.timeout.ms": "100000000"}},
    "MESSAGE_TOO_LARGE": {"transform": lambda rows: rows.selectExpr("key", HUGE)},
}
"""Queries that fail in the planning, in the commit and in a task, by what the error says."""


def test_our_text_has_the_second_line_that_spark_shows(pipe: Pipe) -> None:
    """Wrong options and missing topics likewise: `test_connector_embedded.py`."""
    pipe.feed(range(3))
    for told, failing in FAILING.items():
        with pytest.raises(PySparkException) as caught:
            pipe.copy(**failing)
        lines = str(caught.value).splitlines()
        assert [n for n, line in enumerate(lines) if "[TXNLOG_" in line] == [1], caught.value
        assert lines[1].startswith("[TXNLOG_")
        assert told in lines[1]
        assert nothing_written(pipe)
        shutil.rmtree(pipe.checkpoint, ignore_errors=True)


def write_in_foreach_batch(pipe: Pipe) -> None:
    """Spark writes there with a clone of the session."""
    kafka = {"kafka.bootstrap.servers": pipe.bootstrap, "group.id": pipe.group}
    checkpoint = str(pipe.checkpoint)
    write = foreach_batch(topic=pipe.output, checkpointLocation=checkpoint, **kafka)
    rows = pipe.stream().select("key", "value").writeStream.foreachBatch(write)
    rows = rows.option("checkpointLocation", checkpoint)
    finish(rows.trigger(availableNow=True).start())


WRITES: dict[str, Callable[[Pipe], object]] = {
    "a stream": lambda pipe: pipe.copy(),
    "foreach_batch": write_in_foreach_batch,
    "a batch write": lambda pipe: pipe.save(pipe.rows(range(3))),
}


@pytest.mark.matrix
@pytest.mark.parametrize("kind", WRITES)
def test_a_write_that_spark_may_compute_in_part_twice_is_refused_until_the_setting_is_right(
    pipe: Pipe, kind: str
) -> None:
    pipe.feed(range(3))
    pipe.spark.conf.set(FULL_RETRY_PROPERTY, "false")
    try:
        line = error_of(lambda: WRITES[kind](pipe))
    finally:
        pipe.spark.conf.unset(FULL_RETRY_PROPERTY)
    assert f"[TXNLOG_SPARK_SETTING] {FULL_RETRY_PROPERTY}=false" in line
    assert "set it to true" in line
    assert nothing_written(pipe)
    WRITES[kind](pipe)
    assert pipe.output_values() == ["0", "1", "2"]
