"""The committer against real brokers, without Spark: what drivers, runs and workers may do."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.brokers.prepared import wait_until_marked
from support.brokers.probe import wait_until
from support.query.checkpoint_files import progress_of
from support.query.checkpoint_query import Query
from support.query.staged_messages import flip_a_byte, is_there, with_location

from txnlog_kafka.host.client import Client
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.client_cache import client_for
from txnlog_spark.commit import micro_batch
from txnlog_spark.errors import (
    OptionError,
    ProducerFenced,
    ProgressMissing,
    StagedBatchesInvalid,
    TransactionTimedOut,
    TxnLogError,
    WrongCluster,
)
from txnlog_spark.offsets import SourceNote, to_json_value, with_source_note
from txnlog_spark.sink.committer import abort_staged, commit_streaming
from txnlog_spark.sink.settings import read_sink_settings

pytestmark = pytest.mark.live

SWEEP = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


def test_batches_are_committed_with_offsets_and_progress(query: Query) -> None:
    query.commit(0, ["a", "bb"])
    query.commit(1, ["c"])
    client = client_for(query.settings.connection)
    assert query.values() == ["a", "bb", "c"]
    assert client.committed_offsets(query.group) == {(query.input, 0): 20}
    progress = progress_of(client, query.progress_group, query.query_id)
    assert progress is not None
    assert progress.next_batch_id == 2


def test_a_committed_batch_is_skipped_by_a_new_run_and_what_it_staged_removed(
    query: Query,
) -> None:
    query.commit(0, ["a"])
    again = query.stage(0, ["a"], "run-2")
    query.commit_staged(0, [again], "run-2")
    assert query.values("read_uncommitted") == ["a"]
    assert not is_there(query.settings.staging, again)


def test_what_a_crashed_run_has_staged_goes_when_the_next_run_begins_the_batch(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.log(0, 10)
    left = query.stage(0, ["a"], "crashed")
    with monkeypatch.context() as patched:
        patched.setattr(micro_batch, "produce_staged", dying)
        with pytest.raises(RuntimeError, match="dies here"):
            query.commit(0, ["a"], run="run-2")
    assert not is_there(query.settings.staging, left)
    query.commit(0, ["a"], run="run-3")
    assert query.values() == ["a"]


def test_an_empty_batch_still_moves_progress_and_offsets(query: Query) -> None:
    query.commit(0, [])
    query.log(1, 20)
    query.commit_staged(1, [])
    wait_until_marked(query.bootstrap)
    client = client_for(query.settings.connection)
    assert client.committed_offsets(query.group) == {(query.input, 0): 20}
    query.commit(2, ["a"])
    assert query.values() == ["a"]


def test_of_two_attempts_of_a_task_only_the_one_spark_chose_is_written(query: Query) -> None:
    query.log(0, 10)
    loser = query.stage(0, ["a", "b"], "run-1")
    winner = query.stage(0, ["a", "b"], "run-1")
    query.commit_staged(0, [winner])
    assert query.values("read_uncommitted") == ["a", "b"]
    assert not is_there(query.settings.staging, loser)


def test_a_task_without_a_message_stops_the_commit(query: Query) -> None:
    query.log(0, 10)
    with pytest.raises(TxnLogError, match="1 of 2 tasks gave no commit message"):
        commit_streaming(query.settings, [query.stage(0, ["a"]), None], 0, "run-1")
    assert query.values("read_uncommitted") == []


def test_a_damaged_staged_file_aborts_the_batch_and_its_replay_commits_it(
    query: Query, tmp_path: Path
) -> None:
    query.log(0, 10)
    message = query.stage(0, ["a", "bb"], "run-1", tmp_path / "staged")
    flip_a_byte(message)
    settings = with_location(query.settings, tmp_path / "staged")
    with pytest.raises(StagedBatchesInvalid, match="CRC-32C"):
        commit_streaming(settings, [message], 0, "run-1")
    abort_staged(settings, [message])
    assert not list((tmp_path / "staged").rglob("*.staged"))
    query.commit(0, ["a", "bb"], run="run-2")
    assert query.values() == ["a", "bb"]


def test_an_overtaken_driver_writes_nothing_fences_nobody_and_is_told_who_took_over(
    query: Query,
) -> None:
    query.commit(0, ["a"], run="old")
    query.commit(1, ["b"], run="new")
    epoch = query.epoch()
    for _ in range(2):
        with pytest.raises(ProducerFenced) as caught:
            query.commit(2, ["zombie"], run="old")
    text = str(caught.value)
    assert f"process {os.getpid()} on host {socket.gethostname()} has begun batch 1" in text
    assert query.epoch() == epoch
    query.commit(2, ["c"], run="new")
    assert query.values("read_uncommitted") == ["a", "b", "c"]


def test_a_driver_that_is_fenced_in_its_transaction_is_told_where_its_id_comes_from(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.commit(0, ["a"])
    produce = micro_batch.produce_staged

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(micro_batch, "produce_staged", produce)
        yield from produce(*arguments)
        query.commit_staged(1, [query.stage(1, ["b"], "new")], "new")

    monkeypatch.setattr(micro_batch, "produce_staged", overtaken)
    with pytest.raises(ProducerFenced, match=r"was made from kafka\.group\.id"):
        query.commit(1, ["b"])
    assert query.values() == ["a", "b"]


def test_two_queries_with_one_transactional_id_fence_each_other_in_a_transaction_only(
    broker, tmp_path: Path, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"kafka.transactional.id": unique("shared")}
    first = Query(broker, tmp_path / "1", lambda name: unique(f"{name}-1"), **shared)
    second = Query(broker, tmp_path / "2", lambda name: unique(f"{name}-2"), **shared)
    first.commit(0, ["a"], run="run-of-first")
    second.commit(0, ["x"], run="run-of-second")
    produce = micro_batch.produce_staged

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(micro_batch, "produce_staged", produce)
        second.commit(1, ["y"], run="run-of-second")
        return (yield from produce(*arguments))

    monkeypatch.setattr(micro_batch, "produce_staged", overtaken)
    with pytest.raises(ProducerFenced) as caught:
        first.commit(1, ["b"], run="run-of-first")
    assert shared["kafka.transactional.id"] in str(caught.value)
    first.commit(1, ["b"], run="next-run-of-first")
    assert (first.values(), second.values()) == (["a", "b"], ["x", "y"])


def test_a_query_that_was_quiet_for_longer_than_the_retention_goes_on_by_itself(
    query: Query,
) -> None:
    query.commit(0, ["a"])
    query.commit(1, ["b"])
    query.forget_progress()
    query.commit(2, ["c"], run="a week later")
    query.forget_progress()
    query.commit(3, ["d"], run="and another")
    query.commit(3, ["d"], run="replayed")
    query.commit(4, ["e"], run="replayed")
    assert query.values("read_uncommitted") == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_batch_that_was_begun_and_whose_progress_expired_stops_the_query_and_says_so(
    query: Query, is_committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.commit(0, ["a"])
    if is_committed:
        query.commit(1, ["b"])
    else:
        with monkeypatch.context() as patched:
            patched.setattr(micro_batch, "produce_staged", dying)
            with pytest.raises(RuntimeError, match="dies here"):
                query.commit(1, ["b"])
    query.forget_progress()
    with pytest.raises(ProgressMissing, match="expired") as caught:
        query.commit(1, ["b"], run="run-2")
    _, *commands = str(caught.value).splitlines()
    assert commands
    assert all(line.startswith("Do this") and "progress set" in line for line in commands)
    assert query.values() == (["a", "b"] if is_committed else ["a"])


def dying(*_args: object) -> Iterator[None]:
    raise RuntimeError("the driver dies here")
    yield


def test_a_lost_record_of_what_was_begun_loses_and_doubles_nothing(query: Query) -> None:
    query.commit(0, ["a"])
    (query.checkpoint / "txnlog" / "attempt.json").unlink()
    query.commit(0, ["a"], run="run-2")
    query.commit(1, ["b"], run="run-2")
    assert query.values("read_uncommitted") == ["a", "b"]


def test_tasks_that_saw_different_partition_counts_stop_the_commit(query: Query) -> None:
    query.log(0, 10)
    messages = [query.stage(0, ["a"], "r"), query.stage(0, ["b"], "r")]
    messages[1].partition_counts[query.output] = 3
    with pytest.raises(TxnLogError, match="partitions were added"):
        query.commit_staged(0, messages)
    assert query.values("read_uncommitted") == []


def test_tasks_of_another_query_stop_the_commit(query: Query) -> None:
    query.log(0, 10)
    message = query.stage(0, ["a"], "r")
    (query.checkpoint / "metadata").write_text('{"id": "someone-else"}')
    with pytest.raises(TxnLogError, match="this query's own checkpoint"):
        query.commit_staged(0, [message])


@pytest.mark.parametrize(
    ("offsets", "told"),
    [
        ('{"some-event-hub":{"0":12}}', "some-event-hub-0 at 12 do not exist there"),
        ('{"INPUT":{"0":99}}', "its logs end before INPUT-0 at 99"),
    ],
)
def test_offsets_that_are_none_of_this_cluster_are_refused_for_a_group_and_taken_without_one(
    query: Query, offsets: str, told: str
) -> None:
    """Spark's own source on another cluster, or a connector that writes the same shape."""
    line = offsets.replace("INPUT", query.input)
    (query.checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{line}")
    with pytest.raises(WrongCluster) as caught:
        query.commit_staged(0, [query.stage(0, ["a"])])
    assert told.replace("INPUT", query.input) in str(caught.value)
    assert query.values("read_uncommitted") == []
    options = {
        "kafka.bootstrap.servers": query.bootstrap,
        "checkpointLocation": str(query.checkpoint),
    }
    alone = read_sink_settings(options, streaming=True)  # as the error says
    commit_streaming(alone, [query.stage(0, ["a"], "again")], 0, "run-2")
    assert query.values("read_uncommitted") == ["a"]


def log_with_group(query: Query, batch_id: int, group_id: str) -> None:
    cluster_id = client_for(query.settings.connection).session.cluster.cluster_id or ""
    offsets = to_json_value({TopicPartition(query.input, 0): 10 * (batch_id + 1)})
    line = json.dumps(with_source_note(offsets, SourceNote(cluster_id, group_id)))
    (query.checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{line}")


def test_a_group_on_the_reader_only_is_warned_of_once_a_run(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    options = {
        "kafka.bootstrap.servers": query.bootstrap,
        "checkpointLocation": str(query.checkpoint),
        "topic": query.input,
    }
    alone = read_sink_settings(options, streaming=True)
    with caplog.at_level(logging.WARNING):
        for batch_id in range(3):
            log_with_group(query, batch_id, "lag")
            commit_streaming(alone, [query.stage(batch_id, ["a"])], batch_id, "run-1")
    assert caplog.text.count("kafka.group.id=lag is set on the reader only") == 1
    assert caplog.text.count(f"writes to {query.input}, which it also reads") == 1


def test_another_group_on_the_reader_than_on_the_writer_is_refused(query: Query) -> None:
    log_with_group(query, 0, "other")
    with pytest.raises(OptionError, match="set it to 'other' on the writer as well"):
        query.commit_staged(0, [query.stage(0, ["a"])])
    assert query.values("read_uncommitted") == []


def test_the_error_names_the_timeout_that_the_batch_needs_and_following_it_commits_it_once(
    new_broker, tmp_path: Path, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = new_broker(SWEEP)
    short = {"kafka.transaction.timeout.ms": "1000"}
    query = Query(broker, tmp_path / "checkpoint", unique, **short)
    query.commit(0, ["first"])
    transactional_id = query.settings.commit_options.transactional_id_of(query.query_id)
    produce_staged = micro_batch.produce_staged
    tries = []

    def aborted() -> bool:
        with Client(query.bootstrap) as client:
            found = client.describe_transaction(transactional_id)
        return found is not None and found.state == "CompleteAbort"

    def slow(session, transaction, plan, produced):
        tries.append(plan.batch_id)
        yield from produce_staged(
            session, transaction, replace(plan, staged=plan.staged[:1]), produced
        )
        wait_until(aborted, "the coordinator has aborted the transaction")
        yield from produce_staged(
            session, transaction, replace(plan, staged=plan.staged[1:]), produced
        )

    # The coordinator aborts the transaction between the two halves of the batch.
    with monkeypatch.context() as patched:
        patched.setattr(micro_batch, "produce_staged", slow)
        with pytest.raises(TransactionTimedOut) as caught:
            query.commit(1, ["a", "bb"])
    text = str(caught.value)
    assert "kafka.transaction.timeout.ms=1000" in text
    assert "transaction.max.timeout.ms, 900000 here" in text
    assert tries == [1], "the same batch with the same timeout is not tried again"
    assert query.values() == ["first"]
    # The restart takes the timeout that the error names.
    needed = re.search(r"to at least (\d+)", text)
    assert needed is not None
    options = {
        "kafka.bootstrap.servers": query.bootstrap,
        "checkpointLocation": str(query.checkpoint),
        "kafka.group.id": query.group,
        "kafka.transaction.timeout.ms": needed.group(1),
    }
    query.settings = read_sink_settings(options, streaming=True)
    query.commit(1, ["a", "bb"], run="run-2")
    assert query.values() == ["a", "bb", "first"]
