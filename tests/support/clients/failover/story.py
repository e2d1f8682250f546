"""Play one failover: clients work, a broker with one part is killed or stopped, and comes back.

The part is the fault's own. The leader of the topics coordinates nothing that is used, the
coordinator of the group is not that of the transactions, and neither of them is the controller. So
a client sees the move of that part alone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.cluster_roles import Cluster, coordinator, is_whole
from support.brokers.coordinators_ready import GROUP, TRANSACTION
from support.brokers.probe import NotReady, pause, ports_of, wait_for, wait_until
from support.clients.failover.clients import Client, Event
from support.clients.failover.events import WORKS
from support.clients.librdkafka import Seen, read_topic
from support.raw.raw import Connection
from support.raw.requests import request

from txnlog_kafka.wire.messages import ApiKey

SESSION_TIMEOUT_MS = 6000
HEARTBEAT_MS = 500
AWAY_SECONDS = 12.0
"""Time from the kill until the broker is started again: twice the session timeout."""
STEADY_COUNT = 10
START_SECONDS_MAX = 240.0
NAMES = 20
"""Number of keys that is enough for each of three brokers to coordinate one of them."""
RECOVERY_SECONDS_MAX = 90.0
LOST_CONNECTION = {
    *("_TRANSPORT", "_ALL_BROKERS_DOWN", "_DESTROY_BROKER"),  # librdkafka
    *("DisconnectException", "NetworkException"),  # Java
    *("connection refused", "connection reset by peer", "broken pipe", "EOF"),  # franz-go
    *("KafkaConnectionError", "NodeNotReadyError"),  # kafka-python
}
"""Names by which the libraries call a lost connection."""
TIMEOUT_S = 600.0
STOPPED = "broker stopped cleanly"
FAULTS = (
    "leader killed",
    "group coordinator killed",
    "transaction coordinator killed",
    "controller killed",
    STOPPED,
)
"""A broker that is stopped has all parts but the controller's."""


class Failing(Cluster, Protocol):
    """Three brokers of either kind."""

    numbers: tuple[int, ...]

    def controller(self) -> int:
        """The number of the broker that is the controller."""

    def stop_one(self, number: int) -> None:
        """Stop a broker cleanly."""


@dataclass(frozen=True)
class Outcome:
    """Observations of one library in one work."""

    library: str
    work: str
    errors: tuple[str, ...]
    lost: int
    doubled: int
    went_on: bool
    pause_ms: int

    @property
    def verdict(self) -> tuple[object, ...]:
        """Return the facts that must be equal on both kinds of brokers."""
        return self.library, self.work, self.lost, self.went_on, self.kinds

    @property
    def kinds(self) -> tuple[str, ...]:
        """The errors but for lost connections: whether a request was under way when the broker
        went, and is reported as one, the moment decides, on both."""
        return tuple(each for each in self.errors if each not in LOST_CONNECTION)


@dataclass(frozen=True)
class Result:
    fault: str
    outcomes: tuple[Outcome, ...]
    logged: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Layout:
    """Brokers of a story, by their part."""

    victim: int
    leader: int
    group_coordinator: int
    transaction_coordinator: int

    @classmethod
    def of(cls, cluster: Failing, fault: str) -> Layout:
        """Lay a story out so that a broker has the part of the fault and no other."""
        controller = cluster.controller()
        one, other = (number for number in cluster.numbers if number != controller)
        victim = controller if fault.startswith("controller") else one
        parts = (one if fault.startswith((part, STOPPED)) else other
                 for part in ("leader", "group", "transaction"))  # fmt: skip
        return cls(victim, *parts)


def play(cluster: Failing, fault: str, libraries: Collection[str], folder: Path) -> Result:
    """Play the whole story; all replicas are in sync before and after."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    put_leaders_back(cluster, admin)
    layout = Layout.of(cluster, fault)
    tag = f"{time.time_ns() // 10**6:x}"
    topics: dict[str, tuple[str, str]] = {}
    with ExitStack() as stack:
        clients = []
        for number, library in enumerate(libraries):
            words = _prepared(cluster, admin, layout, f"{tag}-{number}")
            topics[library] = words[0], words[1]
            started = Client(library, folder / f"{fault}-{library}".replace(" ", "-"),
                             [cluster.bootstrap_servers, *words])  # fmt: skip
            clients.append(stack.enter_context(started))
        wait_working(clients, 0)
        failed_at, end_ms = _fail(cluster, layout.victim, fault)
        recovered = _recovered(clients, end_ms)
    logged = {each.library: tuple(sorted(each.logged_errors())) for each in clients}
    outcomes = []
    for each in clients:
        produced, transacted = (
            read_topic(cluster.bootstrap_servers, topic) for topic in topics[each.library]
        )
        for work in WORKS:
            stored = transacted if work == "transact" else produced
            went_on = (each, work) in recovered
            outcomes.append(_outcome(each, work, stored, failed_at, went_on=went_on))
    return Result(fault, tuple(outcomes), logged)


def put_leaders_back(cluster: Failing, admin: AdminClient) -> None:
    """Wait until all replicas are in sync, and have each partition led by its first replica."""
    wait_whole(cluster)
    first_ones = {"election_type": 0, "topic_partitions": None, "timeout_ms": int(TIMEOUT_S * 1000)}
    with Connection(cluster.live_port) as connection:
        message = request(ApiKey.ELECT_LEADERS, **first_ones)
        assert connection.ask(message, 2).error_code == 0

    def is_back() -> bool:
        found = admin.list_topics(timeout=TIMEOUT_S).topics.values()
        return all(p.leader == p.replicas[0] for t in found for p in t.partitions.values())

    wait_until(is_back, "the first replicas to lead")


def wait_whole(cluster: Failing) -> None:
    """Return when every broker is there and each partition has all its replicas in sync."""
    ports = ports_of(cluster.bootstrap_servers)
    wait_until(lambda: is_whole(ports), "all replicas in sync", timeout_s=180)


def _prepared(cluster: Failing, admin: AdminClient, layout: Layout, tag: str) -> list[str]:
    """The names that a client is given: two topics, a group and a transactional id."""
    others = [number for number in cluster.numbers if number != layout.leader]
    replicas = [layout.leader, *others]
    topics = [
        NewTopic(f"{what}-{tag}", count, replica_assignment=[replicas] * count)
        for what, count in (("produced", 1), ("transacted", 2))
    ]
    for future in admin.create_topics(topics, request_timeout=TIMEOUT_S).values():
        future.result(TIMEOUT_S)
    wait_until(lambda: all(_leads(admin, each, layout.leader) for each in topics), "its leaders")
    group = _key(cluster, f"group-{tag}", GROUP, layout.group_coordinator)
    identity = _key(cluster, f"id-{tag}", TRANSACTION, layout.transaction_coordinator)
    return [*(each.topic for each in topics), group, identity]


def _leads(admin: AdminClient, topic: NewTopic, number: int) -> bool:
    found = admin.list_topics(topic.topic, timeout=TIMEOUT_S).topics[topic.topic].partitions
    return len(found) == len(topic.replica_assignment) and all(
        p.leader == number for p in found.values()
    )


def _key(cluster: Failing, stem: str, key_type: int, number: int) -> str:
    """A group or transactional id with this coordinator."""
    names = [f"{stem}-{each}" for each in range(NAMES)]

    def of_broker() -> list[str]:
        return [name for name in names if coordinator(cluster, name, key_type) == number]

    # Who asks first has the topic made, and its partitions led.
    wait_until(lambda: bool(of_broker()), f"a key that broker {number} coordinates")
    return of_broker()[0]


def wait_working(clients: Collection[Client], since_ms: int) -> None:
    """Return when each work of each client has been done some times since then."""

    def idle() -> list[str]:
        for each in clients:
            if not each.alive:
                raise NotReady(f"{each.library} has ended: {each.log_tail()}")
        return [f"{each.library}: {work}" for each in clients for work in WORKS
                if _count(each, work, since_ms) < STEADY_COUNT]  # fmt: skip

    wait_for(idle, [], timeout_s=START_SECONDS_MAX)


def _count(client: Client, work: str, since_ms: int) -> int:
    return sum(1 for e in client.events if e.work == work and e.ok and e.at >= since_ms)


def _fail(cluster: Failing, victim: int, fault: str) -> tuple[int, int]:
    """Take the broker away, and bring it back. When it went, and when all was well again, in ms."""
    failed_at = _now_ms()
    (cluster.kill if fault.endswith("killed") else cluster.stop_one)(victim)
    pause(AWAY_SECONDS)
    cluster.restart(victim)
    wait_whole(cluster)
    return failed_at, _now_ms()


def _now_ms() -> int:
    return time.time_ns() // 10**6


def _recovered(clients: Collection[Client], since_ms: int) -> set[tuple[Client, str]]:
    """Return the (client, work) pairs that succeeded STEADY_COUNT times since then, within a
    limit."""
    wanted = {(each, work) for each in clients for work in WORKS}

    def done() -> set[tuple[Client, str]]:
        return {(c, work) for c, work in wanted if _count(c, work, since_ms) >= STEADY_COUNT}

    deadline = time.monotonic() + RECOVERY_SECONDS_MAX
    while done() != wanted and time.monotonic() < deadline:
        pause()
    return done()


def _outcome(
    client: Client, work: str, stored: list[Seen], failed_at: int, *, went_on: bool
) -> Outcome:
    events = [each for each in client.events if each.work == work]
    lost, doubled = _account(work, events, stored)
    anew = any(each.anew and each.at >= failed_at for each in events)
    return Outcome(
        library=client.library,
        work=work,
        errors=tuple(sorted({e.error for e in events if e.error and e.at >= failed_at})),
        lost=lost,
        doubled=doubled,
        went_on=went_on and not anew,
        pause_ms=max(_pauses(events, failed_at), default=-1),
    )


def _pauses(events: list[Event], failed_at: int) -> Iterator[int]:
    """Yield the times between two successes, for those times that end after the fault."""
    times = [each.at for each in events if each.ok]
    return (b - a for a, b in itertools.pairwise(times) if b >= failed_at)


def _account(work: str, events: list[Event], stored: list[Seen]) -> tuple[int, int]:
    """Return how many acknowledged or written records are lost, and how many came twice."""
    told = [value for each in events for value in each.ok]
    lost = doubled = 0
    for partition in range(2 if work == "transact" else 1):
        there = [int(each.value) for each in stored if each.value and each.partition == partition]
        if work in ("consume", "group"):
            # What was written last may not have been read.
            written, read = {each for each in there if each <= max(told, default=-1)}, told
        else:
            written, read = {*told}, there
        lost += len(written - {*read})
        doubled += len(read) - len({*read})
    return lost, doubled


def failover_ms(cluster: Failing, produce: Callable[[str], None]) -> int:
    """Return the time from SIGKILL of a partition's leader to the next fully replicated record, in
    ms."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    put_leaders_back(cluster, admin)
    layout = Layout.of(cluster, "leader killed")
    (topic, *_) = _prepared(cluster, admin, layout, f"{_now_ms():x}")
    produce(topic)
    began = time.monotonic()
    cluster.kill(layout.victim)
    produce(topic)
    took_ms = round((time.monotonic() - began) * 1000)
    cluster.restart(layout.victim)
    return took_ms
