"""Members of three client stacks in one group that come, leave and die while records flow."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from support.brokers.probe import wait_for, wait_until
from support.clients import member
from support.clients.librdkafka import (
    TIMEOUT_S,
    committed_offsets,
    consumer,
    create_topic,
    plain_producer,
)
from support.clients.talking import Talking

PARTITIONS = 6
CLIENTS = ["librdkafka", "kafka-python", "aiokafka"]
SETTINGS = json.dumps({"session_timeout_ms": 2_000, "partition_assignment_strategy": "range"})


class Worker:
    """A member in a process of its own, and what it said."""

    def __init__(self, start: Callable[[list[str]], Talking], client: str, *names: str) -> None:
        self.client = client
        self._process = start([sys.executable, member.__file__, client, *names, SETTINGS])

    def said(self, name: str) -> list[dict]:
        """Return all events of this name so far."""
        return [each for each in map(json.loads, self._process.so_far()) if each["name"] == name]

    @property
    def share(self) -> list[int]:
        """The partitions that it has now."""
        told = self.said("assigned")
        return told[-1]["partitions"] if told else []

    @property
    def records(self) -> list[tuple[int, int]]:
        """Partition and offset of each record that it got."""
        return [tuple(each) for told in self.said("got") for each in told["records"]]

    def check_alive(self) -> None:
        """Fail unless the process runs."""
        assert self._process.alive, (self.client, self._process.account())

    def leave(self) -> None:
        """Leave the group, and end."""
        self._process.tell("close")
        assert self._process.wait_end() == 0, self._process.account()
        assert self.said("closed"), self._process.account()

    def kill(self) -> None:
        """Be gone."""
        self._process.kill()


class Group:
    """The topic, its producer, and the workers that ever were."""

    def __init__(self, start, bootstrap: str, group: str, topic: str) -> None:
        self._start, self.names = start, (bootstrap, group, topic)
        self.members: list[Worker] = []
        self.gone: list[Worker] = []
        self.count = 0
        self._producer = plain_producer(bootstrap)

    def join(self, client: str) -> None:
        """Start another member."""
        self.members.append(Worker(self._start, client, *self.names))

    def end(self, index: int, *, kills: bool) -> None:
        """End a member while records are on their way to it."""
        worker = self.members.pop(index)
        self.produce(60)
        (worker.kill if kills else worker.leave)()
        self.gone.append(worker)

    def produce(self, count: int) -> None:
        """Produce `count` records, over all partitions in turn."""
        for _ in range(count):
            self._producer.produce(self.names[2], b"x", partition=self.count % PARTITIONS)
            self.count += 1
        assert self._producer.flush(TIMEOUT_S) == 0

    def wait_until_shared(self) -> None:
        """Each partition has one member, each member a partition; then records flow."""

        def shared() -> bool:
            for each in self.members:
                each.check_alive()
            shares = [each.share for each in self.members]
            whole = sorted(number for share in shares for number in share)
            return whole == list(range(PARTITIONS)) and all(shares)

        wait_until(shared, f"{[each.client for each in self.members]} to share")
        self.produce(60)

    def delivered(self) -> set[tuple[int, int]]:
        """(partition, offset) of all records any member ever got."""
        return {each for worker in self.members + self.gone for each in worker.records}

    def check(self) -> None:
        """Wait until every record was delivered and the committed offsets are the ends."""
        each_partition, rest = divmod(self.count, PARTITIONS)
        assert rest == 0
        expected = {(p, o) for p in range(PARTITIONS) for o in range(each_partition)}
        wait_until(lambda: self.delivered() >= expected, "every record")
        assert self.delivered() == expected
        bootstrap, group, topic = self.names
        ends = dict.fromkeys(range(PARTITIONS), each_partition)
        wait_for(lambda: committed_offsets(bootstrap, group, topic, PARTITIONS), ends)


@pytest.fixture
def group(bootstrap, talking, unique) -> Group:
    """A group without members, and its topic."""
    topic = create_topic(bootstrap, unique("mixed"), PARTITIONS)
    return Group(talking, bootstrap, unique("group"), topic)


def test_members_of_three_clients_that_come_leave_and_die_lose_no_record(group):
    for client in CLIENTS:
        group.join(client)
    group.wait_until_shared()
    # The first to join leads and assigns for all: killing it moves that to another client.
    group.end(0, kills=True)
    group.wait_until_shared()
    group.join(group.gone[0].client)
    group.end(0, kills=False)
    group.wait_until_shared()
    group.end(0, kills=True)
    group.wait_until_shared()
    group.check()
    # Who is left leaves in order; a successor starts behind all that was committed.
    group.end(0, kills=False)
    bootstrap, name, topic = group.names
    heir = consumer(bootstrap, name)
    places = heir.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], TIMEOUT_S)
    ends = [heir.get_watermark_offsets(place, TIMEOUT_S)[1] for place in places]
    heir.close()
    before = sum(place.offset for place in places)
    assert group.count - 60 <= before <= group.count == sum(ends)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fifty_random_joins_leaves_and_kills_lose_no_record(group, seed):
    rng = random.Random(seed)
    group.join(rng.choice(CLIENTS))
    for _ in range(50):
        if len(group.members) == 1 or (len(group.members) < 4 and rng.random() < 0.5):
            group.join(rng.choice(CLIENTS))
        else:
            kills = rng.choice([False, True])
            group.end(rng.randrange(len(group.members)), kills=kills)
        if rng.random() < 0.7:
            group.wait_until_shared()
    group.wait_until_shared()
    group.check()
