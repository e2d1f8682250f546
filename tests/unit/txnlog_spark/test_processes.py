"""Processes of this machine, as /proc and ps know them."""

from __future__ import annotations

import os
import subprocess
import sys

from support.probe import wait_until

from txnlog_spark import processes


def test_a_process_is_known_by_its_start_and_gone_when_it_is_a_zombie() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        started = processes.start_time(process.pid)
        assert started is not None
        assert started == processes.start_time(process.pid)
        by_ps = processes._started_by_ps(process.pid)
        assert by_ps is None or by_ps == processes._started_by_ps(process.pid)
        process.kill()
        processes.wait_for_end(process.pid, 60)
        wait_until(lambda: processes.start_time(process.pid) is None, "the process to be a zombie")
    finally:
        process.kill()
        process.communicate()
    assert processes.start_time(process.pid) is None


def test_ps_names_a_process_and_its_parent_as_proc_does() -> None:
    by_ps = processes._name_and_parent_by_ps(os.getpid())
    by_proc = processes._name_and_parent(os.getpid())
    assert by_proc is not None
    assert by_proc[1] == os.getppid()
    assert by_ps is None or by_ps[1] == os.getppid()
    assert processes._name_and_parent_by_ps(2**22 + 1) is None
