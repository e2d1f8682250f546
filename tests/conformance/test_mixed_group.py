"""Members of three client stacks in one group that come, leave and die while records flow."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from support.brokers.apache_kafka import die_with_parent
from support.brokers.probe import wait_for, wait_until
from support.clients import group_worker
from support.clients.librdkafka import (
    TIMEOUT_S,
    committed_offsets,
    consumer,
    create_topic,
    plain_producer,
)

PARTITIONS = 6
CLIENTS = list(group_worker.CLIENTS)


class Worker:
    """A member in a process of its own, and what it printed."""

    def __init__(self, client: str, bootstrap: str, group: str, topic: str) -> None:
        self.client = client
        self.share: list[int] = []
        self.records: list[tuple[int, int]] = []
        self.said: list[str] = []
        self.errors: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, group_worker.__file__, client, bootstrap, group, topic],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one short libc call
            cwd=Path(group_worker.__file__).parent,
        )
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for each in self._threads:
            each.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # The last line of a killed one may be torn.
            word, _, rest = line.strip().partition(" ")
            if not line.endswith("\n"):
                continue
            if word == "assigned":
                self.share = [int(number) for number in rest.split(",") if number]
            elif word == "record":
                partition, _, record_offset = rest.partition(" ")
                self.records.append((int(partition), int(record_offset)))
            else:
                self.said.append(line.strip())

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self.errors.extend(self._process.stderr)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def end(self, how: signal.Signals) -> None:
        """SIGTERM: leave the group; SIGKILL: be gone. Waits for the end of the process."""
        wait_until(lambda: "ready" in self.said, f"{self.client} to hear signals")
        self._process.send_signal(how)
        self._process.wait(TIMEOUT_S)
        for each in self._threads:
            each.join(TIMEOUT_S)


class Group:
    """The topic, its producer, and the workers that ever were."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.names = (bootstrap, group, topic)
        self.members: list[Worker] = []
        self.gone: list[Worker] = []
        self.count = 0
        self._producer = plain_producer(bootstrap)

    def join(self, client: str) -> None:
        """One more member."""
        self.members.append(Worker(client, *self.names))

    def end(self, index: int, how: signal.Signals) -> None:
        """One member less, while records are on their way to it."""
        worker = self.members.pop(index)
        self.produce(60)
        worker.end(how)
        self.gone.append(worker)
        if how is signal.SIGTERM:
            assert worker.said[-1:] == ["left"], (worker.said, worker.errors)

    def produce(self, count: int) -> None:
        """So many records, over all partitions in turn."""
        for _ in range(count):
            self._producer.produce(self.names[2], b"x", partition=self.count % PARTITIONS)
            self.count += 1
        assert self._producer.flush(TIMEOUT_S) == 0

    def wait_until_shared(self) -> None:
        """Each partition has one member, each member a partition; then records flow."""

        def shared() -> bool:
            for each in self.members:
                assert each.is_alive, (each.client, each.said, each.errors)
            shares = [each.share for each in self.members]
            whole = sorted(number for share in shares for number in share)
            return whole == list(range(PARTITIONS)) and all(shares)

        wait_until(shared, f"{[each.client for each in self.members]} to share", timeout_s=60)
        self.produce(60)

    def delivered(self) -> set[tuple[int, int]]:
        """(partition, offset) of all records any member ever got."""
        return {each for worker in self.members + self.gone for each in worker.records}

    def check(self) -> None:
        """Wait until every record was delivered and the committed offsets are the ends."""
        each_partition, rest = divmod(self.count, PARTITIONS)
        assert rest == 0
        expected = {(p, o) for p in range(PARTITIONS) for o in range(each_partition)}
        wait_until(lambda: self.delivered() >= expected, "every record", timeout_s=60)
        assert self.delivered() == expected
        bootstrap, group, topic = self.names
        ends = dict.fromkeys(range(PARTITIONS), each_partition)
        wait_for(lambda: committed_offsets(bootstrap, group, topic, PARTITIONS), ends)

    def stop(self) -> None:
        """Kill what is left."""
        for each in self.members:
            each.end(signal.SIGKILL)


@pytest.fixture
def group(broker, unique):
    """A group without members, and its topic."""
    topic = create_topic(broker.bootstrap_servers, unique("mixed"), PARTITIONS)
    made = Group(broker.bootstrap_servers, unique("group"), topic)
    yield made
    made.stop()


def test_members_of_three_clients_that_come_leave_and_die_lose_no_record(group):
    for client in CLIENTS:
        group.join(client)
    group.wait_until_shared()
    # The first to join leads and assigns for all: killing it moves that to another client.
    group.end(0, signal.SIGKILL)
    group.wait_until_shared()
    group.join(group.gone[0].client)
    group.end(0, signal.SIGTERM)
    group.wait_until_shared()
    group.end(0, signal.SIGKILL)
    group.wait_until_shared()
    group.check()
    # Who is left leaves in order; a successor starts behind all that was committed.
    group.end(0, signal.SIGTERM)
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
            how = rng.choice([signal.SIGTERM, signal.SIGKILL])
            group.end(rng.randrange(len(group.members)), how)
        if rng.random() < 0.7:
            group.wait_until_shared()
    group.wait_until_shared()
    group.check()
