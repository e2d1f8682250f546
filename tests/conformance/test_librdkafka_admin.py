"""librdkafka's AdminClient, unchanged: topics, configurations, groups, offsets, the cluster."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    DeletedRecords,
    ListConsumerGroupsResult,
    ListOffsetsResultInfo,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from support.brokers.probe import ports_of, wait_for, wait_until
from support.clients.librdkafka import (
    ASK_S,
    TIMEOUT_S,
    Administrator,
    answer_of,
    consumer,
    create_topic,
    poll_count,
    produce_values,
    read_topic,
    transactional,
    values_of,
)

T = TypeVar("T")


@pytest.fixture
def admin(broker) -> Administrator:
    """An administrator of the broker."""
    return Administrator(broker.bootstrap_servers)


@pytest.fixture
def topic(broker, unique) -> str:
    """An empty topic of two partitions."""
    return create_topic(broker.bootstrap_servers, unique("admin"), 2)


def code_of(future: Future) -> int:
    """The error code that a request must end with."""
    with pytest.raises(KafkaException) as caught:
        future.result(TIMEOUT_S)
    return caught.value.args[0].code()


def low_watermark_after(admin: Administrator, place: TopicPartition) -> int:
    """Delete the records before this offset; where the partition then starts."""

    def delete() -> DeletedRecords:
        return admin.delete_records([place], request_timeout=ASK_S)[place].result(TIMEOUT_S)

    return answer_of(admin, delete, f"DeleteRecords of {place}").low_watermark


def earliest(admin: Administrator, place: TopicPartition) -> int:
    """The partition's first offset."""

    def ask() -> ListOffsetsResultInfo:
        asked = {place: OffsetSpec.earliest()}
        found = admin.list_offsets(asked, request_timeout=ASK_S)[place].result(TIMEOUT_S)
        if found.offset == OFFSET_INVALID:
            # How librdkafka ends when the leader has not answered in time.
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True))
        return found

    return answer_of(admin, ask, f"the start of {place}").offset


def configs_of(admin: Administrator, topic: str) -> dict[str, ConfigEntry]:
    """A topic's configuration by name."""
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def ask() -> dict[str, ConfigEntry]:
        return admin.describe_configs([resource])[resource].result(TIMEOUT_S)

    return answer_of(admin, ask, "its configuration")


def alter(admin: AdminClient, topic: str, *changes: tuple[str, str | None, str]) -> Future:
    """IncrementalAlterConfigs of a topic: (name, value, operation) each."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType[operation])
        for name, value, operation in changes
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    return admin.incremental_alter_configs([resource])[resource]


def change(admin: Administrator, topic: str, *changes: tuple[str, str | None, str]) -> None:
    """What has the same effect when it is asked for again."""
    answer_of(admin, lambda: alter(admin, topic, *changes).result(TIMEOUT_S), "the change")


@pytest.mark.parametrize(
    "change, expected",
    [
        ({"topic": "no spaces"}, KafkaError.TOPIC_EXCEPTION),
        ({"topic": "x" * 250}, KafkaError.TOPIC_EXCEPTION),
        ({"num_partitions": 0}, KafkaError.INVALID_PARTITIONS),
        ({"replication_factor": 4}, KafkaError.INVALID_REPLICATION_FACTOR),
        ({"config": {"no.such.option": "1"}}, KafkaError.INVALID_CONFIG),
        ({"config": {"retention.ms": "soon"}}, KafkaError.INVALID_CONFIG),
    ],
)
def test_a_topic_that_cannot_be_is_refused(admin, unique, change, expected):
    asked = {"topic": unique("bad"), "num_partitions": 1, "replication_factor": 1} | change
    (future,) = admin.create_topics([NewTopic(**asked)]).values()
    assert code_of(future) == expected


def test_a_topic_that_is_only_validated_is_not_created(broker, admin, unique):
    topic = unique("dry")
    asked = [NewTopic(topic, num_partitions=1, replication_factor=1)]

    def validate() -> None:
        admin.create_topics(asked, validate_only=True)[topic].result(TIMEOUT_S)

    answer_of(admin, validate, "the topic to be validated")
    create_topic(broker.bootstrap_servers, topic)
    with pytest.raises(KafkaException) as caught:
        answer_of(admin, validate, "the topic to be refused")
    assert caught.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS


def test_deleting_a_topic_that_is_not_there_says_so(admin, unique):
    (future,) = admin.delete_topics([unique("nothing")]).values()
    assert code_of(future) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_deleted_topic_s_name_can_be_used_again_and_starts_empty(broker, admin, topic):
    bootstrap = broker.bootstrap_servers
    produce_values(bootstrap, topic, ["old"])
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=TIMEOUT_S).topics, "the deletion")
    create_topic(bootstrap, topic)
    assert read_topic(bootstrap, topic) == []
    produce_values(bootstrap, topic, ["new"])
    assert [(each.offset, each.value) for each in read_topic(bootstrap, topic)] == [(0, b"new")]


def test_partitions_are_added_and_used_and_never_taken_away(broker, admin, topic):
    bootstrap = broker.bootstrap_servers
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(TIMEOUT_S)
    wait_for(lambda: len(admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions), 4)
    produce_values(bootstrap, topic, ["into the new one"], partition=3)
    (seen,) = read_topic(bootstrap, topic)
    assert (seen.partition, seen.offset) == (3, 0)
    for count in (3, 4):
        (future,) = admin.create_partitions([NewPartitions(topic, count)]).values()
        assert code_of(future) == KafkaError.INVALID_PARTITIONS


def test_a_topic_s_configuration_tells_what_was_set_and_what_is_default(broker, admin, unique):
    config = {"retention.ms": "123456", "cleanup.policy": "compact"}
    topic = create_topic(broker.bootstrap_servers, unique("configs"), config=config)
    told = configs_of(admin, topic)
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert {n: e.value for n, e in told.items() if e.source == own} == config
    assert not told["retention.ms"].is_default
    untouched = told["message.timestamp.type"]
    assert untouched.value == "CreateTime"
    assert untouched.source == ConfigSource.DEFAULT_CONFIG.value
    assert not any(entry.is_sensitive or entry.is_read_only for entry in told.values())


def test_configurations_change_one_by_one_and_return_to_the_default(admin, topic):
    before = configs_of(admin, topic)
    change(admin, topic, ("retention.ms", "1000", "SET"))
    change(admin, topic, ("cleanup.policy", "compact", "APPEND"))
    wait_for(lambda: configs_of(admin, topic)["retention.ms"].value, "1000")
    wait_for(lambda: configs_of(admin, topic)["cleanup.policy"].value, "delete,compact")
    change(admin, topic, ("cleanup.policy", "delete", "SUBTRACT"))
    wait_for(lambda: configs_of(admin, topic)["cleanup.policy"].value, "compact")
    changes = [(name, None, "DELETE") for name in ("retention.ms", "cleanup.policy")]
    change(admin, topic, *changes)
    for name in ("retention.ms", "cleanup.policy"):
        expected = (before[name].value, before[name].source)

        def now(name=name) -> tuple:
            entry = configs_of(admin, topic)[name]
            return entry.value, entry.source

        wait_for(now, expected)


@pytest.mark.filterwarnings("ignore:alter_configs:DeprecationWarning")
def test_the_older_request_replaces_the_whole_configuration(admin, topic):
    change(admin, topic, ("retention.ms", "1000", "SET"))
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.bytes": "5000"})

    def replace() -> None:
        admin.alter_configs([resource])[resource].result(TIMEOUT_S)

    answer_of(admin, replace, "the change")
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value

    def set_now() -> dict:
        return {n: e.value for n, e in configs_of(admin, topic).items() if e.source == own}

    wait_for(set_now, {"retention.bytes": "5000"})


@pytest.mark.parametrize(
    "change, expected",
    [
        (("retention.ms", "soon", "SET"), KafkaError.INVALID_CONFIG),
        (("no.such.option", "1", "SET"), KafkaError.INVALID_CONFIG),
        (("retention.ms", "5", "APPEND"), KafkaError.INVALID_CONFIG),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_and_changes_nothing(
    admin, topic, change, expected
):
    good = ("retention.bytes", "77", "SET")
    assert code_of(alter(admin, topic, good, change)) == expected
    assert configs_of(admin, topic)["retention.bytes"].value == "-1"


def test_configurations_of_a_topic_that_is_not_there_are_unknown(admin, unique):
    nothing = unique("nothing")
    change = ("retention.ms", "1", "SET")
    assert code_of(alter(admin, nothing, change)) == KafkaError.UNKNOWN_TOPIC_OR_PART
    resource = ConfigResource(ResourceType.TOPIC, nothing)
    (future,) = admin.describe_configs([resource]).values()
    assert code_of(future) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_larger_maximum_takes_effect_on_the_next_record(broker, admin, topic):
    bootstrap = broker.bootstrap_servers
    value, settings = "x" * 1_500_000, {"message_max_bytes": 4_000_000}
    with pytest.raises(KafkaException) as caught:
        produce_values(bootstrap, topic, [value], partition=0, **settings)
    assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    change(admin, topic, ("max.message.bytes", "5000000", "SET"))

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
def test_the_cluster_has_its_nodes_one_of_them_the_controller(broker, admin):
    told = admin.describe_cluster(include_authorized_operations=False).result(TIMEOUT_S)
    found = sorted(f"{node.host}:{node.port}" for node in told.nodes)
    assert found == sorted(broker.bootstrap_servers.split(","))
    assert told.controller.id in {node.id for node in told.nodes}
    assert len(told.cluster_id) == 22


@pytest.mark.no_kill("tells who leads, and what is in sync")
def test_a_described_topic_has_an_id_leaders_and_replicas(broker, admin, topic, unique):
    nothing = unique("nothing")
    asked = admin.describe_topics(TopicCollection([topic, nothing]))
    described = asked[topic].result(TIMEOUT_S)
    assert (described.name, described.is_internal) == (topic, False)
    assert str(described.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
    assert [each.id for each in described.partitions] == [0, 1]
    brokers = len(ports_of(broker.bootstrap_servers))
    for each in described.partitions:
        replicas = [node.id for node in each.replicas]
        assert (len(replicas), replicas[0]) == (brokers, each.leader.id)
        assert sorted(node.id for node in each.isr) == sorted(replicas)
    assert code_of(asked[nothing]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_groups_are_listed_by_state_described_and_deleted_when_empty(broker, admin, topic, unique):
    group = unique("group")
    member = consumer(broker.bootstrap_servers, group, client_id="who-i-am")
    member.subscribe([topic])
    wait_until(lambda: member.poll(0.02) is None and bool(member.assignment()), "an assignment")

    def states() -> dict[str, str]:
        def ask() -> ListConsumerGroupsResult:
            return admin.list_consumer_groups(request_timeout=TIMEOUT_S).result(TIMEOUT_S)

        listed = answer_of(admin, ask, "the groups")
        return {each.group_id: each.state.name for each in listed.valid}

    # Where a coordinator moves, its groups are in no broker's list for a moment.
    wait_for(lambda: states().get(group), "STABLE")
    described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    (one,) = described.members
    assert (described.partition_assignor, one.client_id) == ("range", "who-i-am")
    assert one.host == "/127.0.0.1"
    assert code_of(admin.delete_consumer_groups([group])[group]) == KafkaError.NON_EMPTY_GROUP
    member.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    member.close()
    wait_until(lambda: states().get(group) == "EMPTY", "the group to be empty")
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    assert group not in states()
    assert code_of(admin.delete_consumer_groups([group])[group]) == KafkaError.GROUP_ID_NOT_FOUND


def test_a_group_s_offsets_are_listed_and_moved_when_it_has_no_members(
    broker, admin, topic, unique
):
    bootstrap, group = broker.bootstrap_servers, unique("group")
    produce_values(bootstrap, topic, ["a", "b", "c"], partition=1)

    def listed() -> dict[int, int]:
        asked = ConsumerGroupTopicPartitions(group)

        def ask() -> ConsumerGroupTopicPartitions:
            return admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_S)

        told = answer_of(admin, ask, "the group's offsets")
        return {each.partition: each.offset for each in told.topic_partitions}

    def move(offset: int) -> Future:
        places = [TopicPartition(topic, 1, offset)]
        return admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[
            group
        ]

    answer_of(admin, lambda: move(2).result(TIMEOUT_S), "the offsets to move")
    assert listed() == {1: 2}
    member = consumer(bootstrap, group)
    member.subscribe([topic])
    (message,) = poll_count(member, 1)
    assert message.offset() == 2
    with pytest.raises(KafkaException):
        told = move(0).result(TIMEOUT_S)
        raise KafkaException(told.topic_partitions[0].error)
    assert listed() == {1: 2}
    member.close()


def test_the_end_offset_depends_on_the_isolation_level(broker, admin, topic, unique):
    bootstrap = broker.bootstrap_servers
    place = TopicPartition(topic, 0)
    produce_values(bootstrap, topic, ["a", "b"], partition=0)
    made = transactional(bootstrap, unique("txn"))
    made.begin_transaction()
    made.produce(topic, b"open", partition=0)
    made.flush(TIMEOUT_S)

    def end(isolation: IsolationLevel) -> int:
        def ask() -> int:
            asked = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=isolation)
            return asked[place].result(TIMEOUT_S).offset

        return answer_of(admin, ask, "the end offset")

    assert end(IsolationLevel.READ_COMMITTED) == 2
    assert end(IsolationLevel.READ_UNCOMMITTED) == 3
    made.commit_transaction(TIMEOUT_S)
    wait_for(lambda: end(IsolationLevel.READ_COMMITTED), 4)


def test_deleted_records_move_the_start_and_committed_ones_after_it_stay(broker, admin, topic):
    bootstrap = broker.bootstrap_servers
    produce_values(bootstrap, topic, ["a", "b", "c", "d"], partition=0)
    assert low_watermark_after(admin, TopicPartition(topic, 0, 2)) == 2
    assert values_of(read_topic(bootstrap, topic)) == ["c", "d"]
    assert earliest(admin, TopicPartition(topic, 0)) == 2
    with pytest.raises(KafkaException) as caught:
        low_watermark_after(admin, TopicPartition(topic, 0, 100))
    assert caught.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
    # -1: all there is.
    assert low_watermark_after(admin, TopicPartition(topic, 0, -1)) == 4
    assert read_topic(bootstrap, topic) == []
