"""`python -m txnlog_spark progress`: each remedy that an error names, carried out to the letter."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from support.brokers.probe import wait_until
from support.clients.librdkafka import TIMEOUT_S, committed_offsets, transact, transactional
from support.query.checkpoint_files import write_begun
from support.query.checkpoint_query import Query

from txnlog_kafka.operations import admin as operations
from txnlog_spark.commit import micro_batch
from txnlog_spark.errors import ProducerFenced, ProgressBehind, ProgressMissing
from txnlog_spark.tools.cli import main

pytestmark = pytest.mark.live


class Tool:
    """Runs the command on one query."""

    def __init__(self, query: Query, capsys: pytest.CaptureFixture[str]) -> None:
        self.query = query
        self.where = ["--bootstrap-server", query.bootstrap, "--checkpoint", str(query.checkpoint)]
        self._capsys = capsys

    def run(self, action: str, *words: str, code: int = 0) -> str:
        """Run the tool; return its output, or its standard error if `code` is a failure."""
        self._capsys.readouterr()
        found = main(["progress", action, *self.where, *words])
        out, error = self._capsys.readouterr()
        assert found == code, error
        return error if code else out

    def show(self) -> dict:
        """Return the tool's report as JSON."""
        return json.loads(self.run("show", "--json"))

    def named_by(self, error: BaseException) -> dict[str, list[str]]:
        """The words of each command at the end of an error, by when it is to be run."""
        found = re.findall(r"\nDo this(.*): python -m txnlog_spark progress (.*)", str(error))
        assert found, str(error)
        return {when.strip(): shlex.split(words) for when, words in found}

    def obey(self, words: list[str]) -> None:
        """First as a trial, which must change nothing, and then for good."""
        # Of a transaction that was aborted, the markers may still be on their way.
        wait_until(
            lambda: not str(self.show()["transaction_state"]).startswith("Prepare"), "its end"
        )
        before = self.show()
        assert main(["progress", *words[:-1]]) == 0
        assert self.show() == before
        assert main(["progress", *words]) == 0


@pytest.fixture
def tool(query: Query, capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(query, capsys)


def run_batches(query: Query, numbers: range, run: str) -> None:
    """Batches with this sink, each noted by Spark."""
    for number in numbers:
        query.commit(number, [f"v{number:02}"], run=run)
        query.note_done(number)


def begin_only(query: Query, batch_id: int) -> None:
    """The driver died after it had noted the attempt, and before Kafka's commit."""
    folder = query.checkpoint / "txnlog"
    write_begun(folder, replace(query.begun(), batch_id=batch_id))


def group_offset(query: Query) -> int:
    return committed_offsets(query.bootstrap, query.group, query.input, 1)[0]


def test_show_tells_what_the_brokers_and_the_checkpoint_say(query: Query, tool: Tool) -> None:
    run_batches(query, range(3), "run-1")
    query.log(3, 40)
    found = tool.show()
    assert (found["query_id"], found["group_id"]) == (query.query_id, query.group)
    assert (found["next_batch_id"], found["transaction_state"]) == (3, "CompleteCommit")
    assert found["progress_group_id"] == query.progress_group
    assert found["group_offsets"] == {f"{query.input}-0": 30}
    checkpoint = found.pop("checkpoint")
    assert checkpoint["last_batch_in_offsets"] == 3
    assert checkpoint["last_batch_in_commits"] == checkpoint["last_batch_begun"] == 2
    text = tool.run("show")
    assert "next_batch_id: 3\n" in text
    assert "checkpoint:\n  last_batch_in_offsets: 3\n" in text
    tool.where[2:] = ["--group", query.group, "--query-id", query.query_id]
    assert tool.show() == found


def test_batches_of_another_sink_in_between_are_said_to_be_done(query: Query, tool: Tool) -> None:
    """The trial of a migration, there and back: nothing is lost and nothing doubled."""
    run_batches(query, range(10), "run-1")
    elsewhere = [f"v{number:02}" for number in range(10, 20)]
    for number in range(10, 20):  # Spark's own sink writes these, and moves neither of our groups
        query.log(number, 10 * (number + 1))
        query.note_done(number)
    with pytest.raises(ProgressBehind) as stopped:
        query.commit(20, ["v20"], run="run-2")
    words = tool.named_by(stopped.value)["if the output has all batches below 20"]
    assert "--to-checkpoint" in words
    tool.obey(words)
    assert tool.show()["next_batch_id"] == 20
    assert group_offset(query) == 200, "a lost checkpoint would double what the other sink wrote"
    run_batches(query, range(20, 23), "run-3")
    assert query.values() == sorted({f"v{number:02}" for number in range(23)} - {*elsewhere})
    assert group_offset(query) == 230


@pytest.mark.parametrize("is_written", [True, False])
def test_after_lost_progress_the_last_batch_is_written_once_as_the_person_says(
    query: Query, tool: Tool, is_written: bool
) -> None:
    """A driver died in batch 3, before or after Kafka's commit; then everything expired."""
    run_batches(query, range(3), "run-1")
    if is_written:
        query.commit(3, ["v03"])
    else:
        query.log(3, 40)
        begin_only(query, 3)
    query.forget_progress()
    with pytest.raises(ProgressMissing) as stopped:
        query.commit(3, ["v03"], run="run-2")
    named = tool.named_by(stopped.value)
    assert set(named) == {"if the output has batch 3", "if the output lacks batch 3"}
    tool.obey(named[f"if the output {'has' if is_written else 'lacks'} batch 3"])
    query.commit(3, ["v03"], run="run-3")
    query.commit(4, ["v04"], run="run-3")
    assert query.values() == ["v00", "v01", "v02", "v03", "v04"]
    assert group_offset(query) == 50


def test_a_step_back_would_double_and_is_refused(query: Query, tool: Tool) -> None:
    run_batches(query, range(3), "run-1")
    (query.checkpoint / "commits" / "2").unlink()  # the driver died between the two commits
    for words in (["--to-checkpoint"], ["--next-batch-id", "1"]):
        said = tool.run("set", *words, "--execute", code=1)
        assert "the next batch of query" in said
        assert "would write batches again" in said
    query.commit(2, ["v02"], run="run-2")
    assert query.values() == ["v00", "v01", "v02"]


def test_batches_that_were_never_planned_cannot_be_done(query: Query, tool: Tool) -> None:
    run_batches(query, range(2), "run-1")
    said = tool.run("set", "--next-batch-id", "3", "--execute", code=1)
    assert "the last batch that Spark planned" in said


def test_an_open_transaction_of_the_query_is_named_and_left_alone(query: Query, tool: Tool) -> None:
    run_batches(query, range(2), "run-1")
    name = tool.show()["transactional_id"]
    writer = transactional(query.bootstrap, name)
    transact(writer, query.output, "open", commits=None)
    said = tool.run("set", "--next-batch-id", "2", "--execute", code=1)
    assert f"transactional id '{name}' of the query is Ongoing" in said
    writer.commit_transaction(TIMEOUT_S)


def test_a_driver_that_lives_is_fenced(query: Query, tool: Tool, monkeypatch) -> None:
    run_batches(query, range(2), "run-1")
    query.log(2, 30)
    begin = micro_batch.begin

    def overtaken(*arguments: Any, **named: Any) -> Any:
        """Set the progress as an operator, after the driver's InitProducerId."""
        tool.run("set", "--next-batch-id", "2", "--execute")
        return (yield from begin(*arguments, **named))

    monkeypatch.setattr(micro_batch, "begin", overtaken)
    with pytest.raises(ProducerFenced):
        query.commit(2, ["zombie"])
    assert query.values() == ["v00", "v01"]


def test_the_markers_of_a_driver_that_has_just_committed_are_waited_for(
    query: Query, tool: Tool, monkeypatch
) -> None:
    run_batches(query, range(2), "run-1")
    describe, states = operations.describe_transaction, ["PrepareCommit", "PrepareCommit"]

    def decided_at_first(session, transactional_id):
        found = yield from describe(session, transactional_id)
        return replace(found, state=states.pop()) if states else found

    monkeypatch.setattr(operations, "describe_transaction", decided_at_first)
    tool.run("set", "--next-batch-id", "2")
    assert states == []


def test_a_checkpoint_without_a_batch_of_ours_has_nothing_to_set(query: Query, tool: Tool) -> None:
    for words in (["show"], ["set", "--to-checkpoint"]):
        assert "has begun no batch with format('txnlog')" in tool.run(*words, code=1)


def test_a_directory_that_is_no_checkpoint_is_named(query: Query, tool: Tool, tmp_path) -> None:
    tool.where[-1] = str(tmp_path / "nosuch")
    assert "nosuch/metadata cannot be used" in tool.run("show", code=1)


@pytest.mark.parametrize(
    "words",
    [
        ["show"],
        ["set", "--bootstrap-server", "h:1", "--checkpoint", "d"],
        ["set", "--bootstrap-server", "h:1", "--checkpoint", "d", "--next-batch-id", "-1"],
        ["set", "--bootstrap-server", "h:1", "--path", "p", "--checkpoint", "d", "--to-checkpoint"],
    ],
)
def test_wrong_options_of_progress_end_with_code_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["progress", *words])
    assert ended.value.code == 2
