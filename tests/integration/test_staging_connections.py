"""Connections to the staging server, and where it keeps rows when a directory fails it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.brokers.probe import wait_until
from support.query.concurrent_tasks import stage_in_many_tasks
from support.query.staged_messages import on_server, stage
from support.query.staging_home import (
    expected,
    read_back,
    remote,
    rows,
    servers_under,
)

from txnlog_spark.staging.address import StagingSettings, ensure_server
from txnlog_spark.staging.channel import connect_remote
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.writer import Outlet

MANY = 530
"""More than may prove the token at once."""


@pytest.mark.parametrize("way", [on_server, remote])
def test_many_tasks_that_connect_at_once_wait_for_a_busy_server(
    settings: StagingSettings, home: Path, way: Callable[..., Callable[[], Outlet]]
) -> None:
    """Every connection waits in the system's queue while the server accepts no connection."""
    address = ensure_server(settings)
    (server,) = servers_under(home)
    attempts = [TaskAttempt("q", 3, "r", f"r-{number}") for number in range(100)]
    waiting: list[socket.socket] = []
    server.suspend()
    try:
        for _ in range(300):
            family, where = socket.AF_UNIX, address.local_path
            if way is remote:
                family, where = socket.AF_INET, ("127.0.0.1", address.port)
            each = socket.socket(family)
            waiting.append(each)
            each.settimeout(20)
            each.connect(where)
        with ThreadPoolExecutor(len(attempts)) as pool:
            outlets = [way(settings, each) for each in attempts]
            with_address = pool.map(
                lambda number: stage(attempts[number], rows(2), outlets[number]),
                range(len(attempts)),
            )
            for each in waiting:
                each.close()
            server.resume()
            messages = list(with_address)
    finally:
        server.resume()
    assert all(read_back(settings, message) == expected(rows(2)) for message in messages)


def test_rows_are_staged_in_the_next_local_directory_when_the_first_cannot_be_written(
    settings: StagingSettings,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file, second = home / "file", home / "second"
    file.touch()  # not even root makes a directory in a file
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{file / 'first'}, {second},{home / 'third'}")
    settings = replace(settings, directory=None)
    attempt = TaskAttempt("q", 3, "r", "r-0")
    with caplog.at_level(logging.WARNING):
        message = stage(attempt, rows(3), remote(settings, attempt))
    assert f"rows are not staged in {file / 'first'} of SPARK_LOCAL_DIRS" in caplog.text
    staged = list(home.rglob("*.staged"))
    assert staged
    assert all(second in path.parents for path in staged)
    assert read_back(settings, message) == expected(rows(3))


def test_without_a_local_directory_to_write_to_rows_are_staged_beside_the_server(
    settings: StagingSettings, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").touch()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(home / "file" / "first"))
    monkeypatch.delenv("LOCAL_DIRS", raising=False)
    settings = replace(settings, directory=None)
    attempt = TaskAttempt("q", 3, "r", "r-0")
    message = stage(attempt, rows(3), remote(settings, attempt))
    beside = Path(ensure_server(settings).local_path).parent
    assert list(beside.rglob("*.staged"))
    assert read_back(settings, message) == expected(rows(3))


def keep_alive_of(connection: socket.socket) -> tuple[int, ...]:
    tcp = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    alive = bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
    return (alive, *(connection.getsockopt(socket.IPPROTO_TCP, each) for each in tcp))


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="it has the timers of connections")
def test_both_ends_of_a_connection_notice_within_two_minutes_that_the_other_is_gone(
    settings: StagingSettings, home: Path
) -> None:
    address = ensure_server(settings)
    with connect_remote("127.0.0.1", address.port, address.token) as connected:
        assert keep_alive_of(connected._socket) == (True, 60, 15, 4)
        port = connected._socket.getsockname()[1]
        for here, there in ((port, address.port), (address.port, port)):
            assert keep_alive_timer_s(here, there) <= 60


def keep_alive_timer_s(here: int, there: int) -> float:
    """Return the time to the first keep-alive probe of an IPv4 connection, by /proc/net/tcp.

    The function fails if no keep-alive timer runs (2 in the column `tr`).
    """

    def timer() -> tuple[int, float] | None:
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            ports = tuple(int(each.rpartition(":")[2], 16) for each in fields[1:3])
            if ports == (here, there) and fields[3] == "01":  # established
                kind, when = fields[5].split(":")
                return int(kind, 16), int(when, 16) / os.sysconf("SC_CLK_TCK")
        return None

    wait_until(lambda: (timer() or (0, 0))[0] == 2, "the timer of keep-alive runs")
    found = timer()
    assert found is not None
    return found[1]


def test_more_tasks_than_may_prove_the_token_at_once_wait_and_are_all_stored(
    settings: StagingSettings,
) -> None:
    assert stage_in_many_tasks(ensure_server(settings), MANY) == {"STORED": MANY}


@pytest.mark.parametrize(
    "source", [pytest.param("127.0.0.2", marks=pytest.mark.weekly), "127.0.0.1"]
)
def test_silent_connections_of_a_stranger_keep_no_task_from_staging(
    settings: StagingSettings, source: str
) -> None:
    """Not even of the stranger's own address: those of it wait longer."""
    wave = stage_in_many_tasks(ensure_server(settings), 40, silent=(MANY, source))
    assert wave == {"STORED": 40}
