"""Files of checkpoints: what is taken out, lost and put back, of one query or of several."""

from __future__ import annotations

import pytest

from txnlog_testing.prove.checkpoint import COMMITS, OFFSETS, Checkpoints


@pytest.fixture
def checkpoints(tmp_path):
    """Two queries below one folder: one with three batches, one with two of which one is open."""
    for query, offsets, commits in (("a", 3, 3), ("b/c", 2, 1)):
        for log, count in ((OFFSETS, offsets), (COMMITS, commits)):
            folder = tmp_path / "root" / query / log
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / str(number)).write_text(f"v1 {query} {number}")
                (folder / f".{number}.crc").touch()
    return Checkpoints(tmp_path / "root")


def names(found):
    return sorted(str(path) for path in found)


def test_the_last_entry_of_each_query_is_taken_with_its_checksum(checkpoints):
    root = checkpoints.root
    assert checkpoints.folders() == [root / "a", root / "b" / "c"]
    assert checkpoints.take_last(COMMITS) == ["commits/2", "commits/0"]
    left = [root / "a" / COMMITS / str(number) for number in (0, 1)]
    assert names(checkpoints.found(f"{COMMITS}/*")) == names(left)
    assert not (root / "a" / COMMITS / ".2.crc").exists()
    assert checkpoints.take_last(COMMITS) == ["commits/1"]


def test_a_backup_is_put_in_the_place_of_what_was_written_since(checkpoints, tmp_path):
    before = checkpoints.found(f"{OFFSETS}/*")
    checkpoints.back_up(tmp_path / "backup")
    (checkpoints.root / "a" / OFFSETS / "3").touch()
    checkpoints.restore(tmp_path / "backup")
    assert checkpoints.found(f"{OFFSETS}/*") == before


def test_a_job_that_has_not_run_has_nothing(tmp_path):
    none = Checkpoints(tmp_path / "none")
    assert none.found(f"{OFFSETS}/*") == set()
    assert none.take_last(OFFSETS) == []
    none.back_up(tmp_path / "backup")
    assert list((tmp_path / "backup").iterdir()) == []
