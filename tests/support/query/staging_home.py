"""A staging server of one test: its home, and what tasks stage there and the committer reads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.brokers.probe import wait_until
from support.query.staged_messages import stage

from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_spark.options.parse import settings_of
from txnlog_spark.staging.address import StagingSettings, ensure_server
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.messages import StagedBatches
from txnlog_spark.staging.reader import StagedReader
from txnlog_spark.staging.writer import Outlet, open_server_outlet

MIB = 2**20
STAGED_BYTES = 50 * MIB
ATTEMPTS = 8


SERVER = "txnlog_spark.staging.server"


@contextmanager
def staging_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory with a name that is short enough for a Unix socket.

    Every staging server in it ends before it is removed: a server removes files there, too.
    """
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="txn") as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr("tempfile.tempdir", name)
        yield Path(name)
        for process in servers_under(Path(name)):
            with suppress(psutil.NoSuchProcess):  # its application has ended, and so has it
                process.kill()
        wait_for_no_server(Path(name))


def wait_for_no_server(folder: Path) -> None:
    """Return when no staging server has its directory there any more."""
    wait_until(lambda: not servers_under(folder), f"the staging servers in {folder} to end")


def servers_under(folder: Path) -> list[psutil.Process]:
    """List the staging servers whose temporary directory is `folder`.

    The process that started a server may have ended, so all processes of this user are looked at.
    A server has its environment to its end, but closes and removes its files before.
    """
    return [
        process
        for process in psutil.process_iter(["uids", "cmdline", "environ"])
        if process.info["uids"].real == os.getuid()
        and SERVER in (process.info["cmdline"] or ())
        and (process.info["environ"] or {}).get("TMPDIR") == str(folder)
    ]


def rows(count: int, size: int = 50_000) -> list[tuple[str, int, bytes]]:
    return [
        ("out", number % 7, encode_batch([Record(None, b"%d" % number + bytes(size))]))
        for number in range(count)
    ]


def read_back(settings: StagingSettings, message: StagedBatches) -> dict[int, bytes]:
    reader = StagedReader(settings, None)
    found: dict[int, bytes] = {}
    try:
        for chunk in reader.plan([message]):
            found[chunk.partition] = found.get(chunk.partition, b"") + bytes(chunk.read())
        return found
    finally:
        reader.close()


def expected(staged: list[tuple[str, int, bytes]]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for _, partition, data in staged:
        found[partition] = found.get(partition, b"") + data
    return found


def remote(settings: StagingSettings, attempt: TaskAttempt) -> Callable[[], Outlet]:
    return lambda: open_server_outlet(
        ensure_server(settings), attempt, host="127.0.0.1", is_local=False
    )


def staging_settings(**changes: Any) -> StagingSettings:
    """Return the settings without options, with these changes."""
    return StagingSettings(**{**settings_of({}, "staging"), **changes})


def stage_and_read_back(settings: StagingSettings) -> None:
    """Stage more than the limit, and read it back."""
    staged = rows(STAGED_BYTES // MIB, MIB)
    sizes: dict[int, int] = {}
    for _, partition, data in staged:
        sizes[partition] = sizes.get(partition, 0) + len(data)
    attempts = [TaskAttempt("q", 3, "r", f"r-{number}") for number in range(ATTEMPTS)]
    messages = [stage(each, staged, remote(settings, each)) for each in attempts]
    for message in messages:
        found = read_back(settings, message)
        assert {partition: len(data) for partition, data in found.items()} == sizes
