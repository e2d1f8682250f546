"""Consumer groups of KIP-848 with franz-go's `ServerSideBalancer`, through kills, on both brokers.

A group of two members reads each record once; two members copy a topic in transactions that carry
their offsets, and read_committed sees each record once. The broker is killed while records flow,
and while transactions are open.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient
from support.brokers.probe import wait_until
from support.clients.go_programs import go_program
from support.clients.librdkafka import (
    committed_offsets,
    create_topic,
    produce_values,
    read_topic,
    values_of,
)
from support.clients.talking import Talking
from support.harness.availability import available

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.kafka]

PARTITIONS = 4
ROUND = 200
TIMEOUT_S = 240.0


class Member:
    """A process of the program, and what it told."""

    def __init__(self, process: Talking) -> None:
        self._process = process

    def told(self, name: str) -> list[dict[str, Any]]:
        """Return the events of this name so far."""
        assert self._process.alive, self._process.account()
        events = map(json.loads, self._process.so_far())
        return [each for each in events if each["name"] == name]

    def records(self, name: str) -> list[tuple[int, int]]:
        """Partition and offset of each record in these events."""
        return [tuple(each) for told in self.told(name) for each in told["records"]]

    @property
    def share(self) -> list[int]:
        """The partitions that it has now."""
        told = self.told("assigned")
        return told[-1].get("partitions", []) if told else []

    def tell(self, order: str) -> None:
        """Give an order."""
        self._process.tell(order)

    def leave(self) -> None:
        """Leave the group, and end."""
        self._process.tell("close")
        self._process.wait_event("closed")
        assert self._process.wait_end() == 0, self._process.account()


class Group:
    """The topic and its records, and two members."""

    def __init__(
        self, start: Callable[[list[str]], Talking], bootstrap: str, names, *, copies: bool
    ) -> None:
        command = available(lambda: go_program("member"))
        self.bootstrap, self.group = bootstrap, names("group")
        self.source = create_topic(bootstrap, names("in"), PARTITIONS)
        self.target = create_topic(bootstrap, names("out"), PARTITIONS)
        self.fed: list[str] = []
        self.members = []
        for name in ("first", "second"):
            words = [*command, bootstrap, self.group, self.source]
            words += [self.target, f"{self.group}-{name}"] if copies else []
            self.members.append(Member(start(words)))

    def wait_until_shared(self) -> None:
        """Return when each member has half of the partitions."""

        def shared() -> bool:
            one, two = (each.share for each in self.members)
            return sorted(one + two) == [0, 1, 2, 3] and len(one) == len(two)

        wait_until(shared, "a half each", timeout_s=TIMEOUT_S)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        described = admin.describe_consumer_groups([self.group])[self.group].result(TIMEOUT_S)
        assert described.type is ConsumerGroupType.CONSUMER

    def records(self, name: str) -> list[tuple[int, int]]:
        """Partition and offset of each record in both members' events of this name."""
        return [place for each in self.members for place in each.records(name)]

    def feed(self) -> None:
        """Produce a round of records, to all partitions."""
        first = len(self.fed) // PARTITIONS
        for partition in range(PARTITIONS):
            values = [f"{partition}-{first + n:05}" for n in range(ROUND // PARTITIONS)]
            produce_values(self.bootstrap, self.source, values, partition)
            self.fed += values

    def wait_flowing(self) -> None:
        """Return when each member has committed something of a round that is fed now."""
        before = [len(each.told("committed")) for each in self.members]
        self.feed()

        def flows() -> bool:
            pairs = zip(self.members, before, strict=True)
            return all(len(each.told("committed")) > count for each, count in pairs)

        wait_until(flows, "commits of both", timeout_s=TIMEOUT_S)

    def stall(self) -> None:
        """Have both members wait in the middle of a transaction."""
        before = [len(each.told("stalled")) for each in self.members]
        for each in self.members:
            each.tell("stall")
        self.feed()

        def stalled() -> bool:
            pairs = zip(self.members, before, strict=True)
            return all(len(each.told("stalled")) > count for each, count in pairs)

        wait_until(stalled, "transactions in their middle", timeout_s=TIMEOUT_S)

    def wait_committed(self) -> None:
        """Return when the group's offsets are at the ends of all partitions."""
        ends = dict.fromkeys(range(PARTITIONS), len(self.fed) // PARTITIONS)

        def committed() -> bool:
            return committed_offsets(self.bootstrap, self.group, self.source, PARTITIONS) == ends

        wait_until(committed, "the ends to be committed", timeout_s=TIMEOUT_S)


@pytest.mark.no_kill("the body kills the broker three times")
def test_two_members_read_each_record_once_through_kills(broker, talking, unique):
    group = Group(talking, broker.bootstrap_servers, unique, copies=False)
    group.wait_until_shared()
    for _ in range(3):
        group.wait_flowing()
        broker.restart()
    group.wait_flowing()
    group.wait_committed()
    expected = [(p, o) for p in range(PARTITIONS) for o in range(len(group.fed) // PARTITIONS)]
    assert sorted(group.records("got")) == expected
    for each in group.members:
        each.leave()


@pytest.mark.no_kill("the body kills the broker three times")
def test_two_members_copy_each_record_once_through_kills(broker, talking, unique):
    group = Group(talking, broker.bootstrap_servers, unique, copies=True)
    group.wait_until_shared()
    group.wait_flowing()
    for _ in range(2):
        group.stall()
        broker.restart()
        for each in group.members:
            each.tell("go")
        group.wait_flowing()
    if broker.name != "apache_kafka":
        # At any moment. Apache Kafka must have no transaction prepared then: KAFKA-20734.
        broker.restart()
        group.wait_flowing()
    group.wait_committed()
    assert values_of(read_topic(group.bootstrap, group.target)) == sorted(group.fed)
    for each in group.members:
        each.leave()
