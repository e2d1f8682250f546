"""Files of the checkpoint, and of the checkpoint that it was moved or copied from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from txnlog_kafka.operations.effects import ReadFile
from txnlog_spark.sink.commit_host import CommitHost
from txnlog_spark.storage.location import read_location


class Stored:
    """Files by their paths, as one store names them."""

    def __init__(self, *paths: str) -> None:
        self.paths = paths

    def read(self, path: str) -> bytes | None:
        return b"there" if path in self.paths else None


def disk_at(text: str, *paths: str) -> CommitHost:
    location = read_location("checkpointLocation", text)
    files: Any = Stored(*paths)
    return CommitHost(files, location.root, location.normal_root)


def original_of(text: str) -> str:
    """Return the recorded place of the metadata file of another checkpoint."""
    return f"{read_location('checkpointLocation', text).normal}/metadata"


@pytest.mark.parametrize(
    ("here", "original", "stored"),
    [
        ("s3://bucket/new", "s3a://bucket/cp", "s3://bucket/cp/metadata"),
        ("s3a://bucket/new", "s3n://bucket//cp/", "s3a://bucket/cp/metadata"),
        (
            "abfs://box@ACC.dfs.here/new",
            "abfss://box@acc.dfs.here/cp",
            "abfs://box@ACC.dfs.here/cp/metadata",
        ),
        ("hdfs://name:8020/new", "hdfs://name:8020/cp", "hdfs://name:8020/cp/metadata"),
    ],
)
def test_the_original_is_found_in_the_same_store_whatever_each_was_called(
    here: str, original: str, stored: str
) -> None:
    disk = disk_at(here, stored)
    assert disk.perform(ReadFile(original_of(original))) == b"there"
    assert disk.perform(ReadFile(original_of(f"{original}-gone"))) is None


@pytest.mark.parametrize(
    "original", ["s3a://bucket-2/cp", "s3a://other/cp", "gs://bucket/cp", "hdfs:///cp", "file:/cp"]
)
def test_an_original_in_another_store_is_not_looked_for(original: str) -> None:
    disk = disk_at("s3a://bucket/new", "s3a://bucket/cp/metadata")
    assert disk.perform(ReadFile(original_of(original))) is None


def test_the_original_of_a_checkpoint_on_this_machine_is_found_behind_a_link(
    tmp_path: Path,
) -> None:
    (tmp_path / "volume" / "cp").mkdir(parents=True)
    (tmp_path / "volume" / "cp" / "metadata").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "volume")
    assert CommitHost().perform(ReadFile(original_of(f"{tmp_path}/link/cp"))) == b"{}"
    assert CommitHost().perform(ReadFile(original_of(f"{tmp_path}/link/gone"))) is None
