"""SIGKILL of the broker at moments that matter, with librdkafka programs that just go on."""

from __future__ import annotations

import pytest
from support.brokers.probe import wait_for, wait_until
from support.clients.adapter import WAITS, told_by
from support.clients.librdkafka import (
    TIMEOUT_S,
    committed_offsets,
    consumer,
    create_topic,
    poll_count,
    produce_values,
    producer,
    read_topic,
    transact,
    transactional,
    values_of,
)

PARTITIONS = 3


@pytest.fixture
def target(bootstrap, unique) -> str:
    """An empty topic."""
    return create_topic(bootstrap, unique("out"), PARTITIONS)


@told_by("kafka-python", "librdkafka", **WAITS)
def test_kill_in_the_middle_of_a_transaction_then_the_same_producer_commits(
    broker, client, target, unique
):
    bootstrap = broker.bootstrap_servers
    values = [f"{number:03}" for number in range(100)]
    writer = client.transactional(bootstrap, unique("txn"))
    writer.begin()
    writer.send_all(target, values[:50])
    broker.restart()
    for value in values[50:]:
        writer.send(target, value, value.encode())
    failed = client.error_of(writer.commit)
    if client.name == "kafka-python" and failed != "none":
        # A program for Kafka aborts and sends again: the first attempt must stay hidden.
        writer.abort()
        writer.begin()
        writer.send_all(target, values)
        failed = client.error_of(writer.commit)
    assert failed == "none"
    wait_for(lambda: values_of(read_topic(bootstrap, target)), values)


@pytest.mark.failover
def test_kill_right_after_the_commit_was_answered_loses_nothing(broker, target, unique):
    bootstrap = broker.bootstrap_servers
    source = create_topic(bootstrap, unique("in"))
    produce_values(bootstrap, source, ["a", "b"])
    group = unique("group")
    subscriber = consumer(bootstrap, group)
    subscriber.subscribe([source])
    messages = poll_count(subscriber, 2)
    made = transactional(bootstrap, unique("txn"))
    made.begin_transaction()
    for message in messages:
        made.produce(target, message.value())
    position = subscriber.position(subscriber.assignment())
    made.send_offsets_to_transaction(position, subscriber.consumer_group_metadata(), TIMEOUT_S)
    made.commit_transaction(TIMEOUT_S)
    broker.restart()
    wait_for(lambda: values_of(read_topic(bootstrap, target)), ["a", "b"])
    assert committed_offsets(bootstrap, group, source, 1) == {0: 2}
    subscriber.close()


def test_kill_while_a_transaction_is_open_then_a_successor_aborts_it(broker, target, unique):
    bootstrap = broker.bootstrap_servers
    lost = transactional(bootstrap, unique("txn"))
    transact(lost, target, "lost", commits=None)
    broker.restart()
    transact(transactional(bootstrap, unique("txn")), target, "heir")
    wait_for(lambda: values_of(read_topic(bootstrap, target)), ["heir"])
    uncommitted = read_topic(bootstrap, target, isolation="read_uncommitted")
    assert values_of(uncommitted) == ["heir", "lost"]


@pytest.mark.failover
def test_an_idempotent_producer_across_two_kills_delivers_once_and_in_order(broker, target):
    bootstrap = broker.bootstrap_servers
    made = producer(bootstrap, enable_idempotence=True, message_timeout_ms=240_000)
    failures = []

    def report(error, _message):
        if error is not None:
            failures.append(error)

    for number in range(3000):
        made.produce(target, f"{number:05}".encode(), partition=0, on_delivery=report)
        made.poll(0)
        if number in (1000, 2000):
            broker.restart()
    assert made.flush(TIMEOUT_S) == 0
    assert failures == []
    seen = read_topic(bootstrap, target)
    assert [each.value.decode() for each in seen] == [f"{number:05}" for number in range(3000)]


def test_a_group_member_survives_the_kill_and_reads_each_record(broker, target, unique):
    bootstrap = broker.bootstrap_servers
    # Its session outlives the restart, or the group would read again what is not committed.
    subscriber = consumer(bootstrap, unique("group"), session_timeout_ms=120_000)
    subscriber.subscribe([target])
    produce_values(bootstrap, target, [f"{number:02}" for number in range(10)])
    first = poll_count(subscriber, 10)
    subscriber.commit(asynchronous=False)
    broker.restart()
    produce_values(bootstrap, target, [f"{number:02}" for number in range(10, 20)])
    second = poll_count_through_errors(subscriber, 10)
    subscriber.close()
    got = sorted(message.value().decode() for message in first + second)
    assert got == [f"{number:02}" for number in range(20)]


def poll_count_through_errors(subscriber, count: int) -> list:
    """Poll until `count` records came; a restarting broker's errors are not the end."""
    got: list = []

    def enough() -> bool:
        message = subscriber.poll(0.5)
        if message is not None and message.error() is None:
            got.append(message)
        return len(got) >= count

    wait_until(enough, f"{count} records")
    return got
