"""Connections to the staging server: of many tasks at once, and of a server that stands still.

Also where the server keeps rows when a directory fails it.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.brokers.probe import pause, wait_until
from support.query.concurrent_tasks import stage_in_many_tasks
from support.query.staged_messages import on_server, stage
from support.query.staging_home import MIB, expected, read_back, remote, rows, servers_under

from txnlog_spark.errors import StagingFailed
from txnlog_spark.log_once import Warned
from txnlog_spark.process_local import process_local
from txnlog_spark.staging import channel, frames
from txnlog_spark.staging.address import StagingSettings, ensure_server
from txnlog_spark.staging.channel import Channel, ServerGone, connect_remote
from txnlog_spark.staging.frames import Kind, TaskAttempt
from txnlog_spark.staging.reader import StagedReader
from txnlog_spark.staging.writer import Outlet, open_server_outlet

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


# ------------------------------------------------------------------ a server that stands still


def test_a_server_that_stands_still_is_named_and_found_again_when_it_goes_on(
    settings: StagingSettings,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = ensure_server(settings)
    (server,) = servers_under(home)
    assert address.pid == server.pid
    named = rf"process {server.pid} at {address.host}:{address.port}\) has taken nothing .*-CONT"
    server.suspend()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(channel, "TIMEOUT_S", 0.3)
            with pytest.raises(StagingFailed, match=named):
                ensure_server(settings)
            process_local(Warned).clear()
            StagedReader(settings, None).remove_other_runs("q", 1, "run")
            assert re.search(
                f"the rows that were staged for q are not removed: .*{named}", caplog.text
            )
    finally:
        server.resume()
    assert ensure_server(settings) == address
    assert len(servers_under(home)) == 1


@pytest.mark.parametrize("when", ["before it connects", "while it stages", "before its last frame"])
@pytest.mark.parametrize("way", [on_server, remote])
def test_a_task_of_a_server_that_stands_still_names_it_once_for_all_of_its_waits(
    settings: StagingSettings,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    way: Callable[..., Callable[[], Outlet]],
    when: str,
) -> None:
    address = ensure_server(settings)
    assert ensure_server(settings) == address  # the server runs: it has answered
    (server,) = servers_under(home)
    attempt = TaskAttempt("q", 3, "r", "r-0")
    host = address.host if way is on_server else "127.0.0.1"
    is_local = way is on_server
    open_outlet = partial(open_server_outlet, address, attempt, host=host, is_local=is_local)
    with monkeypatch.context() as patched:
        patched.setattr(channel, "TIMEOUT_S", 0.3)
        patched.setattr(channel, "TURN_TIMEOUT_S", 0.6)
        outlet = None if when == "before it connects" else open_outlet()
        server.suspend()
        try:
            with pytest.raises(StagingFailed) as caught:
                outlet = outlet or open_outlet()
                for _ in range(200 if when == "while it stages" else 1):
                    outlet.write(bytes(MIB))
                outlet.finish(b"index")
        finally:
            server.resume()
    assert f"{host}:{address.port} (process {server.pid})" in str(caught.value)
    there = f"if process {server.pid} on the driver's machine"
    assert caught.value.commands == (
        f"Do this {there} is stopped: kill -CONT {server.pid}",
        f"Do this {there} hangs: kill -9 {server.pid}",
    )
    is_said = way is remote and when == "before it connects"
    assert ("has not let this task in for 0.3 s" in caplog.text) == is_said
    again = TaskAttempt("q", 3, "r", "r-1")
    assert read_back(settings, stage(again, rows(3), way(settings, again))) == expected(rows(3))


@pytest.mark.parametrize("way", [on_server, remote])
def test_tasks_of_a_server_that_goes_on_in_time_have_staged_all(
    settings: StagingSettings, home: Path, way: Callable[..., Callable[[], Outlet]]
) -> None:
    ensure_server(settings)
    (server,) = servers_under(home)
    attempts = [TaskAttempt("q", 3, "r", f"r-{number}") for number in range(4)]
    opened = {each: way(settings, each)() for each in attempts[:2]}
    outlets = {each: way(settings, each) for each in attempts}
    outlets |= {each: partial(opened.pop, each) for each in attempts[:2]}
    server.suspend()
    try:
        with ThreadPoolExecutor() as pool:
            staging = [pool.submit(stage, each, rows(80), outlets[each]) for each in attempts]
            pause(0.5)
            assert not any(each.done() for each in staging)
            server.resume()
            messages = [each.result() for each in staging]
    finally:
        server.resume()
    for message in messages:
        assert read_back(settings, message) == expected(rows(80))


def test_a_task_whose_time_for_the_proof_went_by_while_the_server_stood_still_connects_again(
    settings: StagingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, connect, count = ensure_server(settings), channel._connect_proved, itertools.count()

    def closed_once(*given: Any) -> Channel:
        if next(count) == 0:
            raise ServerGone("the connection was closed")
        return connect(*given)

    monkeypatch.setattr(channel, "_connect_proved", closed_once)
    monkeypatch.setattr(channel, "STOOD_STILL_S", 0.0)
    connect_remote("127.0.0.1", address.port, address.token).close()
    assert next(count) == 2


def test_a_server_that_takes_a_little_at_a_time_is_not_silent() -> None:
    taken = bytearray()

    class Slow:
        """A socket; each part that it takes may take as long as its timeout says."""

        def settimeout(self, _: float) -> None:
            pass

        def send(self, data: memoryview) -> int:
            taken.extend(data[:3])
            return min(3, len(data))

    made: Any = Slow()
    Channel(made).send(Kind.DATA, b"0123456789")
    assert bytes(taken) == frames.frame(Kind.DATA, b"0123456789")
