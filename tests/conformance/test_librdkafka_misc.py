"""What librdkafka programs do besides transactions: groups, codecs, times, administration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from support.brokers.probe import wait_until
from support.clients.librdkafka import (
    TIMEOUT_S,
    Administrator,
    answer_of,
    consumer,
    create_topic,
    delete_group,
    plain_producer,
    produce_values,
    read_topic,
    values_of,
)

T = TypeVar("T")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_come_back(broker, unique, codec):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("codec"))
    values = [f"{number:04}" * 20 for number in range(500)]
    produce_values(bootstrap, topic, values, compression_type=codec, linger_ms=50)
    assert [each.value.decode() for each in read_topic(bootstrap, topic)] == values


def test_keys_values_headers_and_timestamps_come_back_nulls_too(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("fields"))
    made = plain_producer(bootstrap)
    headers = [("a", b"1"), ("a", b""), ("b", None)]
    made.produce(topic, b"v", key=b"k", headers=headers, timestamp=1_700_000_000_123)
    made.produce(topic, None, key=None)
    made.produce(topic, b"", key=b"")
    assert made.flush(TIMEOUT_S) == 0
    subscriber = consumer(bootstrap, unique("group"))
    subscriber.assign([TopicPartition(topic, 0, 0)])
    first, second, third = (subscriber.poll(TIMEOUT_S) for _ in range(3))
    assert (first.key(), first.value(), first.headers()) == (b"k", b"v", headers)
    assert first.timestamp() == (1, 1_700_000_000_123)
    assert (second.key(), second.value()) == (None, None)
    assert (third.key(), third.value()) == (b"", b"")
    subscriber.close()


def test_offsets_are_found_by_timestamp_and_at_both_ends(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("times"))
    made = plain_producer(bootstrap)
    for number in range(10):
        made.produce(topic, f"{number}".encode(), timestamp=1_700_000_000_000 + number * 1000)
    assert made.flush(TIMEOUT_S) == 0
    subscriber = consumer(bootstrap, unique("group"))
    admin = Administrator(bootstrap)
    place = TopicPartition(topic, 0)

    def asked_of_leader(ask: Callable[[], T]) -> T:
        return answer_of(admin, ask, f"offsets of {topic}")

    assert asked_of_leader(lambda: subscriber.get_watermark_offsets(place, TIMEOUT_S)) == (0, 10)
    for asked, expected in (
        (1_699_999_999_999, 0),
        (1_700_000_003_500, 4),
        (1_800_000_000_000, -1),
    ):
        times = [TopicPartition(topic, 0, asked)]
        (answer,) = asked_of_leader(
            lambda times=times: subscriber.offsets_for_times(times, TIMEOUT_S)
        )
        # librdkafka says OFFSET_END (-1) for "no record that late".
        assert answer.offset == expected
    subscriber.close()
    for spec, expected in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 10),
        (OffsetSpec.max_timestamp(), 9),
        (OffsetSpec.for_timestamp(1_700_000_009_000), 9),
    ):
        asked = {place: spec}
        found = asked_of_leader(
            lambda asked=asked: admin.list_offsets(asked)[place].result(TIMEOUT_S)
        )
        assert found.offset == expected


def test_two_members_share_the_partitions_and_one_takes_over(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("shared"), 4)
    group = unique("group")
    first, second = consumer(bootstrap, group), consumer(bootstrap, group)

    def assigned() -> tuple[int, int]:
        first.poll(0.05)
        second.poll(0.05)
        return len(first.assignment()), len(second.assignment())

    first.subscribe([topic])
    second.subscribe([topic])
    wait_until(lambda: assigned() == (2, 2), "two partitions each")
    second.close()

    def alone() -> bool:
        first.poll(0.05)
        return len(first.assignment()) == 4

    wait_until(alone, "the one left to own all four")
    first.close()


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("static"), 4)
    group = unique("group")
    settings = {"partition_assignment_strategy": "range"}
    members = [consumer(bootstrap, group, group_instance_id=f"i{n}", **settings) for n in (1, 2)]
    for each in members:
        each.subscribe([topic])

    def assigned(pair) -> list[list[int]]:
        for each in pair:
            each.poll(0.05)
        return [sorted(place.partition for place in each.assignment()) for each in pair]

    wait_until(lambda: all(len(part) == 2 for part in assigned(members)), "two each")
    before = assigned(members)
    members[1].close()
    members[1] = consumer(bootstrap, group, group_instance_id="i2", **settings)
    members[1].subscribe([topic])
    wait_until(lambda: assigned(members) == before, "the same assignment")
    for each in members:
        each.close()


def test_a_group_pattern_subscription_and_committed_positions_resume(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("pattern"))
    produce_values(bootstrap, topic, ["a", "b", "c"])
    group = unique("group")
    for expected in (b"a", b"b", b"c"):
        subscriber = consumer(bootstrap, group)
        subscriber.subscribe(["^" + topic[:-1] + "."])
        message = subscriber.poll(TIMEOUT_S)
        assert message.value() == expected
        subscriber.commit(message=message, asynchronous=False)
        subscriber.close()


def test_topics_and_groups_are_listed_described_and_deleted(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("admin"), 5)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assert len(admin.list_topics(timeout=TIMEOUT_S).topics[topic].partitions) == 5
    with pytest.raises(KafkaException) as caught:
        create_topic(bootstrap, topic)
    assert caught.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS

    group = unique("group")
    subscriber = consumer(bootstrap, group)
    subscriber.subscribe([topic])
    wait_until(lambda: subscriber.poll(0.05) is None and subscriber.assignment(), "assignment")

    def listed() -> set[str]:
        found = admin.list_consumer_groups(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
        return {each.group_id for each in found.valid}

    # Where a coordinator moves, its groups are in no broker's list for a moment.
    wait_until(lambda: group in listed(), "the group in a list")
    described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    assert described.state.name == "STABLE"
    (member,) = described.members
    assert len(member.assignment.topic_partitions) == 5
    subscriber.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    subscriber.close()
    delete_group(admin, group)

    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    wait_until(
        lambda: topic not in admin.list_topics(timeout=TIMEOUT_S).topics, "the topic's deletion"
    )


def test_an_unknown_topic_is_created_by_the_first_produce_when_the_broker_may(broker, unique):
    bootstrap = broker.bootstrap_servers
    topic = unique("auto")
    produce_values(bootstrap, topic, ["first"])
    assert values_of(read_topic(bootstrap, topic)) == ["first"]
