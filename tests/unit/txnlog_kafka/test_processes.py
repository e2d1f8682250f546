"""Processes of this machine, as /proc and ps know them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from support.brokers.probe import wait_until

from txnlog_kafka import processes


def test_a_process_is_known_by_its_start_and_gone_when_it_is_a_zombie() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        started = processes.start_time(process.pid)
        assert started is not None
        assert started == processes.start_time(process.pid)
        assert started != processes.start_time(os.getpid())
        if shutil.which("ps") is not None:
            assert processes._look_by_ps(process.pid) == processes._look_by_ps(process.pid)
        process.kill()
        processes.wait_for_end(process.pid, 60)
        wait_until(lambda: processes.start_time(process.pid) is None, "the process to be a zombie")
    finally:
        process.kill()
        process.communicate()
    assert processes.start_time(process.pid) is None
    assert processes.has_ended(process.pid, started)
    assert processes.has_ended(process.pid, None)


def test_the_first_process_of_a_container_may_be_the_jvm(monkeypatch) -> None:
    own = os.getpid()
    tree = {own: ("python3", 7), 7: ("python3", 1), 1: ("java", 0)}
    monkeypatch.setattr(processes, "_name_and_parent", tree.get)
    assert processes.application_pid() == 1
    tree[1] = ("init", 0)
    assert processes.application_pid() == own


def test_a_forked_process_that_descends_from_no_jvm_names_its_own(monkeypatch) -> None:
    own = os.getpid()
    tree = {own: ("python3", 1), 1: ("init", 0), 9: ("java", 1), 10: ("bash", 1)}
    monkeypatch.setattr(processes, "_name_and_parent", tree.get)
    for jvm, found in ((9, 9), (10, own), (11, own)):  # of which one has ended, or its id is reused
        monkeypatch.setenv(processes.APPLICATION_VARIABLE, str(jvm))
        assert processes.application_pid() == found


def test_a_process_that_nobody_can_look_at_has_not_ended(monkeypatch) -> None:
    started = processes.start_time(os.getpid())
    assert not processes.has_ended(os.getpid(), started)
    assert processes.has_ended(os.getpid(), "another start")

    def refuse(*_: object, **__: object) -> str:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    assert not processes.has_ended(os.getpid(), started)


def test_a_lock_is_no_link_to_another_file(tmp_path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "lock").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"), processes.locked(tmp_path / "lock"):
        pass
    with processes.locked(precious):
        assert precious.read_text() == "kept"


def test_ps_names_a_process_and_its_parent_as_proc_does() -> None:
    by_ps = processes._name_and_parent_by_ps(os.getpid())
    by_proc = processes._name_and_parent(os.getpid())
    assert by_proc is not None
    assert by_proc[1] == os.getppid()
    assert by_ps is None or by_ps[1] == os.getppid()
    assert processes._name_and_parent_by_ps(2**22 + 1) is None


def test_a_directory_is_removed_though_a_process_of_this_id_was_killed_at_it(tmp_path) -> None:
    left, directory = tmp_path / f"spool.{os.getpid()}.ended", tmp_path / "spool"
    for each in (left, directory):
        each.mkdir()
        (each / "1.staged").touch()
    processes.remove_directory(directory)
    assert list(tmp_path.iterdir()) == [left]
