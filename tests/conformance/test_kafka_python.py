"""What only kafka-python does, or has an own call for, unchanged, on both brokers."""

from __future__ import annotations

import pytest
from kafka import TopicPartition
from kafka.admin import (
    AlterConfigOp,
    ConfigResource,
    ConfigResourceType,
    MemberToRemove,
    OffsetSpec,
)
from kafka.errors import GroupSubscribedToTopicError, KafkaTimeoutError
from support.brokers.probe import wait_for, wait_until
from support.clients.adapter import HANGS, WAITS, Member, told_by
from support.clients.librdkafka import create_topic, produce_values, read_topic, values_of

pytestmark = told_by("kafka-python")

HANGS_AT_A_KILL, WAITS_AT_A_KILL = HANGS["kafka_python"], WAITS["kafka_python"]


@pytest.fixture
def topic(bootstrap, unique) -> str:
    """A topic of three partitions with ten records in each."""
    topic = create_topic(bootstrap, unique("topic"), 3)
    for number in range(3):
        produce_values(bootstrap, topic, map(str, range(10)), number)
    return topic


@pytest.fixture
def member(bootstrap, client, topic, unique) -> Member:
    """A static member of the group, with all partitions."""
    settings = {"session_timeout_ms": 30_000, "group_instance_id": "one"}
    made = Member(client, bootstrap, unique("group"), topic, **settings)
    wait_until(lambda: len(made.share) == 3, "all partitions")
    return made


@pytest.mark.no_kill(
    "asked again, kafka-python 3.0 forgets the offsets that it was answered before"
)
@pytest.mark.parametrize("version", [(4, 2), (4, 3)])
def test_a_consumer_that_is_told_the_version_of_its_broker_asks_in_its_newest_versions(
    bootstrap, client, topic, version
):
    reader = client.consumer(bootstrap, api_version=version, max_poll_records=500)
    places = [(topic, number) for number in range(3)]
    assert len(reader.read_to_ends(places)) == 30
    asked = [TopicPartition(*place) for place in places]
    assert reader.made.end_offsets(asked) == dict.fromkeys(asked, 10)
    assert reader.made.beginning_offsets(asked) == dict.fromkeys(asked, 0)


@WAITS_AT_A_KILL
def test_the_operators_tools_see_the_transaction_and_its_producer(
    bootstrap, client, admin, topic, unique
):
    name, place = unique("txn"), TopicPartition(topic, 2)
    writer = client.transactional(bootstrap, name, transaction_timeout_ms=40_000)

    def described():
        return admin.made.describe_transactions([name])[name]

    def started_at() -> int:
        (active,) = [
            each
            for each in admin.made.describe_producers([place])[place].active_producers
            if each.producer_id == described().producer_id
        ]
        return active.current_transaction_start_offset

    assert described().state.value == "Empty"
    writer.begin()
    writer.sent(topic, b"x", partition=2)
    opened = described()
    assert (opened.state.value, opened.transaction_timeout_ms) == ("Ongoing", 40_000)
    assert {(each.topic, each.partition) for each in opened.topic_partitions} == {(topic, 2)}
    ongoing = admin.made.list_transactions(state_filters=["Ongoing"])
    listed = [each for of_broker in ongoing.values() for each in of_broker]
    assert name in {each.transactional_id for each in listed}
    assert {each.state.value for each in listed} == {"Ongoing"}
    assert started_at() == 10
    writer.commit()
    wait_until(lambda: described().state.value == "CompleteCommit", "CompleteCommit")
    assert started_at() == -1


def test_a_configuration_is_reset(admin, topic):
    def retention() -> str:
        return admin.configs(topic)["retention.ms"][0]

    default = retention()
    admin.alter_configs(topic, ("retention.ms", "SET", "1234"))
    wait_for(retention, "1234")
    change = {"retention.ms": (AlterConfigOp.SET, "1234")}
    admin.made.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=change)])
    wait_for(retention, default)


@HANGS_AT_A_KILL
def test_a_group_s_offsets_are_reset_and_deleted(admin, topic, unique):
    group, place = unique("group"), (topic, 1)
    admin.move_offsets(group, {place: (3, "moved")})
    admin.made.reset_group_offsets(group, {TopicPartition(*place): OffsetSpec.LATEST})
    assert admin.group_offsets(group)[place][0] == 10
    admin.made.delete_group_offsets(group, [TopicPartition(*place)])
    assert admin.group_offsets(group) == {}


@HANGS_AT_A_KILL
def test_offsets_of_a_topic_that_a_member_reads_are_not_deleted(admin, topic, member, unique):
    place = (topic, 1)
    member.ask(lambda reader: reader.commit({place: (0, "")}))
    told = admin.made.delete_group_offsets(unique("group"), [TopicPartition(*place)])
    assert told[TopicPartition(*place)] is GroupSubscribedToTopicError
    assert member.ask(lambda reader: reader.committed(place)) == (0, "")


@HANGS_AT_A_KILL
def test_an_administrator_removes_a_static_member(admin, member, unique):
    group = unique("group")
    member.close()
    # A static member's close is no leave: the group still has it.
    assert len(admin.members(group)) == 1
    admin.made.remove_group_members(group, [MemberToRemove(group_instance_id="one")])
    wait_for(lambda: admin.members(group), [])
    admin.delete_group(group)
    assert group not in admin.groups()


@WAITS_AT_A_KILL
def test_the_features_and_the_log_directory_are_described(bootstrap, admin, topic):
    features = admin.made.describe_features()
    assert features["transaction.version"]["finalized"] == (2, 2)
    of_brokers = admin.made.describe_log_dirs([topic])
    brokers = len(bootstrap.split(","))
    assert [topic in str(each) for each in of_brokers] == [True] * brokers


def test_a_commit_succeeds_without_records_that_were_given_up_and_only_their_futures_say_so(
    new_broker, client, unique
):
    """It takes the time that is over for no error of the transaction."""
    broker = new_broker()
    topic = create_topic(broker.bootstrap_servers, unique("given-up"))
    times = {"delivery_timeout_ms": 3000, "request_timeout_ms": 1500}
    writer = client.transactional(broker.bootstrap_servers, unique("id"), **times)
    writer.begin()
    writer.sent(topic, b"there", partition=0)
    broker.kill()
    given_up = writer.made.send(topic, b"given up", partition=0)
    wait_until(lambda: given_up.is_done, "the end of its time")
    assert isinstance(given_up.exception, KafkaTimeoutError)
    broker.restart()
    writer.commit()
    assert values_of(read_topic(broker.bootstrap_servers, topic)) == ["there"]
