"""Three brokers of ours where a conformance body expects one, and a broker killed in its middle.

A body runs there twice. The first run is without a kill and takes some time; in the second one a
broker dies when half of that time is over: one that leads a partition of a topic, or coordinates a
transactional id or a group, which the body has made by then. It is started again at once, or after
others have taken over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any
from zlib import crc32

from confluent_kafka.admin import AdminClient
from support.brokers.cluster_roles import is_whole
from support.brokers.coordinators_ready import GROUP, TRANSACTION, one_key_a_partition
from support.brokers.probe import wait_until
from support.brokers.processes import die_with_parent
from support.brokers.sim_broker import NODES, SMALL_BROKER, SimBroker
from support.raw.raw import Connection
from support.raw.requests import find_coordinator, request

from txnlog_kafka.wire.messages import ApiKey

WHOLE, KILLED = "broker_sim_cluster", "broker_sim_cluster_killed"
SESSION_TIMEOUT_MS = 2000
SETTINGS = SMALL_BROKER | {
    "registry.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "registry.heartbeat.interval.ms": "200",
}
PARTITIONS = int(SMALL_BROKER["offsets.topic.num.partitions"])
ROLES = ("leader", "transaction coordinator", "group coordinator")
BODY_SECONDS = 1.0
"""Seconds assumed for a body whose first run did not take place."""
ANSWER_SECONDS_MAX = 600.0


@dataclass(frozen=True)
class Use:
    """Brokers by what they do: (role, name of the topic, transactional id or group, broker)."""

    entries: frozenset[tuple[str, str, int]] = frozenset()

    def brokers(self, role: str, before: Use) -> list[int]:
        """Return the brokers that have this role for a name that was not in `before`."""
        known = {(kind, name) for kind, name, _ in before.entries}
        return sorted(
            {number for kind, name, number in self.entries
             if kind == role and (kind, name) not in known}
        )  # fmt: skip


class Keeper:
    """The cluster, in a process of its own: a client that holds Python's lock while it waits for
    a broker, as librdkafka's does in a rebalance callback, would keep it from coming back."""

    def __init__(self, folder: Path) -> None:
        self._cluster = SimBroker(folder, SETTINGS, brokers=NODES)
        self._killing = threading.Lock()
        self._before = Use()
        self._seed = 0
        self._admin: AdminClient | None = None
        self._killer: threading.Thread | None = None
        self._over = threading.Event()
        self._died: list[str] = []
        self._failed: list[BaseException] = []

    def addresses(self) -> str:
        return self._cluster.bootstrap_servers

    def start(self) -> None:
        """Start all, and return when the coordinators answer."""
        self._cluster.start()
        self._admin = AdminClient({"bootstrap.servers": self.addresses()})
        wait_until(self._has_coordinators, "the cluster's coordinators")
        self.wait_whole()

    def stop(self) -> None:
        self._cluster.stop()

    def begin(self, body: str) -> None:
        """Begin a body: names that appear from here on are the body's, and its own name decides
        which broker is killed."""
        self._seed = crc32(body.encode())
        self._before = self.use()

    def restart(self) -> None:
        """SIGKILL a broker that does something for the body, and start it again."""
        self._kill_one(ROLES[self._seed % len(ROLES)], pause_s=0.0)

    def _kill_one(self, role: str, *, pause_s: float) -> str:
        """The same, of this role if the body uses it; started again after a pause. What died."""
        with self._killing:
            use = self.use()
            found = {each: use.brokers(each, self._before) for each in ROLES}
            role = role if found[role] else next((each for each in ROLES if found[each]), role)
            brokers = found[role] or [*range(len(self._cluster.ports))]
            number = brokers[self._seed % len(brokers)]
            self._cluster.kill(number)
            threading.Event().wait(pause_s)
            self._cluster.restart(number)
            return f"{role} {number}" if found[role] else f"any {number}"

    def kill_later(self, after_s: float) -> None:
        """Kill one after this time, unless `killed` is called before."""
        pause_s = (0.0, 2 * SESSION_TIMEOUT_MS / 1000)[self._seed // len(ROLES) % 2]
        self._over.clear()
        self._died, self._failed = [], []

        def kill() -> None:
            if self._over.wait(after_s):
                return
            try:
                role = ROLES[self._seed % len(ROLES)]
                self._died.append(self._kill_one(role, pause_s=pause_s))
            except BaseException as error:
                self._failed.append(error)

        self._killer = threading.Thread(target=kill)
        self._killer.start()

    def killed(self) -> list[str]:
        """Return the names of the killed brokers, once they are back; raise the killer's error."""
        self._over.set()
        self._killer.join()
        for error in self._failed:
            raise error
        return self._died

    def use(self) -> Use:
        topics = self._admin.list_topics(timeout=ANSWER_SECONDS_MAX).topics
        entries = {
            (ROLES[0], topic, partition.leader)
            for topic, metadata in topics.items()
            if not topic.startswith("__")
            for partition in metadata.partitions.values()
            if partition.leader >= 0
        }
        for number, port in enumerate(self._cluster.ports):
            with Connection(port) as connection:
                ids, groups = _listed(connection)
            entries |= {(ROLES[1], each.transactional_id, number)
                        for each in ids.transaction_states}  # fmt: skip
            entries |= {(ROLES[2], each.group_id, number) for each in groups.groups}
        return Use(frozenset(entries))

    def wait_whole(self) -> None:
        """Return when every partition has a leader and all of its replicas in sync."""
        wait_until(lambda: is_whole(self._cluster.ports), "all replicas in sync")

    def _has_coordinators(self) -> bool:
        """True if every partition of both internal topics is led, and loaded by its leader."""
        keys = one_key_a_partition(PARTITIONS)
        for port in self._cluster.ports:
            with Connection(port) as connection:
                for key_type in (GROUP, TRANSACTION):
                    found = connection.ask(find_coordinator(key_type, *keys), 4).coordinators
                    if any(each.error_code for each in found):
                        return False
                if any(each.error_code for each in _listed(connection)):
                    return False
        return True


def _listed(connection: Connection) -> tuple[Any, Any]:
    return (
        connection.ask(request(ApiKey.LIST_TRANSACTIONS), 0),
        connection.ask(request(ApiKey.LIST_GROUPS), 4),
    )


class _Processes(BaseManager):
    """Starts keepers."""


_Processes.register("Keeper", Keeper)


class ClusterBroker:
    """Three brokers with the methods of one; `restart` kills the one that matters most."""

    name = WHOLE

    def __init__(self, folder: Path) -> None:
        self._processes = _Processes(ctx=get_context("spawn"))
        self._processes.start(initializer=die_with_parent)
        self._keeper = self._processes.Keeper(folder)
        self.bootstrap_servers = self._keeper.addresses()
        self._seconds: dict[str, float] = {}
        self.has_kill = False
        """True while a body runs with a kill."""

    def start(self) -> None:
        self._keeper.start()

    def stop(self) -> None:
        self._keeper.stop()
        self._processes.shutdown()

    def begin(self, body: str) -> None:
        self._keeper.begin(body)

    def restart(self) -> None:
        self._keeper.restart()

    def wait_whole(self) -> None:
        self._keeper.wait_whole()

    @contextmanager
    def timed(self, body: str) -> Iterator[None]:
        """Around a body's first run."""
        began = time.monotonic()
        yield
        self._seconds[body] = time.monotonic() - began

    @contextmanager
    def killing(self, body: str) -> Iterator[list[str]]:
        """Around its second one. Gives a list that has what died, in the end."""
        died: list[str] = []
        self._keeper.kill_later(self._seconds.get(body, BODY_SECONDS) / 2)
        self.has_kill = True
        try:
            yield died
        finally:
            self.has_kill = False
            died += self._keeper.killed()
