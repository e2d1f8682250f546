"""Consumer groups of KIP-848 on three brokers whose coordinator is killed, on both brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from support.brokers.cluster_roles import coordinator
from support.brokers.coordinators_ready import GROUP, TRANSACTION
from support.brokers.probe import wait_until
from support.clients.failover.clusters import KINDS
from support.clients.librdkafka import (
    TIMEOUT_S,
    committed_offsets,
    consumer,
    create_topic,
    produce_values,
    read_topic,
    transactional,
    values_of,
)
from support.harness.availability import check_available

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

PARTITIONS = 4
PROTOCOL = {"group_protocol": "consumer"}
ENDS_TIMEOUT_S = 240.0


@pytest.fixture(
    scope="module", params=["broker_sim", pytest.param("apache_kafka", marks=pytest.mark.kafka)]
)
def cluster(request, tmp_path_factory) -> Iterator[Any]:
    """Three brokers of a kind."""
    check_available(request.param)
    kinds = dict(zip(("broker_sim", "apache_kafka"), KINDS.values(), strict=True))
    with kinds[request.param](tmp_path_factory.mktemp("cluster")) as brokers:
        yield brokers


@pytest.fixture
def topic(cluster, unique) -> str:
    """An empty topic of four partitions on all three brokers."""
    return create_topic(cluster.bootstrap_servers, unique("topic"), PARTITIONS)


class Readers:
    """Two members of a group, and what they read."""

    def __init__(self, cluster: Any, topic: str, group: str) -> None:
        self.cluster, self.topic, self.group = cluster, topic, group
        self.fed: list[str] = []
        self.got: list[str] = []
        self.members = [consumer(cluster.bootstrap_servers, group, **PROTOCOL) for _ in range(2)]
        for each in self.members:
            each.subscribe([topic])

    def feed(self) -> None:
        """Produce ten records to each partition."""
        for partition in range(PARTITIONS):
            values = [f"{partition}-{len(self.fed) + n}" for n in range(10)]
            produce_values(self.cluster.bootstrap_servers, self.topic, values, partition)
            self.fed += values

    def share(self) -> None:
        """Poll until each member has half of the partitions."""

        def shared() -> bool:
            self._poll()
            return [len(each.assignment()) for each in self.members] == [2, 2]

        wait_until(shared, "a half each", timeout_s=ENDS_TIMEOUT_S)

    def read(self) -> None:
        """Poll until all that was produced has come."""

        def complete() -> bool:
            self._poll()
            return len(self.got) >= len(self.fed)

        wait_until(complete, f"{len(self.fed)} records", timeout_s=ENDS_TIMEOUT_S)
        assert sorted(self.got) == sorted(self.fed)

    def _poll(self) -> None:
        for each in self.members:
            message = each.poll(0.05)
            # The errors of a broker that is away are followed by its records.
            if message is not None and message.error() is None:
                self.got.append(message.value().decode())

    def committed(self) -> dict[int, int]:
        """The group's offset of each partition."""
        bootstrap = self.cluster.bootstrap_servers
        return committed_offsets(bootstrap, self.group, self.topic, PARTITIONS)

    def ends(self) -> dict[int, int]:
        """The offset behind the last record of each partition."""
        return dict.fromkeys(range(PARTITIONS), len(self.fed) // PARTITIONS)

    def close(self) -> None:
        """Leave the group."""
        for each in self.members:
            each.close()


@pytest.fixture
def readers(cluster, topic, unique) -> Iterator[Readers]:
    """Two members that have a half of the topic each."""
    made = Readers(cluster, topic, unique("group"))
    made.share()
    yield made
    made.close()


def killed(cluster: Any, key: str, kind: int) -> int:
    """SIGKILL the coordinator of a group or of a transactional id; return its number."""
    number = coordinator(cluster, key, kind)
    cluster.kill(number)
    return number


def test_members_go_on_at_the_next_coordinator_and_read_each_record_once(cluster, readers):
    for _ in range(2):
        readers.feed()
        readers.read()
        dead = killed(cluster, readers.group, GROUP)
        # Nobody else has moved: the next coordinator knows the members and their epochs.
        readers.feed()
        readers.read()
        for each in readers.members:
            each.commit(asynchronous=False)
        cluster.restart(dead)
        assert readers.committed() == readers.ends()


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION], ids=["of the group", "of the transaction"])
def test_offsets_in_transactions_are_committed_once_through_kills_of_the_coordinator(
    cluster, readers, unique, kind
):
    target, name = create_topic(cluster.bootstrap_servers, unique("out")), unique("id")
    writer = transactional(cluster.bootstrap_servers, name)
    for _ in range(2):
        first = len(readers.got)
        readers.feed()
        readers.read()
        dead = copy_through_kill(
            writer, readers, target, first,
            lambda: killed(cluster, readers.group if kind == GROUP else name, kind),
        )  # fmt: skip
        cluster.restart(dead)
    assert values_of(read_topic(cluster.bootstrap_servers, target)) == sorted(readers.fed)
    assert readers.committed() == readers.ends()


def copy_through_kill(
    writer: Producer, readers: Readers, target: str, first: int, kill: Callable[[], int]
) -> int:
    """Copy the records from `first` on in a transaction in whose middle a broker dies; return its
    number. The library says when a call has to be made again, and when the transaction is over."""
    dead: list[int] = []
    while True:
        try:
            writer.begin_transaction()
            for value in readers.got[first:]:
                writer.produce(target, value)
            assert writer.flush(TIMEOUT_S) == 0
            dead = dead or [kill()]
            for each in readers.members:
                ends, metadata = each.position(each.assignment()), each.consumer_group_metadata()
                again(partial(writer.send_offsets_to_transaction, ends, metadata, TIMEOUT_S))
            again(partial(writer.commit_transaction, TIMEOUT_S))
            return dead[0]
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
            again(partial(writer.abort_transaction, TIMEOUT_S))


def again(call: Callable[[], None]) -> None:
    """Call until the library does not ask to call again."""
    while True:
        try:
            return call()
        except KafkaException as failed:
            if not failed.args[0].retriable():
                raise
