"""`stagingLocation` in an S3-compatible store: whole objects, read in parts, removed in time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.query.staged_messages import stage
from support.query.staging_home import staging_settings
from support.stores.object_store import ObjectStore

from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_spark.errors import StagedBatchesInvalid, StagingFailed
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.messages import StagedBatches
from txnlog_spark.staging.reader import StagedReader
from txnlog_spark.staging.staged_files import StagedFiles
from txnlog_spark.storage.connect import StorageSettings
from txnlog_spark.storage.location import read_location
from txnlog_spark.storage.options import STORAGE_PREFIX

ROWS = [("out", number % 3, encode_batch([Record(None, b"%d" % number)])) for number in range(9)]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as made:
        yield made


def files_at(store: ObjectStore, location: str) -> StagedFiles:
    given = {name.removeprefix(STORAGE_PREFIX): value for name, value in store.options().items()}
    settings = StorageSettings({**StorageSettings().values, **given})
    return StagedFiles(read_location("stagingLocation", location), settings)


def staged(files: StagedFiles, batch_id: int, run: str) -> StagedBatches:
    attempt = TaskAttempt("q", batch_id, run, f"{run}-0-0")
    return stage(attempt, ROWS, lambda: files.outlet(attempt))


def test_what_is_staged_in_a_store_is_read_back_and_removed_with_its_batch(
    store: ObjectStore,
) -> None:
    files = files_at(store, store.location("staged"))
    reader = StagedReader(staging_settings(), files)
    messages = {(b, run): staged(files, b, run) for b in (1, 2, 3) for run in ("old", "new")}
    chunks = reader.plan([messages[2, "new"]])
    for chunk in chunks:
        chunk.check(chunk.read())
    assert sum(chunk.record_count for chunk in chunks) == len(ROWS)
    reader.remove_other_runs("q", 2, "new")
    assert [name.split("/")[-3:-1] for name in store.names() if "/q/2/" in name] == [["2", "new"]]
    reader.remove_batches("q", 2, "")
    assert sorted(name.split("/")[-3] for name in store.names()) == ["3", "3"]
    reader.abandon([messages[3, "old"]])
    with pytest.raises(StagedBatchesInvalid, match="stagingLocation"):
        reader.plan([messages[3, "old"]])
    reader.remove_all("q")
    assert store.names() == []


def test_a_store_that_refuses_is_named_with_what_to_do(store: ObjectStore) -> None:
    files = files_at(store, "s3a://no-such-bucket-here/staged")
    with pytest.raises(StagingFailed, match=r"s3a://no-such-bucket-here/staged"):
        staged(files, 1, "r")
