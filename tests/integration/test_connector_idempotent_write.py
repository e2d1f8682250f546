"""Batch writes with txnAppId and txnVersion, as Delta Lake means them, and with source offsets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import functions as sf
from support.clients.librdkafka import create_topic, read_topic, values_of
from support.spark.connector import error_of

from txnlog_spark.client_cache import ConnectionSettings, client_for


def save(pipe: Any, values: list[str], version: int, **options: Any) -> None:
    named = {"txnAppId": pipe.group, "txnVersion": version}
    pipe.save(pipe.rows(values), **(named | options))


def client_of(pipe: Any) -> Any:
    return client_for(ConnectionSettings.of({"kafka.bootstrap.servers": pipe.bootstrap}))


@pytest.mark.matrix
def test_a_version_at_or_below_the_committed_one_is_skipped(both_pipe) -> None:
    pipe = both_pipe
    for version, values in [(3, ["a"]), (3, ["a"]), (2, ["older"]), (7, ["b"]), (7, ["b"])]:
        save(pipe, values, version)
    save(pipe, ["c"], 8)
    assert pipe.output_values("read_uncommitted") == ["a", "b", "c"]


def test_a_write_without_rows_counts_as_its_version(pipe) -> None:
    save(pipe, [], 5)
    save(pipe, ["older"], 4)
    save(pipe, ["a"], 6)
    assert pipe.output_values("read_uncommitted") == ["a"]


def test_applications_do_not_know_each_other(pipe) -> None:
    save(pipe, ["a"], 1)
    save(pipe, ["b"], 1, txnAppId=pipe.group + "-other")
    assert pipe.output_values("read_uncommitted") == ["a", "b"]


def test_an_application_has_one_transactional_id_for_all_its_writes_to_a_topic(pipe) -> None:
    for version in range(2):
        save(pipe, [str(version)], version)
    listed = [t.transactional_id for t in client_of(pipe).list_transactions()]
    wanted = [f"txnlog-app-{pipe.group}.{pipe.output}"]
    assert [name for name in listed if pipe.group in name] == wanted


def test_source_offsets_are_committed_with_the_rows_or_not_at_all(pipe) -> None:
    group = pipe.group + "-reader"

    def options_with(end: int) -> dict[str, str]:
        offsets = json.dumps({pipe.input: {"0": end, "1": 7}})
        return {"kafka.group.id": group, "sourceOffsets": offsets}

    save(pipe, ["a"], 1, **options_with(5))
    wanted = {(pipe.input, 0): 5, (pipe.input, 1): 7}
    assert client_of(pipe).committed_offsets(group) == wanted
    save(pipe, ["a"], 1, **options_with(9))
    assert client_of(pipe).committed_offsets(group) == wanted, "the write was skipped"
    save(pipe, ["b"], 2, **options_with(9))
    assert client_of(pipe).committed_offsets(group)[pipe.input, 0] == 9


def test_a_group_without_source_offsets_is_refused(pipe) -> None:
    text = error_of(lambda: pipe.save(pipe.rows(["a"]), **{"kafka.group.id": pipe.group}))
    assert "option kafka.group.id" in text
    assert "set sourceOffsets" in text


@pytest.mark.live
def test_rows_that_name_their_topics_are_a_target_of_their_own(both_pipe) -> None:
    """Delta Lake keeps (txnAppId, txnVersion) in each table: here each target counts by itself."""
    pipe = both_pipe
    second = create_topic(pipe.bootstrap, pipe.output + "-second", 1)
    named = {"txnAppId": pipe.group, "txnVersion": 4}
    pipe.save(pipe.rows(["by option"]), **named)
    rows = pipe.rows([pipe.output, second]).withColumn("topic", sf.col("value"))
    for _ in range(2):
        pipe.save(rows, topic=None, **named)
    pipe.save(pipe.rows(["by option"]), **named)
    assert pipe.output_values("read_uncommitted") == sorted(["by option", pipe.output])
    seen = read_topic(pipe.bootstrap, second, isolation="read_uncommitted")
    assert values_of(seen) == [second]
