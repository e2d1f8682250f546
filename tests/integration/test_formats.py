"""Typed streams: keys and values with a format, in and out, on both brokers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from support.clients.librdkafka import create_topic, produce_values, read_topic
from support.spark.connector import error_of, finish
from support.spark.format_cases import AVRO, JSON, ORDER_DDL, FormatCase, orders

from txnlog_spark import dead_letters
from txnlog_spark.tools.cli import main

pytestmark = pytest.mark.live
COUNT = 200
EACH = pytest.mark.parametrize("case", [JSON, AVRO], ids=lambda case: case.name)


def written(pipe: Any, case: FormatCase, count: int = COUNT) -> DataFrame:
    """Orders in the output topic, key and value in this format, with headers; the same as rows."""
    rows = pipe.spark.createDataFrame(orders(count), f"value STRUCT<{ORDER_DDL}>").selectExpr(
        "struct(coalesce(value.id, -1) AS id) AS key",
        "value",
        "array(struct('h' AS key, CAST('x' AS BINARY) AS value)) AS headers",
    )
    key = {"schema": {"json": "id BIGINT", "avro": KEY_AVRO}[case.name]}
    pipe.save(rows, **case.of("value"), **case.of("key", **key))
    return rows


KEY_AVRO = json.dumps(
    {
        "type": "record",
        "name": "shop.Key",
        "fields": [{"name": "id", "type": "long"}],
    }
)


def key_options(case: FormatCase) -> dict[str, str]:
    return case.of("key", schema={"json": "id BIGINT", "avro": KEY_AVRO}[case.name])


@EACH
def test_what_a_write_encodes_a_read_decodes_with_keys_headers_and_tombstones(
    both_pipe, case: FormatCase
) -> None:
    rows = written(both_pipe, case)
    read = both_pipe.read(
        both_pipe.output, includeHeaders="true", **case.of("value"), **key_options(case)
    )
    found = read.select("key", "value", "headers").collect()
    assert sorted(map(str, found)) == sorted(map(str, rows.collect()))
    assert sum(row.value is None for row in found) == COUNT // 10


@EACH
def test_a_malformed_value_is_one_error_that_names_its_record(pipe, case: FormatCase) -> None:
    produce_values(pipe.bootstrap, pipe.input, [case.malformed], partition=2)
    said = error_of(lambda: pipe.read(**case.of("value")).collect())
    assert said.startswith(f"[TXNLOG_MALFORMED_VALUE] the value of {pipe.input}-2 at offset 0 is ")
    assert case.problem in said


@EACH
def test_good_rows_and_dead_letters_are_in_one_transaction_and_go_back_once(
    both_pipe, capsys: pytest.CaptureFixture[str], case: FormatCase
) -> None:
    pipe = both_pipe
    written(pipe, case)
    letters = create_topic(pipe.bootstrap, f"{pipe.output}.dlq", 1)
    produce_values(pipe.bootstrap, pipe.output, [case.malformed] * 3)
    loud = create_topic(pipe.bootstrap, f"{pipe.output}-loud", 2)

    def run() -> None:
        read = pipe.stream(
            subscribe=pipe.output, includeHeaders="true", **case.of("value", mode="PERMISSIVE")
        )
        good = read.where("value_error IS NULL").select(sf.lit(loud).alias("topic"), "key", "value")
        both = good.unionByName(dead_letters(read, letters), allowMissingColumns=True)
        finish(
            pipe.write(both, topic=None, **case.of("value")).trigger(availableNow=True).start()
        )

    run()
    assert pipe.read(loud, **case.of("value")).count() == COUNT
    dead = pipe.read(letters, includeHeaders="true").collect()
    assert [bytes(row.value) for row in dead] == [case.malformed] * 3
    for row in dead:
        said = {header.key: bytes(header.value).decode() for header in row.headers}
        assert said["__connect.errors.topic"] == pipe.output
        assert said["__connect.errors.stage"] == "VALUE_CONVERTER"
        assert case.problem in said["__connect.errors.exception.message"]
    group = pipe.group
    committed = pipe.client().committed_offsets(group)
    assert sum(committed.values()) == COUNT + 3
