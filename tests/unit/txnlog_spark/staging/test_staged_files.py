"""Staged files of `stagingLocation`: whole or absent, never shared, removed with their batch."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from support.query.staged_messages import files_in, flip_a_byte, in_file, stage
from support.query.staging_home import staging_settings

from txnlog_kafka.operations.batches import queues_of
from txnlog_kafka.operations.transaction import Transaction
from txnlog_kafka.wire.records import Record, encode_batch, iter_batches
from txnlog_spark.errors import StagedBatchesInvalid
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.messages import StagedBatches
from txnlog_spark.staging.reader import StagedReader
from txnlog_spark.staging.writer import StagingWriter

Rows = list[tuple[int, bytes]]
ROWS: Rows = [(0, b"a"), (1, b"b"), (0, b"c"), (0, b"d")]


def batch(value: bytes) -> bytes:
    return encode_batch([Record(b"k", value)])


def staged(
    location: Path | None, rows: Rows = ROWS, batch_id: int = 3, run: str = "r", name: str = "0-1"
) -> StagedBatches:
    attempt = TaskAttempt("q", batch_id, run, f"{run}-{name}")
    encoded = [("out", partition, batch(value)) for partition, value in rows]
    if location is None:
        return stage(attempt, encoded)
    return stage(attempt, encoded, in_file(location, attempt))


def reader_of(location: Path | None) -> StagedReader:
    return StagedReader(staging_settings(), None if location is None else files_in(location))


def read_back(messages: list[StagedBatches]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for chunk in reader_of(Path("/")).plan(messages):
        data = bytes(chunk.read())
        chunk.check(data)
        batches = found.setdefault(chunk.partition, [])
        batches += [data[p : p + h.size_bytes] for h, p in iter_batches(data)]
    return found


@pytest.mark.parametrize("in_message", [True, False])
def test_what_is_staged_is_read_back_in_order_by_partition(
    tmp_path: Path, in_message: bool
) -> None:
    message = pickle.loads(pickle.dumps(staged(None if in_message else tmp_path)))
    assert (message.path is None) == in_message
    expected = {0: [batch(b"a"), batch(b"c"), batch(b"d")], 1: [batch(b"b")]}
    assert read_back([message]) == expected
    assert read_back([message, message])[1] == [batch(b"b"), batch(b"b")]


def test_two_attempts_of_one_name_never_share_a_file(tmp_path: Path) -> None:
    assert len({staged(tmp_path).path for _ in range(2)}) == 2


def test_a_discarded_attempt_leaves_no_file(tmp_path: Path) -> None:
    staging = StagingWriter(in_file(tmp_path, TaskAttempt("q", 3, "r", "n")), inline_bytes_max=0)
    staging.append("out", 0, [batch(b"a")])
    staging.discard()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_full_disk_is_told_with_a_remedy_and_what_was_written_is_removed(tmp_path: Path) -> None:
    # A process of its own: the limit on a file's size cannot be raised again.
    script = f"""
import resource
from txnlog_spark.errors import TxnLogError
from txnlog_spark.staging.staged_files import FileOutlet
from txnlog_spark.storage.local import LocalFiles

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
outlet = FileOutlet(LocalFiles(), {str(tmp_path / "one.staged")!r})
try:
    for _ in range(20):
        outlet.write(bytes(300))
    outlet.finish(b"")
except TxnLogError as error:
    outlet.discard()
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.stdout.startswith("[TXNLOG_STAGING] staging in"), run.stderr
    assert "free space" in run.stdout
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_attempt_without_rows_has_no_chunk(tmp_path: Path) -> None:
    message = staged(tmp_path, [])
    assert (message.summary.chunk_count, message.inline, message.path) == (0, None, None)
    assert reader_of(tmp_path).plan([message]) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "other"])
def test_a_damaged_staged_file_is_an_error_and_never_wrong_data(
    tmp_path: Path, damage: str
) -> None:
    message = staged(tmp_path)
    path = Path(message.path or "")
    if damage == "flip":
        flip_a_byte(message)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif damage == "other":
        same_sizes = staged(tmp_path, [(p, value.upper()) for p, value in ROWS], name="1-2")
        path.write_bytes(Path(same_sizes.path or "").read_bytes())
    else:
        path.unlink()
    with pytest.raises((StagedBatchesInvalid, ValueError)) as caught:
        read_back([message])
    assert "\n" not in str(caught.value)


def test_a_committed_batch_takes_older_leftovers_with_it(tmp_path: Path) -> None:
    for batch_id in (2, 3, 4):
        staged(tmp_path, batch_id=batch_id)
    reader_of(tmp_path).remove_batches("q", 3, "")
    assert [d.name for d in (tmp_path / "q").iterdir()] == ["4"]


def test_an_aborted_batch_takes_its_own_files_only(tmp_path: Path) -> None:
    first, second = staged(tmp_path), staged(tmp_path)
    reader_of(tmp_path).abandon([first, None])
    assert [str(p) for p in tmp_path.rglob("*.staged")] == [second.path]


def test_what_cannot_be_removed_is_logged_once_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    staged(tmp_path, batch_id=2)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "unlink", refuse)
    for _ in range(3):
        reader_of(tmp_path).remove_batches("q", 3, "")
    (record,) = caplog.records
    assert str(tmp_path / "q" / "2") in record.getMessage()
    assert "Permission denied" in record.getMessage()


def test_an_abort_goes_on_though_its_file_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    message = staged(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    reader_of(tmp_path).abandon([message])
    assert (message.path or "nothing") in caplog.text


def test_what_is_gone_already_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    message = staged(tmp_path)
    reader = reader_of(tmp_path)
    for _ in range(2):
        reader.abandon([message])
    reader.remove_batches("nobody", 3, "")
    reader.remove_all("nobody")
    assert not caplog.records


def test_leftovers_of_other_runs_of_the_batch_go_and_those_of_this_run_stay(
    tmp_path: Path,
) -> None:
    for run in ("old", "older", "new"):
        staged(tmp_path, run=run)
        attempt = TaskAttempt("q", 3, run, f"{run}-1-2")
        unfinished = StagingWriter(in_file(tmp_path, attempt), inline_bytes_max=0)
        unfinished.append("out", 0, [batch(b"a")])
    staged(tmp_path, batch_id=4)
    reader_of(tmp_path).remove_other_runs("q", 3, "new")
    assert [path.name for path in (tmp_path / "q" / "3").iterdir()] == ["new"]
    assert len(list((tmp_path / "q" / "3" / "new").iterdir())) == 2
    reader_of(tmp_path).remove_other_runs("q", 3, "")
    assert len(list((tmp_path / "q" / "3" / "new").iterdir())) == 2
    assert list((tmp_path / "q" / "4").iterdir())


def test_a_staged_file_that_the_driver_does_not_see_says_where_it_is_and_what_to_set(
    tmp_path: Path,
) -> None:
    message = staged(tmp_path)
    Path(message.path or "").unlink()
    with pytest.raises(StagedBatchesInvalid) as caught:
        read_back([message])
    for text in ("executor-7", "another driver", "stagingLocation", message.path or "nothing"):
        assert text in str(caught.value)


def test_reading_hundreds_of_partitions_side_by_side_keeps_no_file_open(tmp_path: Path) -> None:
    message = staged(tmp_path, [(number, b"v") for _ in range(2) for number in range(300)])
    reader = reader_of(tmp_path)
    queues = queues_of(reader.plan([message]), Transaction("t", 1, 0, 2))
    before = len(os.listdir("/proc/self/fd"))
    for queue in queues.values():
        queue.give(queue.next_piece.read())
        assert queue.pop().record_count == 1
    assert len(os.listdir("/proc/self/fd")) <= before
