"""Brokers that tell what they hold: one started from a shell, or three with their registry."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.brokers.probe import free_ports, ports_of, wait_for, wait_until
from support.brokers.processes import talking
from support.brokers.sim_broker import NODES, SMALL_BROKER, SimBroker
from support.core.churn import CHURN, ORDERS, SESSION_MS, connect_and_close
from support.core.object_counts import FOLDER_VARIABLE, SITE, ask_for_object_counts, grown
from support.raw.raw_admin import make_topic
from support.raw.routed import RoutedConnection
from support.raw.swarm import resident_bytes

SETTINGS = SMALL_BROKER | {
    "group.min.session.timeout.ms": str(SESSION_MS),
    "producer.id.expiration.ms": "1000",
    "producer.id.expiration.check.interval.ms": "500",
    "transactional.id.expiration.ms": "1000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    "offsets.retention.check.interval.ms": "500",
    "metadata.log.max.snapshot.interval.ms": "500",
    # A checkpoint names the topics of its moment until the next one.
    "log.flush.offset.checkpoint.interval.ms": "500",
}
"""Settings by which the broker soon forgets what Kafka keeps for days."""
NOISE = 20
"""Objects that come and go by themselves."""


class ShellBroker:
    """Broker that was started from a shell and is known to no test harness, with figures for a
    scraper."""

    def __init__(self, folder: Path) -> None:
        settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
        (port,) = free_ports(1)
        self.bootstrap_servers = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "broker_sim", "start", "--data-dir", str(folder / "data")]
        command += ["--port", str(port), "--metrics-port", "0", *settings]
        self._process = talking(command, folder / "broker.log")
        self.pids = [self._process.pid]
        assert self._process.stdout.readline().startswith("READY")

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()
        assert self._process.returncode == 0


class Held:
    """Objects that the broker processes hold, counted before and after clients come and go."""

    def __init__(self, brokers: ShellBroker | SimBroker, folder: Path) -> None:
        self._brokers = brokers
        self._folder = folder
        self._names = 0

    def settle(self, count: int) -> None:
        """Let that many of all come and go, after which nothing is there for the first time."""
        for kind in CHURN:
            self._come(kind, count)
        self._connect(count)
        before = self._object_counts()

        def is_quiet() -> bool:
            nonlocal before
            before, last = self._object_counts(), before
            return not any(grown(new, old, NOISE) for old, new in zip(last, before, strict=True))

        for _ in range(3):
            wait_until(is_quiet, "what came first to be gone")

    def check_connections(self, count: int, leak: int) -> None:
        """Fail when closed connections leave that many objects of a type."""
        self._check(lambda: self._connect(count), leak)

    def check(self, kind: str, count: int, leak: int) -> None:
        """Fail when so many of a kind of `CHURN` leave that many objects of a type."""
        self._check(lambda: self._come(kind, count), leak)

    def resident_bytes(self) -> list[int]:
        return [resident_bytes(pid) for pid in self._brokers.pids]

    def _connect(self, count: int) -> None:
        for port in ports_of(self._brokers.bootstrap_servers):
            asyncio.run(connect_and_close(port, count))

    def _come(self, kind: str, count: int) -> None:
        names = [f"{kind}-{self._names + each}".replace(" ", "-") for each in range(count)]
        self._names += count
        with RoutedConnection(ports_of(self._brokers.bootstrap_servers)) as connection:
            CHURN[kind](connection, names)

    def _check(self, come: Callable[[], None], leak: int) -> None:
        before = self._object_counts()
        come()

        def more() -> list[dict[str, int]]:
            pairs = zip(before, self._object_counts(), strict=True)
            return [grown(*pair, leak) for pair in pairs]

        wait_for(more, [{} for _ in before], timeout_s=30)

    def _object_counts(self) -> list[Counter[str]]:
        return [ask_for_object_counts(pid, self._folder) for pid in self._brokers.pids]


@contextmanager
def started(folder: Path, *, cluster: bool) -> Iterator[Held]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(FOLDER_VARIABLE, str(folder))
        patched.setenv("PYTHONPATH", os.pathsep.join(map(str, (SITE, SITE.parent.parent))))
        if cluster:
            brokers = SimBroker(folder, SETTINGS, brokers=NODES)
            brokers.start()
        else:
            brokers = ShellBroker(folder)
    try:
        with RoutedConnection(ports_of(brokers.bootstrap_servers)) as connection:
            make_topic(connection, ORDERS)
        yield Held(brokers, folder)
    finally:
        brokers.stop()
