"""Watch the processes of `bench_growth`, by kind: CPU seconds, and memory at its highest.

All processes are below this one: the driver's JVM with Spark's workers, and the brokers. A thread
looks at them twice a second and keeps what it saw, because a query tells only afterwards when its
batches began and ended.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psutil
from bench_memory import STAGING, pss_mib

INTERVAL_S = 0.5
KINDS = {
    "broker_sim": "broker",
    STAGING: "staging server",
    "pyspark.worker": "tasks",
    "pyspark.sql.streaming.python_streaming_source_runner": "source",
    "pyspark.sql.worker.python_streaming_sink_runner": "commit",
}
"""Kinds by a word of the command; Spark's other workers, mostly short-lived, plan."""


@dataclass
class Look:
    """Observation of all processes at one time."""

    at_s: float
    cpu_s: dict[str, float]
    """CPU seconds by kind, of all processes so far."""
    mib: dict[str, float]
    """Memory by kind, of the largest process: its PSS."""


@dataclass
class Usage:
    """A context manager that looks at the processes while it is entered."""

    looks: list[Look] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seen: dict[psutil.Process, tuple[str, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Usage:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def between(self, start_s: float, end_s: float) -> tuple[dict[str, float], dict[str, int]]:
        """CPU seconds by kind within the time, and the most memory of one process, in MiB."""
        before, after = self._cpu_at(start_s), self._cpu_at(end_s)
        cpu_s = {kind: round(cpu - before.get(kind, 0.0), 3) for kind, cpu in after.items()}
        mib: dict[str, float] = defaultdict(float)
        for look in self.looks:
            if start_s - INTERVAL_S <= look.at_s <= end_s + INTERVAL_S:
                for kind, found in look.mib.items():
                    mib[kind] = max(mib[kind], found)
        return cpu_s, {kind: round(found) for kind, found in mib.items()}

    def _cpu_at(self, at_s: float) -> dict[str, float]:
        """Between two looks it rises evenly."""
        looks = self.looks
        place = min(max(bisect_left(looks, at_s, key=lambda look: look.at_s), 1), len(looks) - 1)
        one, other = looks[place - 1], looks[place]
        part = min(max((at_s - one.at_s) / (other.at_s - one.at_s), 0.0), 1.0)
        return {
            kind: cpu + (one.cpu_s.get(kind, 0.0) - cpu) * (1 - part)
            for kind, cpu in other.cpu_s.items()
        }

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self._look()

    def _look(self) -> None:
        mib: dict[str, float] = defaultdict(float)
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError, ValueError, IndexError):
                kind, times = kind_of(process), process.cpu_times()
                self._seen[process] = kind, times.user + times.system
                mib[kind] = max(mib[kind], pss_mib(process.pid))
        cpu_s: dict[str, float] = defaultdict(float)
        for kind, cpu in self._seen.values():
            cpu_s[kind] += cpu
        self.looks.append(Look(time.time(), dict(cpu_s), dict(mib)))


def kind_of(process: psutil.Process) -> str:
    """Return the kind of a process, by its command. IndexError: the process is ending."""
    command = process.cmdline()
    if command[0].endswith("java"):
        return "JVM"
    return next((kind for word, kind in KINDS.items() if word in command), "planning")


def span_of(batches: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the start of the first batch and the end of the last, by Spark's progress."""
    first, last = (datetime.fromisoformat(p["timestamp"]) for p in (batches[0], batches[-1]))
    return first.timestamp(), last.timestamp() + batches[-1]["durationMs"]["triggerExecution"] / 1e3
