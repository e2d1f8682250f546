"""Typed streams: keys and values with a format, in and out, on both brokers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType
from support.brokers.probe import wait_until
from support.clients.librdkafka import TIMEOUT_S, create_topic, producer
from support.spark.connector import PARTITIONS, Pipe, error_of, finish
from support.spark.format_cases import CASES, DDL_TEXTS, JSON, ORDER_DDL, TEXT, FormatCase, orders

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark import dead_letters, foreach_batch
from txnlog_spark.client_cache import ConnectionSettings, client_for
from txnlog_spark.errors import OptionError
from txnlog_spark.offsets import LATEST_OFFSET
from txnlog_spark.tools import dead_letters as tool

COUNT = 200
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
}
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
OTHERS_WEEKLY = pytest.mark.parametrize(
    "case",
    [JSON, *(pytest.param(case, marks=pytest.mark.weekly) for case in CASES if case is not JSON)],
    ids=lambda case: case.name,
)
"""The fate of a row does not depend on the format that could not read it."""
HEADERS = "array(struct('h' AS key, CAST('x' AS BINARY) AS value)) AS headers"


def order_rows(pipe: Any, case: FormatCase) -> DataFrame:
    """Orders with a key that has a field, and headers."""
    made = orders(COUNT, null_lists=case.null_lists)
    rows = pipe.spark.createDataFrame(made, f"value STRUCT<{ORDER_DDL}>")
    return rows.selectExpr("struct(coalesce(value.id, -1) AS id) AS key", "value", HEADERS)


def put(pipe: Any, topic: str, values: list[bytes | None]) -> None:
    """Values as they are, in partition 0."""
    made = producer(pipe.bootstrap)
    for value in values:
        made.produce(topic, value, partition=0)
    assert made.flush(TIMEOUT_S) == 0


@EACH
def test_what_a_write_encodes_a_read_decodes_with_keys_headers_and_tombstones(
    both_pipe, case: FormatCase
) -> None:
    rows = order_rows(both_pipe, case)
    formats = case.of_value() | case.of_key()
    both_pipe.save(rows, **formats)
    read = both_pipe.read(both_pipe.output, includeHeaders="true", **formats)
    found = read.select("key", "value", "headers").collect()
    assert sorted(map(str, found)) == sorted(map(str, rows.collect()))
    assert sum(row.value is None for row in found) == COUNT // 10


def test_text_is_read_as_text_and_written_from_it(both_pipe) -> None:
    formats = TEXT.of_value() | TEXT.of_key()
    rows = both_pipe.spark.createDataFrame(
        [(None, "a"), ("k", None), ("\u00e9", "")], "key string, value string"
    )
    both_pipe.save(rows, **formats)
    found = both_pipe.read(both_pipe.output, **formats).select("key", "value").collect()
    assert sorted(map(str, found)) == sorted(map(str, rows.collect()))


@EACH
def test_columns_are_the_fields_of_a_value_and_only_the_wanted_ones_are_read(
    both_pipe, case: FormatCase
) -> None:
    pipe = both_pipe
    rows = order_rows(pipe, case).where("value IS NOT NULL").select("value.*", "headers")
    columns = {"value.columns": "*", "key.columns": "id"}
    pipe.save(rows, **case.of_value(), **case.of_key(), **columns)
    read = pipe.read(pipe.output, **case.of_value(fields="tags,id"), **case.of_key())
    assert read.schema["value"].dataType.names == ["id", "tags"]
    found = read.select("key.id", "value.tags").collect()
    wanted = rows.select("id", "tags").collect()
    assert sorted(map(str, found)) == sorted(map(str, wanted))


@pytest.mark.parametrize("case", [*CASES, TEXT], ids=lambda case: case.name)
def test_a_malformed_value_is_one_error_that_names_its_record(pipe, case: FormatCase) -> None:
    put(pipe, pipe.input, [None, case.malformed])
    said = error_of(lambda: pipe.read(**case.of_value()).collect())
    place = f"the value of {pipe.input}-0 at offset 1 is malformed: "
    assert f"[TXNLOG_MALFORMED_VALUE] {place}" in said
    assert case.problem in said


@EACH
def test_one_bad_value_among_many_good_ones_is_found_and_kept_whole(pipe, case: FormatCase) -> None:
    pipe.save(order_rows(pipe, case), **case.of_value(), **case.of_key())
    put(pipe, pipe.output, [case.malformed])
    formats = case.of_value(mode="PERMISSIVE") | case.of_key()
    read = pipe.read(pipe.output, **formats)
    assert read.count() == COUNT + 1
    (bad,) = read.where("value_error IS NOT NULL").collect()
    assert (bad.value, bytes(bad.value_bytes), bad.key_bytes) == (None, case.malformed, None)
    assert case.problem in bad.value_error
    assert read.where("value_bytes IS NOT NULL OR key_bytes IS NOT NULL").count() == 1


def test_times_of_json_are_in_the_sessions_zone_or_in_that_of_the_option(pipe) -> None:
    put(pipe, pipe.input, [b'{"at": "2026-01-01 12:00:00"}'])
    schema = JSON.of_value(schema="at TIMESTAMP")
    zone = "spark.sql.session.timeZone"
    assert pipe.spark.conf.get(zone) == "UTC"
    seen = {}
    for session, option in (("UTC", None), ("Asia/Tokyo", None), ("UTC", "America/New_York")):
        pipe.spark.conf.set(zone, session)
        try:
            rows = pipe.read(**schema, timeZone=option)
            seen[session, option] = rows.selectExpr("unix_seconds(value.at)").first()[0]
            pipe.save(rows, **{"value.format": "json", "timeZone": option})
        finally:
            pipe.spark.conf.set(zone, "UTC")
    noon = seen["UTC", None]
    assert seen["Asia/Tokyo", None] == noon - 9 * 3600
    assert seen["UTC", "America/New_York"] == noon + 5 * 3600
    texts = [json.loads(value)["at"] for value in pipe.output_values()]
    wanted = ["+09:00", "-05:00", "Z"]
    assert sorted(texts) == sorted(f"2026-01-01T12:00:00.000{each}" for each in wanted)


def test_times_of_json_outside_of_an_sql_execution_need_the_option(pipe) -> None:
    put(pipe, pipe.input, [b'{"at": "2026-01-01 12:00:00"}'])
    schema = JSON.of_value(schema="at TIMESTAMP")
    with pytest.raises(Exception, match="option timeZone: set it to the session's time zone"):
        pipe.read(**schema).rdd.collect()
    rows = pipe.read(**schema, timeZone="Asia/Tokyo").selectExpr("unix_seconds(value.at) AS at")
    assert rows.rdd.collect() == rows.collect()


@OTHERS_WEEKLY
def test_right_rows_and_dead_letters_go_out_together_and_letters_go_back_once(
    both_pipe, case: FormatCase
) -> None:
    pipe = both_pipe
    pipe.save(order_rows(pipe, case).drop("key"), topic=pipe.input, **case.of_value())
    put(pipe, pipe.input, [case.malformed] * 3)
    letters = create_topic(pipe.bootstrap, f"{pipe.output}.dlq", 1)

    def run(*columns: str) -> None:
        read = pipe.stream(includeHeaders="true", **case.of_value(mode="PERMISSIVE"))
        rows = dead_letters(read, letters)
        rows = rows.withColumn("topic", sf.coalesce("topic", sf.lit(pipe.output)))
        writer = pipe.write(rows.select(*columns or "*"), topic=None, **case.of_value())
        finish(writer.trigger(availableNow=True).start())

    # Without the columns of bytes, each letter would be a tombstone.
    said = error_of(lambda: run("topic", "value", "headers"))
    assert "option column key_bytes: select key_bytes, value_bytes, too" in said
    # One transaction writes the right rows and the letters, and moves the offsets of both.
    run()
    assert pipe.read(pipe.output, **case.of_value()).count() == COUNT
    dead = pipe.read(letters, includeHeaders="true").collect()
    assert [bytes(row.value) for row in dead] == [case.malformed] * 3
    for row in dead:
        said = {header.key: bytes(header.value).decode() for header in row.headers}
        assert said["__connect.errors.topic"] == pipe.input
        assert said["__connect.errors.stage"] == "VALUE_CONVERTER"
        assert case.problem in said["__connect.errors.exception.message"]
    assert committed_at_the_ends(pipe), "those of the letters as well"
    run()
    assert pipe.read(letters).count() == 3

    # The tool shows the letters, and sends them back once: the second replay finds no letter.
    where = {"kafka.bootstrap.servers": pipe.bootstrap}
    client = client_for(ConnectionSettings.of(where))
    shown = tool.show(where, letters, 2)
    assert shown["dead_letters"] == 3
    assert all(case.problem in said for said in shown["first"].values())
    for execute, count in [(False, 3), (True, 3), (True, 0)]:
        done = tool.replay(pipe.spark, client, where, letters, None, execute=execute)
        assert (done["dead_letters"], done["executed"]) == (count, execute)
    back = [bytes(row.value) for row in pipe.read().where("value IS NOT NULL").collect()]
    assert back.count(case.malformed) == 6, "each of the three once more"
    # The values are still malformed, so the letters die again and can be sent again.
    run()
    done = tool.replay(pipe.spark, client, where, letters, pipe.output, execute=True)
    assert done["to"] == {pipe.output: 3}, "those that died again"


def committed_at_the_ends(pipe: Any) -> bool:
    """Return True if the group has read all of the input."""
    client = client_for(ConnectionSettings.of({"kafka.bootstrap.servers": pipe.bootstrap}))
    partitions = [TopicPartition(pipe.input, number) for number in range(PARTITIONS)]
    wanted = dict.fromkeys(partitions, LATEST_OFFSET)
    ends = {p: each.offset for p, each in client.list_offsets(wanted, read_committed=True).items()}
    return client.committed_offsets(pipe.group) == ends


@OTHERS_WEEKLY
def test_a_query_that_a_malformed_value_stopped_takes_up_dead_letters_on_its_checkpoint(
    both_pipe, case: FormatCase
) -> None:
    pipe = both_pipe
    letters = create_topic(pipe.bootstrap, f"{pipe.output}.dlq", 1)
    formats = case.of_value()

    def feed(first: int) -> None:
        rows = pipe.spark.range(first, first + 5, 1, 1).selectExpr(
            "named_struct('id', id, 'item', 'i', 'amount', 1D, 'tags', array()) AS value"
        )
        pipe.save(
            rows.selectExpr(f"CAST(value AS STRUCT<{ORDER_DDL}>) AS value"),
            topic=pipe.input,
            **formats,
        )

    def plain() -> None:
        rows = pipe.stream(**formats).select("key", "value")
        finish(pipe.write(rows, **formats).trigger(availableNow=True).start())

    feed(0)
    plain()
    put(pipe, pipe.input, [case.malformed])
    feed(5)
    assert "[TXNLOG_MALFORMED_VALUE]" in error_of(plain)

    for first in (None, 10):
        if first is not None:
            feed(first)
        read = pipe.stream(includeHeaders="true", **case.of_value(mode="PERMISSIVE"))
        rows = dead_letters(read, letters)
        rows = rows.withColumn("topic", sf.coalesce("topic", sf.lit(pipe.output)))
        finish(pipe.write(rows, topic=None, **formats).trigger(availableNow=True).start())
    ids = pipe.read(pipe.output, **formats).select("value.id").collect()
    assert sorted(row.id for row in ids) == list(range(15))
    assert [bytes(row.value) for row in pipe.read(letters).collect()] == [case.malformed]
    assert committed_at_the_ends(pipe)
    assert pipe.logged("offsets") == list(range(len(pipe.logged("offsets")))), "one checkpoint"


def test_dead_letters_are_all_rows_and_the_malformed_ones_have_topic_bytes_and_what_was_wrong(
    pipe,
) -> None:
    good, bad = b'{"id":1}', JSON.malformed
    given = [(good, good), (good, None), (good, bad), (bad, good), (bad, None), (None, bad)]
    rows = pipe.spark.createDataFrame(
        [(*pair, 0) for pair in given], "key binary, value binary, partition int"
    )
    pipe.save(rows.selectExpr("*", HEADERS), topic=pipe.input)
    schema = {"value.schema": "id INT", "value.format": "json", "value.mode": "PERMISSIVE"}
    schema |= {"key.schema": "id INT", "key.format": "json", "key.mode": "PERMISSIVE"}
    read = pipe.read(includeHeaders="true", **schema).withColumn("mine", sf.col("offset"))
    made = dead_letters(read, "dlq")
    assert not {"partition", "key_error", "value_error"} & set(made.columns)
    found = made.orderBy("mine").collect()
    right = [((1,), (1,)), ((1,), None)]
    assert [(row.key, row.value) for row in found] == [*right, *[(None, None)] * 4]
    assert [row.topic for row in found] == [None, None, *["dlq"] * 4]
    as_they_were = [(row.key_bytes, row.value_bytes) for row in found]
    assert as_they_were == [(None, None), (None, None), *given[2:]]
    stages = [
        [bytes(h.value).decode() for h in row.headers if h.key.endswith(".stage")] for row in found
    ]
    key, value = "KEY_CONVERTER", "VALUE_CONVERTER"
    assert stages == [[], [], [value], [key], [key], [value]]
    assert {row.headers[0].key for row in found} == {"h"}
    with pytest.raises(OptionError, match="column headers: dead_letters needs includeHeaders=true"):
        dead_letters(read.drop("headers"), "dlq")
    with pytest.raises(OptionError, match="column key_bytes: dead_letters needs all columns of"):
        dead_letters(read.drop("key_bytes"), "dlq")


@pytest.mark.chaos
@EACH
def test_a_compacted_topic_has_the_latest_value_of_each_key_and_the_tombstones(
    connector_spark, new_broker, tmp_path, unique: Callable[[str], str], case: FormatCase
) -> None:
    pipe = Pipe(connector_spark, new_broker({"log.cleaner.backoff.ms": "100"}), tmp_path, unique)
    topic = create_topic(pipe.bootstrap, unique("keyed"), 1, COMPACTED)
    formats = case.of_value() | case.of_key()
    for number in range(3):
        value = f"IF(id = 1 AND {number} = 2, NULL, named_struct('id', id, 'item', 'n{number}'))"
        rows = pipe.spark.range(4).selectExpr("struct(id) AS key", f"{value} AS value")
        pipe.save(rows, topic=topic, **formats)
    filler = pipe.spark.range(100, 140).selectExpr(
        "struct(id) AS key", "named_struct('id', id, 'item', repeat('x', 100)) AS value"
    )
    for row in range(100, 140, 10):
        pipe.save(filler.where(f"key.id BETWEEN {row} AND {row + 9}"), topic=topic, **formats)

    def left() -> list[Any]:
        rows = pipe.read(topic, **formats).where("key.id < 100").orderBy("offset")
        return rows.select("key.id", "value.item").collect()

    wait_until(lambda: len(left()) == 4, "the topic to be compacted")
    assert {row.id: row.item for row in left()} == {0: "n2", 1: None, 2: "n2", 3: "n2"}


@pytest.mark.weekly
@pytest.mark.parametrize(("text", "type_"), DDL_TEXTS)
def test_ddl_is_the_type_that_spark_makes_of_it(connector_spark, text: str, type_: str) -> None:
    assert connector_spark is not None, "fromDDL asks the session's JVM"
    assert DataType.fromDDL(text).simpleString() == type_


def test_pandas_and_a_table_that_is_read_as_a_stream_see_the_columns(
    pipe, unique: Callable[[str], str]
) -> None:
    pipe.save(order_rows(pipe, JSON).where("value IS NOT NULL"), **JSON.of_value(), **JSON.of_key())
    formats = JSON.of_value(fields="id,amount") | JSON.of_key()
    read = pipe.read(pipe.output, **formats).select("value.*")

    def doubled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.assign(amount=frame.amount * 2)

    written = [row[2] for (row,) in orders(COUNT) if row is not None]
    assert read.pandas_api().amount.sum() == sum(written)
    total = read.mapInPandas(doubled, "id LONG, amount DOUBLE").agg(sf.sum("amount")).first()[0]
    assert total == 2 * sum(written)
    name = unique("typed").replace("-", "_")
    columns = ", ".join(
        f"{field.name} {field.dataType.simpleString()}"
        for field in pipe.read(pipe.output, **formats).schema
    )
    pipe.spark.sql(f"CREATE TABLE {name} ({columns}) USING txnlog")
    try:
        where = {"kafka.bootstrap.servers": pipe.bootstrap, "subscribe": pipe.output}
        reader = pipe.spark.readStream.options(**where, startingOffsets="earliest", **formats)
        rows = reader.table(name).selectExpr("CAST(value.id AS STRING) AS value")
        finish(pipe.write(rows, topic=pipe.input).trigger(availableNow=True).start())
    finally:
        pipe.spark.sql(f"DROP TABLE {name}")
    assert pipe.read().count() == len(written)


def test_update_mode_in_foreach_batch_writes_columns(pipe) -> None:
    words = pipe.spark.createDataFrame([("a",), ("b",), ("a",)], "word STRING")
    columns = {"value.format": "json", "value.columns": "word"}
    pipe.save(words, topic=pipe.input, **columns)
    rows = pipe.stream(**{"value.format": "json", "value.schema": "word STRING"})
    counts = rows.groupBy("value.word").count()
    options = {"kafka.bootstrap.servers": pipe.bootstrap, "value.format": "json"}
    options |= {"value.columns": "*", "key.format": "json", "key.columns": "word"}
    write = foreach_batch(topic=pipe.output, checkpointLocation=str(pipe.checkpoint), **options)
    writer = counts.writeStream.outputMode("update").foreachBatch(write)
    writer = writer.option("checkpointLocation", str(pipe.checkpoint))
    finish(writer.trigger(availableNow=True).start())
    assert pipe.output_values() == ['{"word":"a","count":2}', '{"word":"b","count":1}']


@pytest.mark.chaos
def test_the_command_replays_each_letter_once(pipe) -> None:
    rows = pipe.spark.createDataFrame([("bad",), ("worse",)], "value string")
    header = f"'__connect.errors.topic' AS key, CAST('{pipe.output}' AS BINARY) AS value"
    pipe.save(rows.selectExpr("value", f"array(struct({header})) AS headers"), topic=pipe.input)
    words = ["--bootstrap-server", pipe.bootstrap, "--topic", pipe.input, "--json"]
    command = [sys.executable, "-m", "txnlog_spark", "dead-letters"]
    done = [
        subprocess.run([*command, *more, *words], check=False, capture_output=True, text=True)
        for more in (["replay", "--execute"], ["show"])
    ]
    assert [each.returncode for each in done] == [0, 0], done[0].stderr[-3000:]
    assert [json.loads(each.stdout)["dead_letters"] for each in done] == [2, 2]
    assert pipe.output_values("read_uncommitted") == ["bad", "worse"]


def test_a_record_that_is_no_dead_letter_is_shown_as_that_and_replayed_where_it_is_told(
    pipe,
) -> None:
    pipe.feed(["stray"])
    where = {"kafka.bootstrap.servers": pipe.bootstrap}
    client = client_for(ConnectionSettings.of(where))
    (said,) = tool.show(where, pipe.input, 5)["first"].values()
    assert said == "no dead letter: it has no header __connect.errors.topic"
    with pytest.raises(OptionError, match=r"--to: set it to a topic: 1 records of "):
        tool.replay(pipe.spark, client, where, pipe.input, None, execute=True)
    tool.replay(pipe.spark, client, where, pipe.input, pipe.output, execute=True)
    assert pipe.output_values("read_uncommitted") == ["stray"]
