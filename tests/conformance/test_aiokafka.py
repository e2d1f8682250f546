"""aiokafka programs, unchanged from what one writes for Kafka: records, codecs, groups, offsets."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import MessageSizeTooLargeError
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

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
TWICE = pytest.mark.no_kill("a plain batch that is sent again is there twice")
MAX_MESSAGE_BYTES = 1_048_588
FIRST_MS = 1_700_000_000_000


def numbered(count: int) -> list[str]:
    """Such as ["000", "001", ...], sorted."""
    return [f"{number:03}" for number in range(count)]


@TWICE
@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_come_back(broker, unique, codec):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("codec"))
    values = [f"{number:03} " + "same " * 20 for number in range(200)]

    async def body():
        await produce_values(bootstrap, topic, values, compression_type=codec, linger_ms=20)
        return await read_topic(bootstrap, topic)

    assert values_of(run(body())) == values


@TWICE
def test_keys_values_headers_and_timestamps_come_back_nulls_too(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("fields"))
    headers = [("a", b"1"), ("a", b""), ("b", None)]

    async def body():
        async with started(producer(bootstrap)) as made:
            sent = await made.send_and_wait(
                topic, b"v", b"k", headers=headers, timestamp_ms=FIRST_MS
            )
            assert (sent.offset, sent.timestamp, sent.timestamp_type) == (0, FIRST_MS, 0)
            await made.send_and_wait(topic, None, b"only a key")
            await made.send_and_wait(topic, b"", None)
        async with started(consumer(bootstrap, None, topic)) as subscriber:
            return await take(subscriber, 3)

    first, second, third = run(body())
    assert (first.key, first.value, list(first.headers)) == (b"k", b"v", headers)
    assert (first.timestamp, first.timestamp_type) == (FIRST_MS, 0)
    assert (second.key, second.value) == (b"only a key", None)
    assert (third.key, third.value) == (None, b"")


def test_a_record_as_large_as_the_topic_allows_passes_and_one_larger_is_refused(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("large"))
    overhead = 100

    async def body():
        made = producer(bootstrap, max_request_size=4 * MAX_MESSAGE_BYTES)
        async with started(made):
            await made.send_and_wait(topic, b"x" * (MAX_MESSAGE_BYTES - overhead))
            with pytest.raises(MessageSizeTooLargeError):
                await made.send_and_wait(topic, b"y" * (MAX_MESSAGE_BYTES + 1))
            await made.send_and_wait(topic, b"after")
        return await read_topic(bootstrap, topic, max_partition_fetch_bytes=1000)

    seen = run(body())
    assert [len(each.value) for each in seen] == [MAX_MESSAGE_BYTES - overhead, len(b"after")]


def test_an_idempotent_producer_keeps_the_order_of_many_sends_at_once(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("idempotent"))

    async def body():
        settings = {"enable_idempotence": True, "max_batch_size": 100}
        async with started(producer(bootstrap, **settings)) as made:
            sent = [await made.send(topic, value.encode()) for value in numbered(300)]
            told = await asyncio.gather(*sent)
        assert [each.offset for each in told] == list(range(300))
        return await read_topic(bootstrap, topic)

    assert [each.value.decode() for each in run(body())] == numbered(300)


@pytest.mark.no_kill("what nobody acknowledges is lost with the broker that it was sent to")
def test_without_acknowledgement_records_arrive_and_offsets_are_not_told(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("acks0"))

    async def body():
        async with started(producer(bootstrap, acks=0)) as made:
            assert await made.send_and_wait(topic, b"unanswered", partition=0) is None

        async def arrived() -> bool:
            return values_of(await read_topic(bootstrap, topic)) == ["unanswered"]

        await until(arrived, "the record")

    run(body())


@pytest.mark.parametrize("name", list(ASSIGNORS))
def test_members_share_all_partitions_as_one_joins_and_one_leaves(broker, unique, name):
    bootstrap = broker.bootstrap_servers
    topics = [create_topic(bootstrap, unique(f"shared{number}"), 3) for number in range(2)]
    everything = sorted(TopicPartition(topic, number) for topic in topics for number in range(3))
    group = unique("group")
    settings = {"partition_assignment_strategy": (ASSIGNORS[name],)}

    def shared_by(members) -> bool:
        shares = [each.assignment() for each in members]
        whole = sorted(place for share in shares for place in share)
        # 6 partitions of 2 topics divide evenly among 2 and 3 by all but range among 2.
        even = len({len(share) for share in shares}) == 1
        return whole == everything and (even or name == "range")

    async def body():
        members = [consumer(bootstrap, group, *topics, **settings) for _ in range(3)]
        try:
            for count in (1, 2, 3):
                await members[count - 1].start()
                await until(lambda now=count: shared_by(members[:now]), f"{count} shares")
            await members[0].stop()
            await until(lambda: shared_by(members[1:]), "two shares again")
        finally:
            for each in members:
                await each.stop()

    run(body())


def test_positions_commits_and_seeks_agree(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("offsets"))
    group = unique("group")
    place = TopicPartition(topic, 0)

    async def body():
        await produce_values(bootstrap, topic, numbered(10))
        async with started(consumer(bootstrap, group, topic)) as subscriber:
            await take(subscriber, 4)
            assert await subscriber.committed(place) is None
            await subscriber.commit()
            assert (await subscriber.position(place), await subscriber.committed(place)) == (4, 4)
            await subscriber.commit({place: OffsetAndMetadata(6, "a note")})
            subscriber.seek(place, 1)
            assert [one.offset for one in await take(subscriber, 2)] == [1, 2]
            await subscriber.seek_to_committed(place)
            assert [one.offset for one in await take(subscriber, 1)] == [6]
            await subscriber.seek_to_end(place)
            assert await subscriber.position(place) == 10
            await subscriber.seek_to_beginning(place)
            assert [one.offset for one in await take(subscriber, 1)] == [0]
        async with started(consumer(bootstrap, group, topic)) as successor:
            assert [one.offset for one in await take(successor, 1)] == [6]

    run(body())


def test_a_position_out_of_range_is_reset_by_the_policy(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("range"))
    place = TopicPartition(topic, 0)

    async def body():
        await produce_values(bootstrap, topic, numbered(3))
        async with started(consumer(bootstrap, None, topic)) as subscriber:
            await until(lambda: bool(subscriber.assignment()), "an assignment")
            subscriber.seek(place, 1000)
            assert [one.offset for one in await take(subscriber, 3)] == [0, 1, 2]

    run(body())


@TWICE
def test_offsets_are_found_by_timestamp_and_at_both_ends(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("times"))
    place = TopicPartition(topic, 0)

    async def body():
        async with started(producer(bootstrap)) as made:
            for number in range(10):
                at = FIRST_MS + number * 1000
                await made.send_and_wait(topic, b"x", timestamp_ms=at)
        async with started(consumer(bootstrap, None, topic)) as subscriber:
            found = {}
            for asked in (0, FIRST_MS + 3_500, FIRST_MS + 60_000):
                answer = (await subscriber.offsets_for_times({place: asked}))[place]
                found[asked] = answer and (answer.offset, answer.timestamp)
            assert found == {
                0: (0, FIRST_MS),
                FIRST_MS + 3_500: (4, FIRST_MS + 4_000),
                FIRST_MS + 60_000: None,
            }
            assert await subscriber.beginning_offsets([place]) == {place: 0}
            assert await subscriber.end_offsets([place]) == {place: 10}

    run(body())


def test_a_pattern_subscription_takes_in_a_topic_that_is_created_later(broker, unique):
    bootstrap = broker.bootstrap_servers
    prefix = unique("pattern")
    first = create_topic(bootstrap, f"{prefix}.a")

    async def body():
        await produce_values(bootstrap, first, ["early"])
        subscriber = consumer(bootstrap, unique("group"), metadata_max_age_ms=200)
        subscriber.subscribe(pattern=f"^{prefix}\\..*$")
        async with started(subscriber):
            (record,) = await take(subscriber, 1)
            assert (record.topic, record.value) == (first, b"early")
            await subscriber.commit()
            second = create_topic(bootstrap, f"{prefix}.b", 2)
            await until(lambda: len(subscriber.assignment()) == 3, "the new topic's partitions")
            await produce_values(bootstrap, second, ["late"])
            (record,) = await take(subscriber, 1)
            assert (record.topic, record.value) == (second, b"late")

    run(body())


class Assignments(ConsumerRebalanceListener):
    """How many partitions a member was given, each time it was told."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_partitions_revoked(self, revoked):
        """Nothing to give back."""

    def on_partitions_assigned(self, assigned):
        """One more."""
        self.counts.append(len(assigned))


def test_a_static_member_comes_back_to_its_partitions_and_the_other_notices_nothing(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("static"), 4)
    group = unique("group")
    settings = {"session_timeout_ms": 30_000}

    async def body():
        stays = consumer(bootstrap, group, group_instance_id="stays", **settings)
        told = Assignments()
        stays.subscribe([topic], listener=told)
        async with started(stays):
            await until(lambda: told.counts[-1:] == [4], "all partitions")
            goes = consumer(bootstrap, group, topic, group_instance_id="goes", **settings)
            async with started(goes):
                await until(lambda: len(goes.assignment()) == 2, "half of the partitions")
                await until(lambda: told.counts[-1:] == [2], "the other half")
                before, had = len(told.counts), goes.assignment()
            back = consumer(bootstrap, group, topic, group_instance_id="goes", **settings)
            async with started(back):
                await until(lambda: bool(back.assignment()), "partitions")
                assert back.assignment() == had
                assert len(told.counts) == before

    run(body())
