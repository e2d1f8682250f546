"""A staging server that is stopped for a while: who is heard of it when, and what it costs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.brokers.probe import pause
from support.query.staged_messages import on_server, stage
from support.query.staging_home import expected, read_back, remote, rows, servers_under

from txnlog_spark.errors import StagingFailed
from txnlog_spark.log_once import Warned
from txnlog_spark.process_local import process_local
from txnlog_spark.staging import channel, frames
from txnlog_spark.staging.address import StagingSettings, ensure_server
from txnlog_spark.staging.channel import Channel, ServerGone, connect_remote
from txnlog_spark.staging.frames import Kind, TaskAttempt
from txnlog_spark.staging.reader import StagedReader
from txnlog_spark.staging.writer import Outlet, open_server_outlet

MIB = 2**20


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
