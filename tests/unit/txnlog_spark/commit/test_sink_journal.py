"""The two files that the sink keeps in the checkpoint: their form, and that they never go back."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.checkpoint_files import read_attempt, read_identity, write_attempt, write_identity
from support.commit_plans import build_plan

from txnlog_spark.commit import journal
from txnlog_spark.commit.files import write_file
from txnlog_spark.commit.journal import Attempt, Journal, RecordedIdentity, check_cluster
from txnlog_spark.errors import ProducerFenced, ProgressError, WrongCluster
from txnlog_spark.protocol.effects import ReadFile
from txnlog_spark.sink.disk import Disk
from txnlog_spark.storage.local import write_atomically

IDENTITY = RecordedIdentity("q", "r", "tid", 1000, 3, True, 6, 2, 7)
ATTEMPT = Attempt("q", 7, "r", "tid", "g.progress.q", ("out", 2), "d", "c", "host", 12)
OLD = (
    b'{"version": 2, "query_id": "q", "run_id": "r", "transactional_id": "tid", "producer_id": 10,'
    b' "producer_epoch": 3, "progress_group_id": "p", "progress_partition": ["out", 2],'
    b' "next_batch_id": 7}'
)


def test_both_survive_and_are_replaced_whole(tmp_path: Path) -> None:
    assert read_identity(tmp_path) is None
    assert read_attempt(tmp_path) is None
    assert write_identity(tmp_path, IDENTITY)
    write_attempt(tmp_path, ATTEMPT)
    assert (read_identity(tmp_path), read_attempt(tmp_path)) == (IDENTITY, ATTEMPT)
    assert sorted(os.listdir(tmp_path)) == ["attempt.json", "identity.json"]


def test_both_have_their_golden_form(tmp_path: Path) -> None:
    write_identity(tmp_path, IDENTITY)
    write_attempt(tmp_path, ATTEMPT)
    assert (tmp_path / "identity.json").read_text() == (
        '{\n "version": 3,\n "query_id": "q",\n "run_id": "r",\n "transactional_id": "tid",\n'
        ' "producer_id": 1000,\n "producer_epoch": 3,\n "initialised": true,\n'
        ' "last_batch_id": 6,\n "transaction_version": 2,\n "next_batch_id": 7\n}'
    )
    assert (tmp_path / "attempt.json").read_text() == (
        '{\n "version": 1,\n "query_id": "q",\n "batch_id": 7,\n "run_id": "r",\n'
        ' "transactional_id": "tid",\n "progress_group_id": "g.progress.q",\n'
        ' "progress_partition": [\n  "out",\n  2\n ],\n "group_digest": "d",\n'
        ' "cluster_id": "c",\n "host": "host",\n "pid": 12\n}'
    )


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version":1}', '{"version":2}'])
def test_a_damaged_attempt_is_an_error_and_not_a_first_start(tmp_path: Path, text: str) -> None:
    write_atomically(tmp_path / "attempt.json", text.encode())
    with pytest.raises(ProgressError, match=r"attempt\.json"):
        read_attempt(tmp_path)


def test_an_attempt_that_another_driver_records_meanwhile_is_found(tmp_path: Path) -> None:
    write_attempt(tmp_path, ATTEMPT)
    write_identity(tmp_path, IDENTITY)
    operation = journal.read_attempt("folder")
    assert next(operation) == ReadFile("folder/attempt.json")
    assert operation.send(None) == ReadFile("folder/identity.json")  # there was none yet
    asked = operation.send((tmp_path / "identity.json").read_bytes())
    assert asked == ReadFile("folder/attempt.json")
    with pytest.raises(StopIteration) as stop:
        operation.send((tmp_path / "attempt.json").read_bytes())
    assert stop.value.value == ATTEMPT


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version":2}', '{"version":3}'])
def test_an_identity_without_an_attempt_that_says_nothing_is_not_a_first_start(
    tmp_path: Path, text: str
) -> None:
    write_atomically(tmp_path / "identity.json", text.encode())
    with pytest.raises(ProgressError, match=r"identity\.json"):
        read_attempt(tmp_path)


@pytest.mark.parametrize("text", ["", '{"version": 3, "query', "\x00" * 20])
def test_a_torn_identity_costs_a_new_epoch_and_nothing_else(tmp_path: Path, text: str) -> None:
    write_attempt(tmp_path, ATTEMPT)
    (tmp_path / "identity.json").write_text(text)
    assert read_identity(tmp_path) is None
    assert read_attempt(tmp_path) == ATTEMPT
    assert write_identity(tmp_path, IDENTITY)


def test_an_identity_of_version_2_says_which_batch_may_have_been_begun(tmp_path: Path) -> None:
    write_atomically(tmp_path / "identity.json", OLD)
    assert read_attempt(tmp_path) == Attempt("q", 7, "r", "tid", "p", ("out", 2))
    found = read_identity(tmp_path)
    assert found is not None
    assert (found.producer_id, found.next_batch_id, found.initialised) == (10, 7, False)


def test_an_identity_of_version_1_says_nothing_of_the_progress(tmp_path: Path) -> None:
    write_atomically(
        tmp_path / "identity.json",
        b'{"version": 1, "query_id": "q", "run_id": "r", "transactional_id": "tid",'
        b' "producer_id": 1000, "producer_epoch": 3}',
    )
    assert read_attempt(tmp_path) == Attempt("q", None, "r", "tid", "", None)


@pytest.mark.parametrize(
    ("changes", "is_written"),
    [
        ({"next_batch_id": 6}, False),
        ({"producer_epoch": 2}, False),
        ({"producer_epoch": 2, "next_batch_id": 8}, False),
        ({"producer_epoch": 4, "next_batch_id": 8}, True),
        ({"producer_id": 5, "producer_epoch": 0}, True),
        ({"query_id": "another", "next_batch_id": 0}, True),
    ],
)
def test_the_identity_never_goes_back(tmp_path: Path, changes, is_written: bool) -> None:
    write_identity(tmp_path, IDENTITY)
    assert write_identity(tmp_path, replace(IDENTITY, **changes)) == is_written
    expected = replace(IDENTITY, **changes) if is_written else IDENTITY
    assert read_identity(tmp_path) == expected


@pytest.mark.parametrize(
    ("changes", "is_written"),
    [
        ({"run_id": "another"}, False),
        ({"run_id": "another", "next_batch_id": 8}, True),
        ({}, True),
    ],
)
def test_who_found_the_batch_committed_leaves_the_record_of_who_did_it(
    tmp_path: Path, changes, is_written: bool
) -> None:
    write_identity(tmp_path, IDENTITY)
    other = replace(IDENTITY, **changes)
    assert write_identity(tmp_path, other, was_skipped=True) == is_written
    assert write_identity(tmp_path, other)


class Driver:
    """One driver's journal of a query, on disk."""

    def __init__(self, folder: Path, batch_id: int, **changes) -> None:
        self.plan = build_plan(batch_id, **changes)
        self.journal = Journal(str(folder), "c", "host", 7)

    def begin(self) -> None:
        Disk().run(self.journal.begin(self.plan))


def test_a_batch_is_begun_again_and_the_one_before_it_is_not(tmp_path: Path) -> None:
    for batch_id in (0, 1, 1):
        Driver(tmp_path, batch_id).begin()
    recorded = read_attempt(tmp_path)
    assert recorded is not None
    assert (recorded.batch_id, recorded.cluster_id, recorded.pid) == (1, "c", 7)
    with pytest.raises(ProducerFenced, match="has begun batch 1, this one was about to begin"):
        Driver(tmp_path, 0).begin()
    assert read_attempt(tmp_path) == recorded


@pytest.mark.parametrize(
    ("previous", "recorded", "removed"),
    [
        ("", None, 1),
        ("crashed", "crashed", 1),
        ("crashed", "overtook", 0),
        ("", "overtook", 0),
        ("crashed", "own", 0),
    ],
)
def test_what_a_run_has_staged_that_has_begun_since_is_left_alone(
    tmp_path: Path, previous: str, recorded: str | None, removed: int
) -> None:
    if recorded is not None:
        Driver(tmp_path, 1, run_id=recorded).begin()
    driver = Driver(tmp_path, 1, run_id="own")
    asked = []
    disk = Disk(on_run_began=lambda: asked.append(1))
    disk.run(replace(driver.journal, previous_run_id=previous).begin(driver.plan))
    assert len(asked) == removed


def test_files_left_over_from_another_query_are_none_of_this_one(tmp_path: Path) -> None:
    write_attempt(tmp_path, replace(ATTEMPT, query_id="another", batch_id=99))
    Driver(tmp_path, 0).begin()
    recorded = read_attempt(tmp_path)
    assert recorded is not None
    assert recorded.batch_id == 0


@pytest.mark.parametrize("name", ["attempt.json", "identity.json"])
def test_a_file_that_cannot_be_read_or_written_is_an_error_that_names_it(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ProgressError, match=name):
        Driver(tmp_path, 0).begin()
    with pytest.raises(ProgressError, match=rf"{name} cannot be written"):
        Disk().run(write_file(str(tmp_path / name), b"", durable=True))


def test_a_checkpoint_of_another_cluster_is_refused() -> None:
    check_cluster(ATTEMPT, "c")
    check_cluster(ATTEMPT, "")
    check_cluster(replace(ATTEMPT, cluster_id=""), "other")
    with pytest.raises(WrongCluster, match="has written to cluster c so far"):
        check_cluster(ATTEMPT, "other")
