"""Consumer groups of KIP-848, with librdkafka's consumer, unchanged, on both brokers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient
from support.brokers.probe import wait_for, wait_until
from support.clients.adapter import Client, Reader, Record, Writer, told_by
from support.clients.librdkafka import (
    TIMEOUT_S,
    committed_offsets,
    consumer,
    create_topic,
    poll_count,
    produce_values,
    transactional,
)

PARTITIONS = 4
PROTOCOL = {"group_protocol": "consumer"}


@pytest.fixture
def topic(bootstrap, unique) -> str:
    """An empty topic of four partitions."""
    return create_topic(bootstrap, unique("topic"), PARTITIONS)


def fill(bootstrap: str, topic: str, *, first: int = 0, count: int = 40) -> list[str]:
    """Produce numbered values to the partitions in turn, and return them."""
    values = [str(number) for number in range(first, first + count)]
    for partition in range(PARTITIONS):
        produce_values(bootstrap, topic, values[partition::PARTITIONS], partition=partition)
    return values


def texts(messages) -> list[str]:
    """The values of messages, sorted."""
    return sorted(each.value().decode() for each in messages)


def wait_for_sizes(subscribers, sizes: list[int]) -> None:
    """Poll until the subscribers have so many partitions."""

    def is_so() -> bool:
        for each in subscribers:
            assert each.poll(0.1) is None
        return [len(each.assignment()) for each in subscribers] == sizes

    wait_until(is_so, f"assignments of {sizes} partitions")


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_the_partitions_and_take_over_what_one_leaves(
    bootstrap, topic, unique, assignor
):
    group = unique("group")
    settings = PROTOCOL | {"group_remote_assignor": assignor}
    first, second = (consumer(bootstrap, group, **settings) for _ in range(2))
    first.subscribe([topic])
    wait_for_sizes([first], [4])
    second.subscribe([topic])
    wait_for_sizes([first, second], [2, 2])
    assert not set(map(repr, first.assignment())) & set(map(repr, second.assignment()))
    first.close()
    wait_for_sizes([second], [4])
    second.close()


def test_offsets_are_committed_with_the_member_s_epoch(bootstrap, topic, unique):
    group, values = unique("group"), fill(bootstrap, topic)
    first = consumer(bootstrap, group, **PROTOCOL)
    first.subscribe([topic])
    messages = poll_count(first, len(values))
    assert texts(messages) == sorted(values)
    first.commit(asynchronous=False)
    first.close()
    assert committed_offsets(bootstrap, group, topic, PARTITIONS) == dict.fromkeys(range(4), 10)
    more = fill(bootstrap, topic, first=40)
    second = consumer(bootstrap, group, **PROTOCOL)
    second.subscribe([topic])
    assert texts(poll_count(second, len(more))) == sorted(more)
    second.close()


def test_offsets_of_a_transaction_carry_the_member_s_epoch(bootstrap, topic, unique):
    group, values = unique("group"), fill(bootstrap, topic)
    reader = consumer(bootstrap, group, **PROTOCOL)
    reader.subscribe([topic])
    poll_count(reader, len(values))
    writer = transactional(bootstrap, unique("id"))
    writer.begin_transaction()
    writer.send_offsets_to_transaction(
        reader.position(reader.assignment()), reader.consumer_group_metadata(), TIMEOUT_S
    )
    writer.commit_transaction(TIMEOUT_S)
    reader.close()
    assert committed_offsets(bootstrap, group, topic, PARTITIONS) == dict.fromkeys(range(4), 10)


def test_a_static_member_comes_back_to_its_partitions(bootstrap, topic, unique):
    group = unique("group")
    settings = PROTOCOL | {"group_instance_id": "one"}
    other = consumer(bootstrap, group, **PROTOCOL, group_instance_id="two")
    first = consumer(bootstrap, group, **settings)
    for each in (first, other):
        each.subscribe([topic])
    wait_for_sizes([first, other], [2, 2])
    owned = sorted(each.partition for each in first.assignment())
    first.close()
    again = consumer(bootstrap, group, **settings)
    again.subscribe([topic])
    wait_for_sizes([again, other], [2, 2])
    assert sorted(each.partition for each in again.assignment()) == owned
    for each in (again, other):
        each.close()


def test_the_group_is_listed_and_described_as_one_of_consumers(bootstrap, topic, unique):
    group = unique("group")
    reader = consumer(bootstrap, group, **PROTOCOL)
    reader.subscribe([topic])
    wait_for_sizes([reader], [4])
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def row() -> tuple[ConsumerGroupType, ConsumerGroupState] | None:
        found = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(TIMEOUT_S)
        return {row.group_id: (row.type, row.state) for row in found.valid}.get(group)

    # A list lacks the groups of a coordinator that moves.
    wait_for(row, (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE))
    described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    assert described.type is ConsumerGroupType.CONSUMER
    (member,) = described.members
    assert sorted(each.partition for each in member.assignment.topic_partitions) == [0, 1, 2, 3]
    reader.close()


def test_an_expression_finds_its_topics(bootstrap, topic, unique):
    values = fill(bootstrap, topic)
    reader = consumer(bootstrap, unique("group"), **PROTOCOL)
    reader.subscribe([f"^{topic[:-1]}."])
    assert texts(poll_count(reader, len(values))) == sorted(values)
    reader.close()


MOMENTS = ("read", "sent", "offsets", "committed", "between")
"""Steps of a copied batch after which the broker is killed, in turn."""
STAYS = {"metadata_recovery_strategy": "none"}
"""librdkafka 2.16 that begins anew with its bootstrap servers inside a transaction, twice, never
finds the coordinator again, with a classic group and on Apache Kafka too."""


def member_of(client: Client, bootstrap: str, group: str) -> Reader:
    """A consumer without the options that are the broker's in such a group."""
    settings = PROTOCOL | STAYS | {"bootstrap_servers": bootstrap, "max_poll_records": 1}
    settings |= {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    return client.kept(client.new_reader(group, settings))


@told_by("librdkafka", "java")
@pytest.mark.no_kill("the body kills the broker, five times")
def test_transactions_of_a_member_copy_each_record_once_through_five_kills(
    broker, client, bootstrap, topic, unique
):
    group, target = unique("group"), create_topic(bootstrap, unique("out"))
    reader = member_of(client, bootstrap, group)
    reader.subscribe(topic)
    writer = client.transactional(bootstrap, unique("id"), **STAYS)
    copier = Copier(client, reader, writer, target)
    values: list[str] = []
    for killed_after in MOMENTS:
        batch = fill(bootstrap, topic, first=len(values), count=8)
        values += batch
        records = reader.take(len(batch))
        assert sorted(each.value.decode() for each in records) == sorted(batch)
        committed, tries = False, 0
        while not committed:
            tries += 1
            kill = broker.restart if tries == 1 else lambda: None
            committed = copier.copy(records, killed_after, kill)
    found = [each.value.decode() for each in client.read(bootstrap, target)]
    assert sorted(found) == sorted(values)
    ends = dict.fromkeys(range(PARTITIONS), len(values) // PARTITIONS)
    assert committed_offsets(bootstrap, group, topic, PARTITIONS) == ends


@dataclass
class Copier:
    """Program that copies what it reads, with the group's offsets in its transactions."""

    client: Client
    reader: Reader
    writer: Writer
    target: str

    def copy(self, records: list[Record], killed_after: str, kill: Callable[[], None]) -> bool:
        """Run one transaction; return True if it was committed. A client says when to abort it."""
        if killed_after == "between":
            # The member goes on with its heartbeats while the broker is away.
            kill()
            self.reader.poll()

        def step(name: str) -> None:
            if name == killed_after:
                kill()

        def transact() -> None:
            step("read")
            self.writer.begin()
            self.writer.send_all(self.target, [each.value.decode() for each in records])
            step("sent")
            ends = {(each.topic, each.partition): (each.offset + 1, "") for each in records}
            self.writer.send_offsets(ends, self.reader)
            step("offsets")
            self.writer.commit()
            step("committed")

        error = self.client.error_of(transact)
        if error != "none":
            self.writer.abort()
        return error == "none"
