"""The files of what was begun and of the outputs that a query has had, on a real disk."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.query.checkpoint_files import read_begun, write_begun
from support.query.commit_plans import build_plan, changed

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.checkpoint_files import write_file
from txnlog_spark.commit.journal import (
    ENDED_RUNS_MAX,
    begin,
    check_cluster,
    journal_folder,
    other_ids,
    record_output,
    record_path,
    recorded_digests,
)
from txnlog_spark.commit.output import Output
from txnlog_spark.commit.plan import Begun, OutputTopic
from txnlog_spark.errors import ProducerFenced, ProgressError, WrongCluster
from txnlog_spark.sink.commit_host import CommitHost
from txnlog_spark.storage import local
from txnlog_spark.storage.local import write_atomically

OUTPUT = Output("q", "/cp", "c0ffee", "side", "tid", "out", "c")
BEGUN = Begun(
    output=OUTPUT,
    batch_id=7,
    run_id="r",
    progress_group_id="g.progress.q",
    progress_partition=TopicPartition("out", 2),
    previous_batch_id=5,
    ended_runs=("r1", "r2"),
    group_digest="d",
    positions="p",
    has_state=True,
    topics={"out": OutputTopic("id", 3)},
    host="host",
    pid=12,
)


def test_the_record_survives_and_is_replaced_whole(tmp_path: Path) -> None:
    assert read_begun(tmp_path) is None
    for begun in (BEGUN, replace(BEGUN, batch_id=8)):
        write_begun(tmp_path, begun)
        assert read_begun(tmp_path) == begun
    assert os.listdir(tmp_path) == ["attempt.json"]


def test_the_record_has_its_golden_form(tmp_path: Path) -> None:
    write_begun(tmp_path, BEGUN)
    assert (tmp_path / "attempt.json").read_text() == (
        '{\n "version": 1,\n "output": {\n  "query_id": "q",\n  "checkpoint": "/cp",\n'
        '  "copy": "c0ffee",\n  "sink_name": "side",\n  "transactional_id": "tid",\n'
        '  "target": "out",\n  "cluster_id": "c"\n },\n "batch_id": 7,\n "run_id": "r",\n'
        ' "progress_group_id": "g.progress.q",\n "progress_partition": [\n  "out",\n  2\n ],\n'
        ' "previous_batch_id": 5,\n'
        ' "ended_runs": [\n  "r1",\n  "r2"\n ],\n "group_digest": "d",\n'
        ' "positions": "p",\n "has_state": true,\n'
        ' "topics": {\n  "out": [\n   "id",\n   3\n  ]\n },\n "host": "host",\n'
        ' "pid": 12\n}'
    )


def test_a_record_of_a_version_before_positions_state_and_topics_is_read(tmp_path: Path) -> None:
    write_begun(tmp_path, BEGUN)
    path = tmp_path / "attempt.json"
    value = json.loads(path.read_text())
    for name in ("positions", "has_state", "topics"):
        del value[name]
    path.write_text(json.dumps(value))
    assert read_begun(tmp_path) == replace(BEGUN, positions="", has_state=False, topics={})


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"version":1}', '{"version":2}', "\x00"])
def test_a_damaged_record_is_an_error_and_not_a_first_start(tmp_path: Path, text: str) -> None:
    write_atomically(tmp_path / "attempt.json", text.encode())
    with pytest.raises(ProgressError, match=r"attempt\.json cannot be used"):
        read_begun(tmp_path)


def test_named_sinks_lie_beside_each_other_and_not_in_the_way_of_the_ids() -> None:
    assert journal_folder("cp") == "cp/txnlog"
    assert journal_folder("cp", "ids") == "cp/txnlog/sinks/ids"


def begin_on(folder: Path, batch_id: int, run_id: str = "own", before: str | None = None) -> int:
    """A driver that read the record when it said `before`; how often it removed other runs."""
    plan = build_plan(batch_id, folder=str(folder), run_id=run_id, host="h", pid=7)
    plan = changed(plan, checkpoint=str(folder))
    if before is not None:
        plan = changed(plan, begun=replace(BEGUN, run_id=before))
    asked: list[int] = []
    located = plan.located(TopicPartition("out", 0), 2)
    CommitHost(remove_other_runs=lambda: asked.append(1)).run(begin(located))
    return len(asked)


def test_a_batch_is_begun_again_and_the_one_before_it_is_not(tmp_path: Path) -> None:
    for batch_id in (0, 1, 1):
        begin_on(tmp_path, batch_id)
    found = read_begun(tmp_path)
    assert found is not None
    assert (found.batch_id, found.previous_batch_id, found.pid) == (1, 0, 7)
    assert found.ended_runs == ()
    write_atomically(tmp_path / "offsets" / "1", b"v1")
    with pytest.raises(
        ProducerFenced, match="has begun batch 1, but this driver was about to begin"
    ):
        begin_on(tmp_path, 0, "another")
    assert read_begun(tmp_path) == found


@pytest.mark.invariant(57)
def test_a_run_that_another_has_ended_begins_nothing_however_many_came_since(
    tmp_path: Path,
) -> None:
    for number in range(ENDED_RUNS_MAX + 2):
        begin_on(tmp_path, 0, f"run-{number}")
    found = read_begun(tmp_path)
    assert found is not None
    assert found.ended_runs == tuple(f"run-{n}" for n in range(1, ENDED_RUNS_MAX + 1))
    for ended in ("run-1", f"run-{ENDED_RUNS_MAX}"):
        with pytest.raises(ProducerFenced, match="process 7 on host h has begun batch 0"):
            begin_on(tmp_path, 1, ended)
    assert read_begun(tmp_path) == found


@pytest.mark.parametrize(
    ("before", "last", "removed"),
    [
        (None, None, 1),
        ("crashed", "crashed", 1),
        ("crashed", "overtook", 0),
        (None, "overtook", 0),
        ("own", "own", 0),
    ],
)
def test_what_a_run_has_staged_that_has_begun_since_is_left_alone(
    tmp_path: Path, before: str | None, last: str | None, removed: int
) -> None:
    if last is not None:
        begin_on(tmp_path, 1, last)
    assert begin_on(tmp_path, 1, "own", before) == removed


def test_a_record_left_over_from_another_query_is_none_of_this_one(tmp_path: Path) -> None:
    write_begun(tmp_path, replace(BEGUN, batch_id=99, ended_runs=("own",)))
    begin_on(tmp_path, 0)
    found = read_begun(tmp_path)
    assert found is not None
    assert (found.batch_id, found.ended_runs) == (0, ())


def test_a_file_that_cannot_be_read_or_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "attempt.json").mkdir()
    with pytest.raises(ProgressError, match=r"attempt\.json"):
        begin_on(tmp_path, 0)
    with pytest.raises(ProgressError, match=r"attempt\.json cannot be written"):
        CommitHost().run(write_file(str(tmp_path / "attempt.json"), b"", durable=True))


def test_a_checkpoint_of_another_cluster_is_refused() -> None:
    check_cluster(OUTPUT, "c")
    check_cluster(OUTPUT, "")
    check_cluster(replace(OUTPUT, cluster_id=""), "other")
    with pytest.raises(WrongCluster, match="has written to cluster c so far"):
        check_cluster(OUTPUT, "other")


def record(folder: Path, name: str, copy: str = "") -> None:
    CommitHost().run(
        record_output(build_plan(transactional_id=name, folder=str(folder), copy=copy).committer)
    )


def others(folder: Path, name: str, copy: str = "") -> list[str]:
    committer = build_plan(transactional_id=name, folder=str(folder), copy=copy).committer
    return sorted(CommitHost().run(other_ids(committer)))


def test_the_bytes_at_rest_are_these(tmp_path: Path) -> None:
    record(tmp_path, "orders-1")
    (found,) = (tmp_path / "outputs").iterdir()
    committer = build_plan(transactional_id="orders-1", folder=str(tmp_path)).committer
    assert str(found) == record_path(committer)
    assert found.name == "32ecd062fef11317700fb72a3ae68798-8c7d6148d9c11ff8.json"
    assert found.read_text() == '{\n "version": 1,\n "transactional_id": "orders-1"\n}'


def test_all_ids_but_the_own_are_listed_whatever_their_names_are(tmp_path: Path) -> None:
    names = ["a", "A", "ä/..\\:*", "x" * 5000]
    for name in names:
        record(tmp_path, name)
        record(tmp_path, name)
    assert others(tmp_path, "another") == sorted(names)
    assert others(tmp_path, "a") == sorted(names[1:])


def test_an_id_of_another_place_is_the_own_one_and_its_progress_as_well(tmp_path: Path) -> None:
    here, moved = (
        build_plan(transactional_id="a", folder=str(tmp_path), checkpoint=place).committer
        for place in ("/here", "/elsewhere")
    )
    for committer in (here, moved):
        CommitHost().run(record_output(committer))
    assert CommitHost().run(other_ids(moved)) == {}
    assert CommitHost().run(recorded_digests(moved)) == {here.output.digest, moved.output.digest}
    assert others(tmp_path, "b") == ["a"]


def test_a_copy_of_the_checkpoint_has_ids_of_its_own(tmp_path: Path) -> None:
    record(tmp_path, "original")
    record(tmp_path, "copy", "c0ffee")
    record(tmp_path, "copy-2", "c0ffee")
    assert others(tmp_path, "copy", "c0ffee") == ["copy-2"]
    assert others(tmp_path, "later") == ["original"]


def test_new_folders_are_flushed_into_those_above_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(local, "flush_path", flushed.append)
    record(tmp_path / "txnlog", "a")
    assert flushed == [tmp_path, tmp_path / "txnlog", tmp_path / "txnlog" / "outputs"]
    record(tmp_path / "txnlog", "b")
    assert flushed[3:] == [tmp_path / "txnlog" / "outputs"]


def test_a_record_that_was_begun_and_not_renamed_is_none(tmp_path: Path) -> None:
    record(tmp_path, "a")
    (tmp_path / "outputs" / ".b.json.77.new").write_text("torn")
    assert others(tmp_path, "b") == ["a"]


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file")
    with pytest.raises(ProgressError, match="outputs cannot be used: Not a directory"):
        others(tmp_path, "a")
