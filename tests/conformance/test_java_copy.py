"""Exactly once through the Java client: consume, transform, produce, with workers that come and go.

Two workers of one group read a topic under read_committed and copy it in transactions that carry
their offsets. One is killed in the middle of a transaction, one joins late, one leaves; what
read_committed sees in the end is every input record once.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from support.brokers.probe import NotReady, wait_until
from support.clients.librdkafka import (
    committed_offsets,
    create_topic,
    produce_values,
    read_topic,
    values_of,
)
from support.kafka.java_tools import JavaProcess

pytestmark = pytest.mark.kafka

PARTITIONS = 4
ROUNDS = 3
ROUND_RECORDS = 200


class Copy:
    """The topics of one copy, its input so far, and workers on it."""

    def __init__(self, start: Callable[..., JavaProcess], bootstrap: str, names, assignor: str):
        self._start = start
        self.bootstrap = bootstrap
        self.group = names("copy")
        self.input = create_topic(bootstrap, names("in"), PARTITIONS)
        self.output = create_topic(bootstrap, names("out"), PARTITIONS)
        self.assignor = assignor
        self.fed: list[str] = []
        self.workers: list[JavaProcess] = []

    def worker(self, name: str, *, static: bool = False) -> JavaProcess:
        """Start a worker; its transactional id is its name."""
        # A static member's place and transaction are kept for as long as a restart may take.
        session = ("30000", name) if static else ("6000", "-")
        names = [self.input, self.output, self.group, f"{self.group}-{name}"]
        worker = self._start("CopyWorker", self.bootstrap, *names, self.assignor, *session)
        self.workers.append(worker)
        return worker

    def feed(self) -> None:
        """Produce another round of input, to all partitions."""
        first = len(self.fed)
        for partition in range(PARTITIONS):
            values = [f"{partition}-{first + n:05}" for n in range(ROUND_RECORDS // PARTITIONS)]
            produce_values(self.bootstrap, self.input, values, partition)
            self.fed += values

    def caught_up(self) -> bool:
        """Whether the group has committed the whole input."""
        offsets = committed_offsets(self.bootstrap, self.group, self.input, PARTITIONS)
        return sum(offsets.values()) == len(self.fed)

    def check(self) -> None:
        """Wait for the end of the copying; every record is there once."""
        try:
            wait_until(self.caught_up, "the whole input to be committed", timeout_s=60)
        except NotReady as late:
            offsets = committed_offsets(self.bootstrap, self.group, self.input, PARTITIONS)
            told = [f"{late}: {offsets} of {len(self.fed)}"]
            told += [each.account() for each in self.workers]
            raise NotReady("\n".join(told)) from None
        assert values_of(read_topic(self.bootstrap, self.output)) == sorted(self.fed)


@pytest.fixture(
    params=[pytest.param("RangeAssignor", marks=pytest.mark.chaos), "CooperativeStickyAssignor"]
)
def copy(request, java_process, broker, unique) -> Copy:
    """A copy with each kind of rebalance."""
    return Copy(java_process, broker.bootstrap_servers, unique, request.param)


def owns(worker: JavaProcess, count: int) -> None:
    """Wait until the worker says that it owns `count` partitions."""
    worker.wait_line(
        lambda line: '"assigned"' in line and len(json.loads(line)["partitions"]) == count,
        f"{count} partitions",
    )


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


def test_the_copy_goes_on_over_a_killed_and_restarted_broker(java_process, new_broker, unique):
    broker = new_broker()
    copy = Copy(java_process, broker.bootstrap_servers, unique, "CooperativeStickyAssignor")
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
