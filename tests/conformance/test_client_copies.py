"""Exactly once by a client: consume, transform, produce, with workers that come and go.

Workers of one group read a topic under read_committed and copy it in transactions that carry their
offsets. A worker is killed in the middle of a transaction, another joins late, and another leaves.
In the end read_committed sees every input record once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from support.brokers.probe import NotReady, wait_until
from support.clients import member
from support.clients.adapter import params_of
from support.clients.librdkafka import (
    committed_offsets,
    create_topic,
    produce_values,
    read_topic,
    values_of,
)
from support.clients.talking import Talking
from support.harness.availability import available
from support.kafka.java_tools import java_command

PARTITIONS = 4
ROUNDS = 3
ROUND_RECORDS = 200
Start = Callable[[list[str]], Talking]


class Copy:
    """The topics of one copy, its input so far, and workers of a library on it."""

    def __init__(self, library: str, assignor: str, start: Start, bootstrap: str, names) -> None:
        self._start, self._library, self._assignor = start, library, assignor
        self.bootstrap = bootstrap
        self.group = names("copy")
        self.input = create_topic(bootstrap, names("in"), PARTITIONS)
        self.output = create_topic(bootstrap, names("out"), PARTITIONS)
        self.fed: list[str] = []
        self.workers: list[Talking] = []

    def worker(self, name: str, *, static: bool = False) -> Talking:
        """Start a worker; its transactional id is its name."""
        # A static member's place and transaction are kept for as long as a restart may take: a JVM
        # starts in 45 s on a machine that is slow enough.
        timeout_ms = 300_000 if static else 6_000
        settings = {"session_timeout_ms": timeout_ms}
        settings["partition_assignment_strategy"] = self._assignor
        if static:
            settings["group_instance_id"] = name
        words = [self._library, self.bootstrap, self.group, self.input, json.dumps(settings)]
        words += [self.output, f"{self.group}-{name}", str(timeout_ms)]
        self.workers.append(self._start([sys.executable, member.__file__, *words]))
        return self.workers[-1]

    def feed(self) -> None:
        """Produce another round of input, to all partitions."""
        first = len(self.fed)
        for partition in range(PARTITIONS):
            values = [f"{partition}-{first + n:05}" for n in range(ROUND_RECORDS // PARTITIONS)]
            produce_values(self.bootstrap, self.input, values, partition)
            self.fed += values

    def caught_up(self) -> bool:
        """Return True if the group has committed the whole input."""
        offsets = committed_offsets(self.bootstrap, self.group, self.input, PARTITIONS)
        return sum(offsets.values()) == len(self.fed)

    def check(self) -> None:
        """Wait for the end of the copying; every record is there once."""
        try:
            wait_until(self.caught_up, "the whole input to be committed")
        except NotReady as late:
            offsets = committed_offsets(self.bootstrap, self.group, self.input, PARTITIONS)
            told = [f"{late}: {offsets} of {len(self.fed)}"]
            told += [each.account() for each in self.workers]
            raise NotReady("\n".join(told)) from None
        assert values_of(read_topic(self.bootstrap, self.output)) == sorted(self.fed)


def copies(*names: str, chaos: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Parametrize a test by library with its newest assignor; long runs add the older one."""
    newest = {"aiokafka": "range", "librdkafka": "cooperative-sticky", "java": "cooperative-sticky"}
    params = [(each, newest[each.values[0]], []) for each in params_of(*names)]
    params += [(each, "range", [pytest.mark.chaos]) for each in params_of(*chaos) if chaos]
    return pytest.mark.parametrize(
        ("library", "assignor"),
        [
            pytest.param(*each.values, assignor, marks=[*each.marks, *more])
            for each, assignor, more in params
        ],
    )


@pytest.fixture
def make_copy(library, assignor, talking, unique) -> Callable[[str], Copy]:
    """A copy by this library."""
    if library == "java":
        available(java_command)
    return lambda bootstrap: Copy(library, assignor, talking, bootstrap, unique)


@pytest.fixture
def copy(make_copy, bootstrap) -> Copy:
    """A copy on each broker."""
    return make_copy(bootstrap)


def owns(worker: Talking, count: int) -> None:
    """Wait until the worker says that it owns `count` partitions."""
    while len(worker.wait_event("assigned")["partitions"]) != count:
        pass


@copies("librdkafka", "java", chaos=("java",))
def test_workers_that_join_are_killed_in_mid_transaction_and_leave_copy_exactly_once(copy):
    first = copy.worker("first")
    owns(first, 4)
    copy.feed()
    first.wait_event("committed")
    second = copy.worker("second")
    owns(second, 2)
    copy.feed()
    second.wait_event("committed")
    second.tell("stall")
    copy.feed()
    stalled = second.wait_event("stalled")
    second.kill()
    # The group waits for the session, then the offsets for the transaction's timeout.
    owns(first, 2)
    owns(first, 4)
    third = copy.worker("third")
    owns(third, 2)
    copy.feed()
    third.wait_event("committed")
    third.tell("close")
    third.wait_event("closed")
    copy.feed()
    copy.check()
    uncommitted = read_topic(copy.bootstrap, copy.output, isolation="read_uncommitted")
    assert len(uncommitted) >= len(copy.fed) + stalled["records"]


@copies("aiokafka", "librdkafka", "java", chaos=("java",))
def test_a_static_worker_killed_in_mid_transaction_comes_back_without_a_rebalance(copy):
    workers = [copy.worker(name, static=True) for name in ("first", "second")]
    for each in workers:
        owns(each, 2)
    copy.feed()
    workers[0].wait_event("committed")
    workers[1].tell("stall")
    copy.feed()
    stalled = workers[1].wait_event("stalled")
    workers[1].kill()
    # Its transactional id is the same: initTransactions aborts what the killed one left open.
    again = copy.worker("second", static=True)
    assert again.wait_event("committed")["generation"] == stalled["generation"]
    copy.check()


@copies("java")
def test_the_copy_goes_on_over_a_killed_and_restarted_broker(make_copy, new_broker):
    broker = new_broker()
    copy = make_copy(broker.bootstrap_servers)
    workers = [copy.worker(name, static=True) for name in ("first", "second")]
    for each in workers:
        owns(each, 2)
    copy.feed()
    workers[1].wait_event("committed")
    workers[1].tell("stall")
    copy.feed()
    workers[1].wait_event("stalled")
    # The other one has nothing under way, and no timeout ends the open transaction while the broker
    # starts: Apache Kafka 4.3 forgets the markers of what it loads prepared (KAFKA-20734).
    copied = 0
    while copied < len(copy.fed) // 2:
        copied += workers[0].wait_event("committed")["records"]
    broker.restart()
    workers[1].kill()
    copy.feed()
    again = copy.worker("second", static=True)
    again.wait_event("committed")
    copy.check()
