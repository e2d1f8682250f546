"""The staging server as a process: what it takes, what it refuses, and what its end costs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.brokers.probe import pause, wait_until
from support.query.staged_messages import is_there, on_server, stage
from support.query.staging_home import (
    MIB,
    expected,
    read_back,
    remote,
    rows,
    servers_under,
    staging_home,
    wait_for_no_server,
)

from txnlog_kafka.processes import has_ended, start_time
from txnlog_spark.errors import OptionError, StagedBatchesInvalid, StagingFailed
from txnlog_spark.staging import address as address_module
from txnlog_spark.staging import channel, frames
from txnlog_spark.staging.address import ServerAddress, StagingSettings, ensure_server
from txnlog_spark.staging.certificates import server_context, task_context
from txnlog_spark.staging.channel import ServerGone, connect_remote
from txnlog_spark.staging.frames import Kind, TaskAttempt
from txnlog_spark.staging.messages import StagedBatches
from txnlog_spark.staging.reader import StagedReader
from txnlog_spark.staging.writer import Outlet, StagingWriter, open_server_outlet


@pytest.mark.parametrize("way", [on_server, remote])
def test_what_a_task_stages_is_what_the_committer_reads(
    settings: StagingSettings, way: Callable[..., Callable[[], object]]
) -> None:
    attempts = [TaskAttempt("q", 3, "r", f"r-{number}") for number in range(3)]
    staged = {each: rows(40 + number) for number, each in enumerate(attempts)}
    messages = [stage(each, staged[each], way(settings, each)) for each in attempts]
    for message in messages:
        assert read_back(settings, message) == expected(staged[message.attempt])
    assert len(list(Path(settings.directory or "").rglob("*.staged"))) == 3
    StagedReader(settings, None).remove_batches("q", 3, "")
    assert not any(is_there(settings, message) for message in messages)
    assert not list(Path(settings.directory or "").rglob("*.staged"))


def test_a_record_batch_larger_than_a_frame_travels_in_several(settings: StagingSettings) -> None:
    attempt = TaskAttempt("q", 3, "r", "r-0")
    staged = rows(2, 3 * frames.DATA_BYTES_MAX)
    message = stage(attempt, staged, remote(settings, attempt))
    assert read_back(settings, message) == expected(staged)


def test_a_stream_that_breaks_off_leaves_no_file_and_takes_no_space(
    settings: StagingSettings, home: Path
) -> None:
    settings = replace(settings, disk_bytes_max=3 * MIB)
    for number in range(5):
        attempt = TaskAttempt("q", 3, "r", f"torn-{number}")
        staging = StagingWriter(on_server(settings, attempt), inline_bytes_max=0)
        for topic, partition, data in rows(40):
            staging.append(topic, partition, [data])
        staging.discard()
    wait_until(lambda: not list(home.rglob("*.staged")), "the server has dropped what broke off")
    whole = TaskAttempt("q", 3, "r", "whole")
    message = stage(whole, rows(40), on_server(settings, whole))
    assert read_back(settings, message) == expected(rows(40))


def test_an_attempt_without_an_index_is_none(settings: StagingSettings, home: Path) -> None:
    with channel.connect_local(ensure_server(settings).local_path) as task:
        task.send(Kind.OPEN, TaskAttempt("q", 3, "r", "r-0").encode())
        task.send(Kind.DATA, b"rows")
        task.send(Kind.CLOSE)
        with pytest.raises(ServerGone):
            task.receive()
    assert not list(home.rglob("*.staged"))


def test_more_than_the_bounds_is_refused_with_what_to_do(settings: StagingSettings) -> None:
    settings = replace(settings, disk_bytes_max=2 * MIB)
    attempt = TaskAttempt("q", 3, "r", "r-0")
    with pytest.raises(StagingFailed) as caught:
        stage(attempt, rows(200), remote(settings, attempt))
    for text in ("stagingDiskSpace=2097152", "stagingLocation", "maxOffsets"):
        assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_memory_stays_flat_while_a_batch_is_far_larger(
    settings: StagingSettings, home: Path
) -> None:
    ensure_server(settings)
    (server,) = servers_under(home)
    first = TaskAttempt("q", 3, "r", "r-first")
    stage(first, rows(20, MIB // 2), remote(settings, first))
    before = server.memory_info().rss
    staged = rows(100, MIB // 2)

    def one(number: int) -> StagedBatches:
        attempt = TaskAttempt("q", 3, "r", f"r-{number}")
        return stage(attempt, staged, remote(settings, attempt))

    with ThreadPoolExecutor(4) as pool:
        messages = list(pool.map(one, range(4)))
    assert read_back(settings, messages[-1]) == expected(staged)
    assert server.memory_info().rss - before < 32 * MIB


def test_a_client_without_the_token_is_not_let_in(settings: StagingSettings) -> None:
    address = ensure_server(settings)
    with connect_remote("127.0.0.1", address.port, address.token):
        pass
    with (
        socket.create_connection(("127.0.0.1", address.port)) as plain,
        task_context().wrap_socket(plain) as secured,
    ):
        nonce = os.urandom(frames.NONCE_BYTES)
        secured.sendall(frames.frame(Kind.NONCE, nonce))
        other = channel.Channel(secured)
        assert other.receive()[0] is Kind.PROOF
        wrong = frames.proof(
            b"guessed", "task", secured.getpeercert(binary_form=True) or b"", nonce
        )
        other.send(Kind.PROOF, wrong)
        with pytest.raises(ServerGone):
            other.receive()
    with (
        socket.create_connection(("127.0.0.1", address.port)) as plain,
        task_context().wrap_socket(plain) as secured,
    ):
        secured.settimeout(30)
        secured.sendall(frames.frame(Kind.NONCE, bytes(1_000))[:9])
        assert secured.recv(100) == b"", "no more than a nonce is taken from a stranger"
    with socket.create_connection(("127.0.0.1", address.port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        plain.settimeout(30)
        assert b"HTTP" not in plain.recv(100)
    attempt = TaskAttempt("q", 3, "r", "r-0")
    assert read_back(settings, stage(attempt, rows(2), remote(settings, attempt)))


def test_a_server_that_does_not_know_the_token_gets_no_row(home: Path) -> None:
    context, _ = server_context(home)
    received: list[bytes] = []

    def pretend(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        with plain, context.wrap_socket(plain, server_side=True) as secured:
            secured.recv(1000)
            secured.sendall(frames.frame(Kind.PROOF, bytes(32)))
            received.append(secured.recv(1000))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=pretend, args=(listener,))
        thread.start()
        address = ServerAddress("", "127.0.0.1", listener.getsockname()[1], "ab" * 32, 1)
        attempt = TaskAttempt("q", 3, "r", "r-0")
        with pytest.raises(StagingFailed, match="another server answers there"):
            open_server_outlet(address, attempt, host=None, is_local=False)
        thread.join()
    assert received == [b""]


def test_the_token_is_in_no_argument_text_or_log(settings: StagingSettings, home: Path) -> None:
    address = ensure_server(settings)
    (server,) = servers_under(home)
    assert address.token not in " ".join(server.cmdline()) + repr(address) + str(address)
    assert address.token not in str(server.environ())
    for path in home.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or not path.is_dir() or path.name == "spool"
        if path.is_file():
            assert address.token.encode() not in path.read_bytes()


def test_a_killed_server_costs_what_is_being_staged_and_the_next_one_clears_its_files(
    settings: StagingSettings, home: Path
) -> None:
    attempt = TaskAttempt("q", 3, "r", "r-0")
    message = stage(attempt, rows(20), remote(settings, attempt))
    running = StagingWriter(remote(settings, TaskAttempt("q", 3, "r", "r-1")), inline_bytes_max=0)
    running.append("out", 0, [rows(1, 400_000)[0][2]])
    (server,) = servers_under(home)
    server.send_signal(signal.SIGKILL)
    server.wait()
    assert read_back(settings, message) == expected(rows(20)), "it may be committed"
    with pytest.raises(StagingFailed, match="is lost"):
        for _ in range(100):
            running.append("out", 0, [rows(1, 400_000)[0][2]])
    again = stage(attempt, rows(20), remote(settings, attempt))
    assert read_back(settings, again) == expected(rows(20))
    with pytest.raises(StagedBatchesInvalid, match="restart the query to replay the batch"):
        read_back(settings, message)
    assert len(list(home.rglob("*.staged"))) == 1


def test_what_a_killed_server_left_goes_when_the_next_one_starts(
    settings: StagingSettings, home: Path
) -> None:
    attempt = TaskAttempt("q", 3, "r", "r-0")
    stage(attempt, rows(5), remote(settings, attempt))
    (server,) = servers_under(home)
    server.send_signal(signal.SIGKILL)
    server.wait()
    assert list(home.rglob("*.staged"))
    other = replace(settings, disk_bytes_max=1)
    ensure_server(other)
    assert not list(home.rglob("*.staged"))
    assert len(list(home.glob("txnlog-staging-*/*"))) == 1


def test_all_of_an_application_find_one_server(settings: StagingSettings, home: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: ensure_server(settings), range(16)))
    assert len(found) == 1
    assert len(servers_under(home)) == 1


def start_by_another_process() -> ServerAddress:
    """Start a staging server of an application that ends at once."""
    script = (
        "from support.query.staging_home import *; import dataclasses, json; "
        "address = ensure_server(staging_settings(bind_address='127.0.0.1')); "
        "print(json.dumps(dataclasses.asdict(address)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return ServerAddress(**json.loads(run.stdout))


def test_the_server_ends_with_its_application_and_takes_its_files_along(home: Path) -> None:
    directory = Path(start_by_another_process().local_path).parent
    wait_for_no_server(home)
    assert list(directory.parent.iterdir()) == []


def test_the_home_of_a_test_waits_for_a_server_that_another_process_started() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch, staging_home(monkeypatch):
        pid = start_by_another_process().pid
        started = start_time(pid)
    assert has_ended(pid, started)


def test_a_server_that_starts_after_its_application_was_killed_ends_too(
    settings: StagingSettings, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker outlives its JVM for a moment, and looks for a server in it."""
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    monkeypatch.setattr(address_module, "application_pid", lambda: killed.pid)
    with contextlib.suppress(StagingFailed):  # it may have ended before it was asked
        ensure_server(settings)
    wait_for_no_server(home)


def test_a_port_that_is_taken_is_named(settings: StagingSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"stagingPort={port}|stagingPort.*{port}"):
            ensure_server(replace(settings, port=port))


def test_a_driver_that_cannot_be_reached_is_named_with_the_options_that_help() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    address = ServerAddress("", "127.0.0.1", port, "ab" * 32, 1)
    with pytest.raises(StagingFailed) as caught:
        open_server_outlet(address, TaskAttempt("q", 1, "r", "n"), host=None, is_local=False)
    for text in (f"127.0.0.1:{port}", "stagingHost", "stagingPort", "stagingLocation"):
        assert text in str(caught.value)


def test_a_server_that_lets_no_more_in_is_not_taken_for_one_that_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_one() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=close_one)
        thread.start()
        address = ServerAddress("", "127.0.0.1", listener.getsockname()[1], "ab" * 32, 1)
        with pytest.raises(StagingFailed) as caught:
            open_server_outlet(address, TaskAttempt("q", 1, "r", "n"), host=None, is_local=False)
        thread.join()
    for text in ("too many connections", "the task is tried again", "stagingLocation"):
        assert text in str(caught.value)
    assert "cannot be reached" not in str(caught.value)


def test_a_server_that_cannot_run_is_one_error_with_its_reason(
    settings: StagingSettings, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = home / "broken"
    broken.mkdir()
    (broken / "cryptography.py").write_text("raise ImportError('no such compiled part')\n")
    monkeypatch.setattr(sys, "path", [str(broken), *sys.path])
    address, attempt = ensure_server(settings), TaskAttempt("q", 1, "r", "n")
    with pytest.raises(StagingFailed, match="its log ends with: ImportError: no such compiled"):
        open_server_outlet(address, attempt, host=None, is_local=True).finish(b"")
    assert ensure_server(settings) != address


def test_a_directory_of_somebody_else_is_not_used(
    settings: StagingSettings, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = home / f"txnlog-staging-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(StagingFailed, match="not a directory of this user alone"):
        ensure_server(settings)
    with caplog.at_level(logging.WARNING):
        StagedReader(settings, None).remove_batches("q", 1, "")
    assert "are not removed" in caplog.text, "a batch may be committed: that is no error of it"
    shared.chmod(0o700)
    ensure_server(settings)


def test_a_server_without_descriptors_does_not_take_its_application_for_ended(
    settings: StagingSettings, home: Path
) -> None:
    attempt = TaskAttempt("q", 3, "r", "r-0")
    message = stage(attempt, rows(3), remote(settings, attempt))
    (server,) = servers_under(home)
    limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (24, limits[1]))
    port = ensure_server(settings).port
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    wait_until(lambda: server.num_fds() >= 24, "no descriptor is left")
    # Longer than it takes to look twice at the application.
    pause(2.5)
    assert server.is_running()
    for each in strangers:
        each.close()
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
    wait_until(lambda: is_there(settings, message), "the server serves again")


def test_what_a_full_disk_refused_leaves_no_file_and_its_reason_reaches_the_task(
    settings: StagingSettings, home: Path
) -> None:
    ensure_server(settings)
    (server,) = servers_under(home)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (700_000, 700_000))
    attempt = TaskAttempt("q", 3, "r", "r-0")
    with pytest.raises(StagingFailed, match=r"cannot be written.*File too large"):
        stage(attempt, rows(40), remote(settings, attempt))
    assert not list(home.rglob("*.staged"))


def test_a_cleaner_of_old_files_does_not_cost_a_server_its_directory(
    settings: StagingSettings, home: Path
) -> None:
    attempt = TaskAttempt("q", 3, "r", "r-0")
    message = stage(attempt, rows(3), remote(settings, attempt))
    directory = Path(ensure_server(settings).local_path).parent
    for name in ("alive.lock", "start.lock"):
        (directory / name).unlink()
    ensure_server(replace(settings, disk_bytes_max=1))
    assert read_back(settings, message)


def test_files_that_were_removed_between_two_batches_cost_no_later_batch(
    settings: StagingSettings, home: Path
) -> None:
    for number in range(2):
        attempt = TaskAttempt("q", number, "r", "r-0")
        message = stage(attempt, rows(3), remote(settings, attempt))
        assert read_back(settings, message) == expected(rows(3))
        StagedReader(settings, None).remove_batches("q", number, "")
        shutil.rmtree(settings.directory or "")
        Path(settings.directory or "").mkdir()
    assert len(servers_under(home)) == 1


def test_a_directory_that_others_made_in_its_place_is_not_written_to(
    settings: StagingSettings,
) -> None:
    attempt = TaskAttempt("q", 1, "r", "r-0")
    ensure_server(settings)
    (spool,) = Path(settings.directory or "").glob("txnlog-staging-*/*")
    spool.rmdir()
    spool.mkdir()
    spool.chmod(0o777)
    with pytest.raises(StagingFailed, match="not a directory of this user alone"):
        stage(attempt, rows(3), remote(settings, attempt))
    assert not list(spool.iterdir())


def test_where_the_server_is_does_not_depend_on_free_space(
    settings: StagingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_server(settings)

    def full(*_: object) -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile._get_default_tempdir", full)
    monkeypatch.setattr("tempfile.tempdir", None)
    found = address_module.running_server(settings)
    assert found is not None
    found.close()


def test_an_ipv6_address_is_listened_on_and_reached_as_spark_writes_it(
    settings: StagingSettings,
) -> None:
    settings = replace(settings, bind_address="::1")
    attempt = TaskAttempt("q", 3, "r", "r-0")

    def outlet() -> Outlet:
        return open_server_outlet(ensure_server(settings), attempt, host="[::1]", is_local=False)

    assert read_back(settings, stage(attempt, rows(3), outlet)) == expected(rows(3))


LIMIT_BYTES = 300 * MIB
"""Memory limit of the worker that starts the server: `spark.sql.planner.pythonExecution.memory`."""

WORKER = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES}))
from support.query.staging_home import stage_and_read_back, staging_settings
stage_and_read_back(staging_settings(bind_address="127.0.0.1"))
"""


def test_a_server_that_a_limited_worker_starts_stages_more_than_its_limit(home: Path) -> None:
    tests = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        env=os.environ | {"PYTHONPATH": str(tests)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
