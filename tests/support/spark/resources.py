"""Measure the memory, threads and descriptors of a Spark application's processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psutil
from pyspark.sql import SparkSession

SERVER = "txnlog_spark.staging.server"
MIB = 1024 * 1024


@dataclass(frozen=True)
class Held:
    """Resources at one moment; `heap_bytes` is the JVM's heap after a garbage collection."""

    heap_bytes: int
    jvm_threads: int
    jvm_descriptors: int
    python: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """(bytes, threads, descriptors) by process id: workers, planners and the staging server."""


class Application:
    """The application of a session, looked at from outside."""

    def __init__(self, spark: SparkSession) -> None:
        self._runtime = spark._jvm.java.lang.Runtime.getRuntime()
        self._jvm = psutil.Process(spark._jvm.java.lang.ProcessHandle.current().pid())
        self._servers: list[psutil.Process] = []

    def find_servers(self) -> int:
        """Note the staging servers: a server is no child of the JVM once its starter has ended."""
        self._servers = [p for p in self._python() if _has(p, SERVER)]
        return len(self._servers)

    def _python(self) -> list[psutil.Process]:
        return self._jvm.children(recursive=True)

    def held(self) -> Held:
        for _ in range(3):  # what a first run finds unreachable, cleaners free behind it
            self._runtime.gc()
        found = {}
        for process in {p.pid: p for p in (*self._python(), *self._servers)}.values():
            try:
                with process.oneshot():
                    memory = process.memory_info().rss
                    found[process.pid] = (memory, process.num_threads(), process.num_fds())
            except psutil.NoSuchProcess:
                continue
        return Held(
            heap_bytes=self._runtime.totalMemory() - self._runtime.freeMemory(),
            jvm_threads=self._jvm.num_threads(),
            jvm_descriptors=self._jvm.num_fds(),
            python=found,
        )

    def check_servers(self) -> None:
        assert all(server.is_running() for server in self._servers)


def _has(process: psutil.Process, name: str) -> bool:
    try:
        return name in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def check_flat(before: Held, after: Held, bounds: dict[str, int]) -> None:
    """Fail when something grew by more than its bound; says how much all of it grew."""
    grown: dict[str, Any] = {
        "heap_bytes": after.heap_bytes - before.heap_bytes,
        "jvm_threads": after.jvm_threads - before.jvm_threads,
        "jvm_descriptors": after.jvm_descriptors - before.jvm_descriptors,
        "python_processes": len(after.python) - len(before.python),
    }
    for place, name in enumerate(("python_bytes", "python_threads", "python_descriptors")):
        both = [pid for pid in after.python if pid in before.python]
        grown[name] = max(after.python[pid][place] - before.python[pid][place] for pid in both)
    print(f"grew by {grown}")
    too_much = {name: size for name, size in grown.items() if size > bounds[name]}
    assert not too_much, f"{too_much} of {grown}, from {before} to {after}"
