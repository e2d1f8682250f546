"""Staging: inline while small, a whole flushed file when not, never wrong bytes."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from txnlog_spark.errors import OptionError, StagedBatchesInvalid
from txnlog_spark.protocol.batches import queues_of
from txnlog_spark.protocol.transaction import Transaction
from txnlog_spark.sink.settings import SinkSettings, read_sink_settings
from txnlog_spark.sink.staging import (
    INLINE_BYTES_MAX,
    INLINE_BYTES_MIN,
    INLINE_TOTAL_BYTES_MAX,
    StagedBatches,
    StagingWriter,
    abandon_message,
    batch_directory,
    inline_limit,
    plan_staged,
    read_piece,
    remove_all,
    remove_batches,
    remove_other_runs,
)
from txnlog_spark.sink.writers import unshared_staging
from txnlog_spark.wire.records import Record, encode_batch, iter_batches

NAMES = {"query_id": "q", "run_id": "r", "batch_id": 3, "task_attempt_id": 1}


def batch(value: bytes) -> bytes:
    return encode_batch([Record(b"k", value)])


def stage(directory: Path, rows: list[tuple[int, bytes]], limit: int) -> StagedBatches:
    writer = StagingWriter(directory, "0-1", inline_bytes_max=limit)
    for partition, value in rows:
        writer.append("out", partition, [batch(value)])
    chunks, inline, path = writer.finish()
    return StagedBatches(**NAMES, chunks=chunks, inline=inline, path=path)


def read_back(messages: list[StagedBatches]) -> dict[int, list[bytes]]:
    found = {}
    for part in plan_staged(messages):
        data = b"".join(bytes(read_piece(piece)) for piece in part.pieces)
        assert len(data) == part.size_bytes
        found[part.partition] = [data[p : p + h.size_bytes] for h, p in iter_batches(data)]
    return found


ROWS = [(0, b"a"), (1, b"b"), (0, b"c"), (0, b"d")]


@pytest.mark.parametrize("limit", [10_000, 0])
def test_what_is_staged_is_read_back_in_order_by_partition(tmp_path: Path, limit: int) -> None:
    message = pickle.loads(pickle.dumps(stage(tmp_path, ROWS, limit)))
    assert (message.path is None) == (limit > 0)
    expected = {0: [batch(b"a"), batch(b"c"), batch(b"d")], 1: [batch(b"b")]}
    assert read_back([message]) == expected
    assert read_back([message, message])[1] == [batch(b"b"), batch(b"b")]


def test_nothing_is_written_while_it_is_small(tmp_path: Path) -> None:
    stage(tmp_path / "staging", ROWS, 10_000)
    assert not (tmp_path / "staging").exists()


@pytest.mark.parametrize("task_count", [1, 24, 48, 49, 200, 1_100, 2_000, 10_000])
def test_all_messages_of_a_batch_stay_far_below_what_the_driver_takes(task_count: int) -> None:
    limits = [inline_limit(index) for index in range(task_count)]
    assert sum(limits) <= INLINE_TOTAL_BYTES_MAX
    assert max(limits) <= INLINE_BYTES_MAX
    assert limits == sorted(limits, reverse=True)


def test_tiny_outputs_travel_inline_however_many_tasks_there_are() -> None:
    assert inline_limit(99_999) == INLINE_BYTES_MIN
    assert inline_limit(5, "1") == INLINE_BYTES_MIN


def test_the_first_tasks_may_take_the_whole_limit() -> None:
    assert {inline_limit(index) for index in range(48)} == {INLINE_BYTES_MAX}


@pytest.mark.parametrize("size", ["10m", "10MB", "10485760", " 10240k "])
@pytest.mark.parametrize("task_count", [20, 500])
def test_a_smaller_result_size_makes_all_limits_smaller(size: str, task_count: int) -> None:
    total = sum(inline_limit(index, size) for index in range(task_count))
    assert 500_000 < total < 10 * 2**20 / 2


@pytest.mark.parametrize("size", [None, "", "0", "1g", "16g", "much"])
def test_a_larger_or_no_result_size_changes_nothing(size: str | None) -> None:
    assert [inline_limit(i, size) for i in (0, 100)] == [inline_limit(i) for i in (0, 100)]


def test_two_attempts_of_one_name_never_share_a_file(tmp_path: Path) -> None:
    paths = {stage(tmp_path, ROWS, 0).path for _ in range(2)}
    assert len(paths) == 2


def test_a_discarded_attempt_leaves_no_file(tmp_path: Path) -> None:
    writer = StagingWriter(tmp_path, "0-1", inline_bytes_max=0)
    writer.append("out", 0, [batch(b"a")])
    writer.discard()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_with_a_remedy_and_what_was_written_is_removed(tmp_path: Path) -> None:
    # A process of its own: the limit on a file's size cannot be raised again.
    script = f"""
import resource
from pathlib import Path
from txnlog_spark.errors import TxnLogError
from txnlog_spark.sink.staging import StagingWriter
from txnlog_spark.wire.records import Record, encode_batch

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
staging = StagingWriter(Path({str(tmp_path)!r}), "0-1", inline_bytes_max=0)
try:
    for _ in range(20):
        staging.append("out", 0, [encode_batch([Record(None, bytes(300))])])
    staging.finish()
except TxnLogError as error:
    staging.discard()
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.stdout.startswith("[TXNLOG_STAGING] staging under"), run.stderr
    assert "free space" in run.stdout
    assert not list(tmp_path.iterdir())


def test_an_attempt_without_rows_has_no_chunk(tmp_path: Path) -> None:
    message = stage(tmp_path, [], 10)
    assert (message.chunks, message.inline, message.path) == ((), None, None)
    assert plan_staged([message]) == []


def test_small_batches_share_a_chunk_of_64_kib(tmp_path: Path) -> None:
    message = stage(tmp_path, [(0, bytes(20_000))] * 12 + [(0, bytes(300_000))] * 2, 0)
    assert [chunk.size_bytes // 10_000 for chunk in message.chunks] == [6, 6, 6, 6, 30, 30]
    assert len(read_back([message])[0]) == 14


def test_chunks_and_partitions_say_their_bytes_and_records(tmp_path: Path) -> None:
    writer = StagingWriter(tmp_path, "0-1", inline_bytes_max=10_000)
    double = encode_batch([Record(b"k", b"a"), Record(b"k", b"b")])
    writer.append("out", 0, [double, batch(b"c")])
    writer.append("out", 1, [double])
    writer.append("out", 0, [double])
    chunks, inline, path = writer.finish()
    message = StagedBatches(**NAMES, chunks=chunks, inline=inline, path=path)
    assert [chunk.record_count for chunk in chunks] == [3, 2, 2]
    first, second = plan_staged([message, message])
    assert (first.record_count, second.record_count) == (10, 4)
    for part in (first, second):
        sizes = [piece.size_bytes for piece in part.pieces]
        assert [len(read_piece(piece)) for piece in part.pieces] == sizes
        assert part.size_bytes == sum(sizes)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_staged_file_is_an_error_and_never_wrong_data(
    tmp_path: Path, damage: str
) -> None:
    message = stage(tmp_path, ROWS, 0)
    path = Path(message.path or "")
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[65] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:-3])
    else:
        path.unlink()
    with pytest.raises(StagedBatchesInvalid) as caught:
        read_back([message])
    assert "\n" not in str(caught.value)


def test_a_message_of_another_version_is_refused() -> None:
    with pytest.raises(StagedBatchesInvalid, match="one version of txnlog_spark"):
        plan_staged([StagedBatches(**NAMES, version=99)])


def test_a_committed_batch_takes_older_leftovers_with_it(tmp_path: Path) -> None:
    for batch_id in (2, 3, 4):
        stage(batch_directory(tmp_path, "q", batch_id), ROWS, 0)
    remove_batches(tmp_path, "q", 3)
    assert [d.name for d in (tmp_path / "q").iterdir()] == ["4"]


def test_an_aborted_batch_takes_its_own_files_only(tmp_path: Path) -> None:
    first, second = stage(tmp_path, ROWS, 0), stage(tmp_path, ROWS, 0)
    abandon_message(first)
    abandon_message(None)
    assert [str(p) for p in tmp_path.iterdir()] == [second.path]


def test_what_cannot_be_removed_is_logged_once_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage(batch_directory(tmp_path, "q", 2), ROWS, 0)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "unlink", refuse)
    for _ in range(3):
        remove_batches(tmp_path, "q", 3)
    (record,) = caplog.records
    assert str(tmp_path / "q" / "2") in record.getMessage()
    assert "Permission denied" in record.getMessage()


def test_an_abort_goes_on_though_its_file_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    message = stage(tmp_path, ROWS, 0)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    abandon_message(message)
    assert (message.path or "nothing") in caplog.text


def test_what_is_gone_already_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    message = stage(tmp_path, ROWS, 0)
    for _ in range(2):
        abandon_message(message)
    remove_batches(tmp_path, "nobody", 3)
    remove_all(tmp_path, "nobody")
    assert not caplog.records


def test_leftovers_of_other_runs_of_the_batch_go_and_those_of_this_run_stay(
    tmp_path: Path,
) -> None:
    directory = batch_directory(tmp_path, "q", 3)
    for run in ("old", "older", "new"):
        for attempt in ("0-1", "1-2"):
            writer = StagingWriter(directory, f"{run}-{attempt}", inline_bytes_max=0)
            writer.append("out", 0, [batch(b"a")])
            if attempt == "0-1":
                writer.finish()
    stage(batch_directory(tmp_path, "q", 4), ROWS, 0)
    remove_other_runs(tmp_path, "q", 3, "new")
    assert {path.name.split("-")[0] for path in directory.iterdir()} == {"new"}
    assert len(list(directory.iterdir())) == 2
    remove_other_runs(tmp_path, "q", 3, "")
    assert len(list(directory.iterdir())) == 2
    assert list(batch_directory(tmp_path, "q", 4).iterdir())


def test_a_staged_file_that_the_driver_does_not_see_says_where_it_is_and_what_to_set(
    tmp_path: Path,
) -> None:
    message = dataclasses.replace(stage(tmp_path, ROWS, 0), host="executor-7")
    Path(message.path or "").unlink()
    with pytest.raises(StagedBatchesInvalid) as caught:
        read_back([message])
    for text in ("executor-7", "Set stagingLocation", "share", message.path or "nothing"):
        assert text in str(caught.value)


def sink_settings(**options: str) -> SinkSettings:
    base = {"kafka.bootstrap.servers": "x:1", "topic": "out"}
    return read_sink_settings(base | options, streaming="checkpointLocation" in options)


@pytest.mark.parametrize("master", ["yarn", "k8s://https://host:443", "spark://host:7077"])
def test_a_batch_write_on_a_cluster_that_needs_a_file_is_told_to_set_staging_location(
    tmp_path: Path, master: str
) -> None:
    refusal = unshared_staging(sink_settings(), master)
    staging = StagingWriter(tmp_path, "r-0-1", inline_bytes_max=100, refusal=refusal)
    staging.append("out", 0, [batch(b"a")])
    with pytest.raises(OptionError, match=f"spark.master={master}") as caught:
        staging.append("out", 0, [batch(b"b" * 100)])
    assert caught.value.name == "stagingLocation"
    assert not list(tmp_path.iterdir())
    staging.discard()


@pytest.mark.parametrize(
    ("options", "master"),
    [
        ({}, "local"),
        ({}, "local[*]"),
        ({}, "local-cluster[2,1,1024]"),
        ({}, None),
        ({"stagingLocation": "/shared"}, "yarn"),
        ({"checkpointLocation": "/shared"}, "yarn"),
    ],
)
def test_where_the_disk_is_shared_or_may_be_files_are_staged(
    options: dict[str, str], master: str | None
) -> None:
    assert unshared_staging(sink_settings(**options), master) is None


def test_reading_hundreds_of_partitions_side_by_side_keeps_no_file_open(tmp_path: Path) -> None:
    message = stage(tmp_path, [(number, b"v") for _ in range(2) for number in range(300)], 0)
    queues = queues_of(plan_staged([message]), Transaction("t", 1, 0, 2))
    before = len(os.listdir("/proc/self/fd"))
    for queue in queues.values():
        queue.give(read_piece(queue.next_piece))
        assert queue.pop().record_count == 1
    assert len(os.listdir("/proc/self/fd")) <= before
