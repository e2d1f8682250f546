"""What only librdkafka does, or has an own call for, unchanged, on both brokers."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType
from support.brokers.probe import ports_of, wait_for, wait_until
from support.clients.librdkafka import (
    TIMEOUT_S,
    answer_of,
    committed_offsets,
    consumer,
    create_topic,
    poll_count,
    produce_values,
    read_topic,
    transactional,
    values_of,
)
from support.clients.librdkafka_client import LibrdkafkaAdmin

PARTITIONS = 6


@pytest.fixture
def topic(bootstrap, unique) -> str:
    """An empty topic of six partitions."""
    return create_topic(bootstrap, unique("topic"), PARTITIONS)


@pytest.fixture
def admin(bootstrap) -> LibrdkafkaAdmin:
    """An administrator of the broker."""
    return LibrdkafkaAdmin(bootstrap)


def test_only_stored_offsets_are_committed_on_close(bootstrap, topic, unique):
    group = unique("group")
    produce_values(bootstrap, topic, ["a", "b", "c", "d"], partition=2)
    settings = {"enable_auto_commit": True, "enable_auto_offset_store": False}
    subscriber = consumer(bootstrap, group, **settings)
    subscriber.subscribe([topic])
    messages = poll_count(subscriber, 4)
    subscriber.store_offsets(message=messages[1])
    subscriber.close()
    assert committed_offsets(bootstrap, group, topic, PARTITIONS) == {2: 2}


def test_partitions_assigned_and_taken_away_one_by_one_are_read_from_their_offsets(
    bootstrap, topic, unique
):
    for number in range(3):
        produce_values(bootstrap, topic, [f"{number}-{i}" for i in range(3)], partition=number)
    reader = consumer(bootstrap, unique("group"), enable_partition_eof=True)
    reader.incremental_assign([TopicPartition(topic, 0, 1)])
    assert read_to_ends(reader, 1) == ["0-1", "0-2"]
    reader.incremental_assign([TopicPartition(topic, 1, 0), TopicPartition(topic, 2, 2)])
    reader.incremental_unassign([TopicPartition(topic, 0)])
    assert read_to_ends(reader, 2) == ["1-0", "1-1", "1-2", "2-2"]
    assert sorted(each.partition for each in reader.assignment()) == [1, 2]
    reader.close()


def read_to_ends(reader: Consumer, ends: int) -> list[str]:
    """Values, sorted, until so many partitions said that they ended."""
    values = []
    while ends:
        message = reader.poll(TIMEOUT_S)
        assert message is not None
        if message.error() is None:
            values.append(message.value().decode())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            ends -= 1
    return sorted(values)


def test_statistics_tell_lag_against_the_last_stable_offset(bootstrap, unique):
    group = unique("group")
    topic = create_topic(bootstrap, unique("lag"))
    produce_values(bootstrap, topic, ["a", "b", "c"])
    made = transactional(bootstrap, unique("txn"))
    made.begin_transaction()
    made.produce(topic, b"open")
    made.flush(TIMEOUT_S)
    told: list[dict] = []
    settings = {"isolation_level": "read_committed", "statistics_interval_ms": 100}
    settings |= {"stats_cb": lambda text: told.append(json.loads(text))}
    subscriber = consumer(bootstrap, group, **settings)
    subscriber.subscribe([topic])
    poll_count(subscriber, 1)
    subscriber.commit(asynchronous=False)

    def described() -> bool:
        subscriber.poll(0.05)
        partition = told[-1]["topics"].get(topic, {"partitions": {}})["partitions"].get("0")
        return partition is not None and (
            partition["ls_offset"],
            partition["hi_offset"],
            partition["committed_offset"],
            partition["consumer_lag"],
        ) == (3, 4, 1, 2)

    wait_until(lambda: bool(told) and described(), "both ends and the lag")
    assert told[-1]["cgrp"]["state"] == "up"
    made.abort_transaction(TIMEOUT_S)
    subscriber.close()


@pytest.mark.filterwarnings("ignore:alter_configs:DeprecationWarning")
def test_the_older_request_replaces_the_whole_configuration(admin, topic):
    admin.alter_configs(topic, ("retention.ms", "SET", "1000"))
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.bytes": "5000"})

    def replace() -> None:
        admin.made.alter_configs([resource])[resource].result(TIMEOUT_S)

    answer_of(admin.made, replace, "the change")

    def set_now() -> dict[str, str | None]:
        told = admin.configs(topic).items()
        return {name: value for name, (value, source) in told if source == "DYNAMIC_TOPIC_CONFIG"}

    wait_for(set_now, {"retention.bytes": "5000"})


def test_a_larger_maximum_takes_effect_on_the_next_record(bootstrap, admin, topic):
    value, settings = "x" * 1_500_000, {"message_max_bytes": 4_000_000}
    with pytest.raises(KafkaException) as caught:
        produce_values(bootstrap, topic, [value], partition=0, **settings)
    assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    admin.alter_configs(topic, ("max.message.bytes", "SET", "5000000"))

    def is_taken() -> bool:
        try:
            produce_values(bootstrap, topic, [value], partition=0, **settings)
        except KafkaException as refused:
            assert refused.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
            return False
        return True

    # Apache Kafka's broker describes a new value a moment before it obeys it.
    wait_until(is_taken, "the larger maximum to hold")
    assert values_of(read_topic(bootstrap, topic)) == [value]


@pytest.mark.no_kill("tells which brokers are there")
def test_one_of_the_cluster_s_nodes_is_the_controller(admin):
    told = admin.made.describe_cluster(include_authorized_operations=False).result(TIMEOUT_S)
    assert told.controller.id in {node.id for node in told.nodes}
    assert len(told.cluster_id) == 22


@pytest.mark.no_kill("tells who leads, and what is in sync")
def test_a_described_topic_has_an_id_leaders_and_replicas(bootstrap, admin, topic, unique):
    nothing = unique("nothing")
    asked = admin.made.describe_topics(TopicCollection([topic, nothing]))
    described = asked[topic].result(TIMEOUT_S)
    assert (described.name, described.is_internal) == (topic, False)
    assert str(described.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
    assert [each.id for each in described.partitions] == [*range(PARTITIONS)]
    brokers = len(ports_of(bootstrap))
    for each in described.partitions:
        replicas = [node.id for node in each.replicas]
        assert (len(replicas), replicas[0]) == (brokers, each.leader.id)
        assert sorted(node.id for node in each.isr) == sorted(replicas)
    with pytest.raises(KafkaException) as caught:
        asked[nothing].result(TIMEOUT_S)
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_described_group_has_its_assignor_and_the_members_partitions(
    bootstrap, admin, topic, unique
):
    member = consumer(bootstrap, unique("group"))
    member.subscribe([topic])
    wait_until(lambda: member.poll(0.02) is None and bool(member.assignment()), "an assignment")
    asked = admin.made.describe_consumer_groups([unique("group")])
    described = asked[unique("group")].result(TIMEOUT_S)
    assert (described.state.name, described.partition_assignor) == ("STABLE", "range")
    (one,) = described.members
    assert len(one.assignment.topic_partitions) == PARTITIONS
    member.close()
