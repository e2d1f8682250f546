"""aiokafka's transactional producer and read_committed consumer, unchanged, on both brokers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka import OffsetAndMetadata, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced
from support.brokers.apache_kafka import die_with_parent
from support.clients import aiokafka_worker
from support.clients.aiokafka_client import (
    consumer,
    produce_values,
    producer,
    read_topic,
    run,
    started,
    take,
    until,
)
from support.clients.librdkafka import create_topic, values_of

PARTITIONS = 3


def numbered(count: int) -> list[str]:
    """Such as ["in-000", "in-001", ...], sorted."""
    return [f"in-{number:03}" for number in range(count)]


@pytest.fixture
def target(broker, unique) -> str:
    """An empty topic."""
    return create_topic(broker.bootstrap_servers, unique("out"), PARTITIONS)


async def becomes(bootstrap: str, topic: str, expected: list[str]) -> None:
    """Wait until a read_committed reader sees these values, and nothing else."""

    async def seen() -> bool:
        return values_of(await read_topic(bootstrap, topic)) == expected

    await until(seen, f"{topic} to hold {len(expected)} committed values")


async def transform(made, subscriber, group: str, target: str, records) -> None:
    """Produce each record's upper case, and hand the consumer's positions to the transaction."""
    for record in records:
        await made.send(target, record.value.upper(), key=record.key)
    offsets = {
        place: OffsetAndMetadata(await subscriber.position(place), "meta")
        for place in subscriber.assignment()
    }
    await made.send_offsets_to_transaction(offsets, group)


async def committed_sum(subscriber, topic: str) -> int:
    """The group's committed offsets of a topic, added up; none counts as 0."""
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    return sum([await subscriber.committed(place) or 0 for place in places])


def test_commit_shows_output_and_consumer_offsets_together(broker, target, unique):
    bootstrap, group = broker.bootstrap_servers, unique("group")
    source = create_topic(bootstrap, unique("in"), PARTITIONS)

    async def body():
        await produce_values(bootstrap, source, numbered(30))
        made = producer(bootstrap, transactional_id=unique("txn"))
        async with started(consumer(bootstrap, group, source)) as subscriber, started(made):
            for _ in range(3):
                async with made.transaction():
                    records = await take(subscriber, 10)
                    await transform(made, subscriber, group, target, records)
            await becomes(bootstrap, target, [value.upper() for value in numbered(30)])
            assert await committed_sum(subscriber, source) == 30

    run(body())


def test_an_exception_in_the_transaction_block_aborts_output_and_offsets(broker, target, unique):
    bootstrap, group = broker.bootstrap_servers, unique("group")
    source = create_topic(bootstrap, unique("in"), PARTITIONS)

    async def body():
        await produce_values(bootstrap, source, numbered(10))
        made = producer(bootstrap, transactional_id=unique("txn"))
        async with started(consumer(bootstrap, group, source)) as subscriber, started(made):
            with pytest.raises(ZeroDivisionError):
                async with made.transaction():
                    records = await take(subscriber, 10)
                    await transform(made, subscriber, group, target, records)
                    await made.flush()
                    raise ZeroDivisionError
            assert await committed_sum(subscriber, source) == 0
            uncommitted = await read_topic(bootstrap, target, isolation="read_uncommitted")
            assert len(uncommitted) == 10
            await becomes(bootstrap, target, [])
            # The same producer goes on: only the second try shows.
            async with made.transaction():
                await made.send(target, b"next")
            await becomes(bootstrap, target, ["next"])

    run(body())


def test_a_second_producer_with_the_transactional_id_fences_the_first(broker, target, unique):
    bootstrap, transactional_id = broker.bootstrap_servers, unique("txn")

    async def body():
        first = producer(bootstrap, transactional_id=transactional_id)
        second = producer(bootstrap, transactional_id=transactional_id)
        async with started(first), started(second):
            # Starting asks for the producer id: the second one is the younger.
            heir = second
            await heir.begin_transaction()
            await heir.send_and_wait(target, b"heir", partition=0)
            with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
                async with first.transaction():
                    await first.send_and_wait(target, b"zombie", partition=0)
            await heir.commit_transaction()
            await becomes(bootstrap, target, ["heir"])

    run(body())


def test_read_committed_stops_before_an_open_transaction_and_skips_aborted_ones(
    broker, target, unique
):
    bootstrap = broker.bootstrap_servers
    place = TopicPartition(target, 0)

    async def body():
        made = producer(bootstrap, transactional_id=unique("txn"))
        async with started(made), started(producer(bootstrap)) as plain:
            for number in range(4):
                await made.begin_transaction()
                await made.send_and_wait(target, f"{number}".encode(), partition=0)
                await (made.abort_transaction if number % 2 else made.commit_transaction)()
            await made.begin_transaction()
            await made.send_and_wait(target, b"open", partition=0)
            await plain.send_and_wait(target, b"after", partition=0)
            await becomes(bootstrap, target, ["0", "2"])
            reader = consumer(bootstrap, None, target, isolation_level="read_committed")
            async with started(reader):
                await take(reader, 2)
                await until(lambda: reader.last_stable_offset(place) == 8, "the LSO")
                assert reader.highwater(place) == 10
                await made.commit_transaction()
                assert [record.offset for record in await take(reader, 2)] == [8, 9]
        uncommitted = await read_topic(bootstrap, target, isolation="read_uncommitted")
        assert [each.value for each in uncommitted] == [b"0", b"1", b"2", b"3", b"open", b"after"]

    run(body())


def test_a_transaction_over_its_timeout_is_aborted_and_its_producer_cannot_commit(
    broker, target, unique
):
    bootstrap = broker.bootstrap_servers

    async def body():
        settings = {"transactional_id": unique("txn"), "transaction_timeout_ms": 1000}
        made, plain = producer(bootstrap, **settings), producer(bootstrap)
        async with started(made), started(plain):
            await made.begin_transaction()
            await made.send_and_wait(target, b"late", partition=0)
            await plain.send_and_wait(target, b"after", partition=0)
            await becomes(bootstrap, target, ["after"])
            with pytest.raises(KafkaError):
                await made.commit_transaction()
        assert values_of(await read_topic(bootstrap, target)) == ["after"]

    run(body())


def test_many_small_transactions_are_all_there_in_order(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("many"))

    async def body():
        made = producer(bootstrap, transactional_id=unique("txn"))
        async with started(made):
            for number in range(50):
                async with made.transaction():
                    await made.send(topic, f"{number:03}".encode())
        await becomes(bootstrap, topic, [f"{number:03}" for number in range(50)])
        seen = await read_topic(bootstrap, topic)
        # A coordinator that takes over writes a marker again when it cannot know of the first one.
        again = [each.offset - 2 * number for number, each in enumerate(seen)]
        assert again == sorted(again)
        assert again[0] == 0
        assert again[-1] == 0 or "," in bootstrap

    run(body())


def test_a_killed_worker_s_open_transaction_is_redone_by_the_next_exactly_once(
    broker, target, unique
):
    bootstrap, group = broker.bootstrap_servers, unique("group")
    source = create_topic(bootstrap, unique("in"), PARTITIONS)
    run(produce_values(bootstrap, source, numbered(60)))
    names = [bootstrap, group, source, target, unique("txn")]
    first = start_worker(names, hang_at=2)
    second = None
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        first.kill()
        first.wait()
        second = start_worker(names, hang_at=-1)

        async def body():
            await becomes(bootstrap, target, [value.upper() for value in numbered(60)])

        run(body())
    finally:
        for worker in (first, second):
            if worker is not None:
                worker.kill()
                worker.communicate()

    async def after():
        async with started(consumer(bootstrap, group)) as asked:
            assert await committed_sum(asked, source) == 60

    run(after())


def start_worker(names: list[str], *, hang_at: int) -> subprocess.Popen[str]:
    """The loop of `support.clients.aiokafka_worker` in a process of its own."""
    script = str(Path(aiokafka_worker.__file__))
    return subprocess.Popen(
        [sys.executable, script, *names, str(hang_at)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - one short libc call
    )
