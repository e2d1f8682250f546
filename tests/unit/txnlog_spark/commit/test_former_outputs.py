"""The files of the outputs that a query has had, on a real disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.query.commit_plans import build_plan

from txnlog_spark.commit.journal import other_ids, record_output, record_path, recorded_digests
from txnlog_spark.errors import ProgressError
from txnlog_spark.sink.commit_host import CommitHost
from txnlog_spark.storage import local


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
