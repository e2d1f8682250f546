"""What only Apache Kafka's Java client does, or has an own call for, on both brokers."""

from __future__ import annotations

import time

import pytest
from support.brokers.probe import wait_for, wait_until
from support.clients.adapter import END, Member, told_by
from support.clients.librdkafka import create_topic, produce_values

pytestmark = told_by("java")

UNKNOWN = "UnknownTopicOrPartitionException"


@pytest.fixture
def topic(bootstrap, unique) -> str:
    """An empty topic of two partitions."""
    return create_topic(bootstrap, unique("topic"), 2)


def test_a_topic_is_described_by_name_id_and_page_and_deleted_by_id(client, admin, unique):
    made, own, topic = admin.made, client.own.admin, unique("life")
    new = own.NewTopic(topic, 5, 1).configs({"segment.ms": "60000"})
    created = made.createTopics([new])
    created.all().get()
    assert created.numPartitions(topic).get() == 5
    assert created.replicationFactor(topic).get() == 1
    assert created.config(topic).get().get("segment.ms").value() == "60000"
    # The broker hears of a new topic a moment after the controller's answer.
    wait_until(lambda: topic in admin.topics() and admin.partitions(topic) == 5, "its partitions")
    one, ids = created.topicId(topic).get(), client.common.TopicCollection.ofTopicIds
    by_id = made.describeTopics(ids([one])).allTopicIds().get()[one]
    by_name = made.describeTopics([topic]).allTopicNames().get()[topic]
    assert (by_id.name(), by_name.topicId().toString()) == (topic, one.toString())
    pages = own.DescribeTopicsOptions().partitionSizeLimitPerResponse(2)
    paged = made.describeTopics([topic], pages).allTopicNames().get()[topic]
    assert [each.partition() for each in paged.partitions()] == [0, 1, 2, 3, 4]
    made.deleteTopics(ids([one])).all().get()
    wait_for(lambda: client.error_of(lambda: admin.partitions(topic)), "UNKNOWN_TOPIC_OR_PARTITION")
    unknown = made.describeTopics(ids([client.common.Uuid.randomUuid()]))
    assert client.thrown_by(lambda: unknown.allTopicIds().get()) == "UnknownTopicIdException"


@pytest.mark.no_kill("a change whose answer is lost is refused when the client asks for it again")
def test_partitions_of_an_unknown_broker_are_not_added(client, admin, topic):
    asked = {topic: client.own.admin.NewPartitions.increaseTo(3, [[77]])}
    refused = client.thrown_by(lambda: admin.made.createPartitions(asked).all().get())
    assert refused == "InvalidReplicaAssignmentException"


def test_a_configuration_is_validated_without_being_changed(client, admin, topic):
    of, entry = client.own.admin.AlterConfigOp, client.own.admin.ConfigEntry
    options = client.own.admin.AlterConfigsOptions().validateOnly(True)
    change = {admin.resource(topic): [of(entry("retention.ms", "2000"), of.OpType.SET)]}
    admin.alter_configs(topic, ("retention.ms", "SET", "1000"))
    wait_for(lambda: admin.configs(topic)["retention.ms"], ("1000", "DYNAMIC_TOPIC_CONFIG"))
    admin.made.incrementalAlterConfigs(change, options).all().get()
    told = admin.made.describeConfigs([admin.resource(topic)]).all().get()
    one = told[admin.resource(topic)].get("retention.ms")
    assert (one.value(), one.isDefault(), one.type().toString()) == ("1000", False, "LONG")


@pytest.mark.no_kill("tells which brokers are there")
def test_the_cluster_its_log_folder_and_its_features_are_described(client, admin, topic):
    cluster = admin.made.describeCluster()
    nodes = [each.id() for each in cluster.nodes().get().iterator()]
    assert cluster.controller().get().id() in nodes
    assert len(cluster.clusterId().get()) == 22
    (folders,) = admin.made.describeLogDirs(nodes[:1]).allDescriptions().get().values()
    (folder,) = folders.values()
    size = folder.replicaInfos()[client.place((topic, 0))].size()
    assert (folder.error(), size) == (None, 0)
    features = admin.made.describeFeatures().featureMetadata().get().finalizedFeatures()
    assert features["transaction.version"].maxVersionLevel() == 2


def test_offsets_of_an_unknown_partition_are_unknown_and_the_earliest_local_is_the_earliest(
    client, admin, topic, unique
):
    assert admin.offset((topic, 0), "earliest_local") == 0
    # What is unknown is asked for until the time is over.
    own, place = client.own.admin, client.place((unique("absent"), 0))
    options = own.ListOffsetsOptions().timeoutMs(3000)
    asked = admin.made.listOffsets({place: own.OffsetSpec.latest()}, options)
    assert client.thrown_by(lambda: asked.partitionResult(place).get()) == UNKNOWN


def test_group_offsets_have_a_leader_epoch_and_are_deleted_one_by_one(client, admin, topic, unique):
    group, place = unique("group"), client.place((topic, 0))
    zero = client.java.java.util.Optional.of(0)
    offset = client.own.consumer.OffsetAndMetadata(3, zero, "a note")
    admin.made.alterConsumerGroupOffsets(group, {place: offset}).all().get()
    admin.move_offsets(group, {(topic, 1): (4, "")})
    stored = admin.made.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
    assert stored[place].leaderEpoch().get() == 0
    assert admin.group_offsets(group) == {(topic, 0): (3, "a note"), (topic, 1): (4, "")}
    admin.made.deleteConsumerGroupOffsets(group, {place}).all().get()
    assert admin.group_offsets(group) == {(topic, 1): (4, "")}


@pytest.mark.no_kill("who was removed is back if the coordinator dies before the others join again")
def test_members_are_removed_from_a_group_by_instance_id_and_all_at_once(
    client, bootstrap, admin, topic, unique
):
    group, own = unique("group"), client.own.admin
    one = Member(client, bootstrap, group, topic, group_instance_id="one")
    two = Member(client, bootstrap, group, topic)
    wait_until(lambda: len(one.share) == len(two.share) == 1, "a partition each")

    def remove(*names: str) -> None:
        members = [own.MemberToRemove(name) for name in names]
        options = own.RemoveMembersFromConsumerGroupOptions
        asked = options(members) if names else options()
        admin.made.removeMembersFromConsumerGroup(group, asked).all().get()

    assert client.thrown_by(lambda: remove("nobody")) == "UnknownMemberIdException"
    one.stop_polling()
    remove("one")
    wait_until(lambda: len(two.share) == 2, "the other to own all")
    assert len(admin.members(group)) == 1
    two.stop_polling()
    remove()
    assert admin.members(group) == []


def test_a_consumer_s_position_at_the_end_depends_on_its_isolation_level(
    client, bootstrap, topic, unique
):
    place, writer = (topic, 0), client.transactional(bootstrap, unique("txn"))
    writer.transact(topic, *map(str, range(10)))
    writer.begin()
    writer.sent(topic, "open", partition=0)
    for isolation, end in (("read_committed", 11), ("read_uncommitted", 12)):
        reader = client.consumer(bootstrap, isolation_level=isolation)
        reader.assign([place])
        wait_for(lambda asked=reader: asked.ends(place), (0, end))
        reader.seek(place, END)
        assert reader.position(place) == end
    writer.abort()


def test_a_consumer_commits_without_waiting_pauses_and_resumes(client, bootstrap, topic, unique):
    place, java_place = (topic, 0), client.place((topic, 0))
    produce_values(bootstrap, topic, map(str, range(3)), partition=0)
    reader, told = client.consumer(bootstrap, unique("group")), client.java.Told()
    reader.assign([place])
    reader.made.commitAsync(client.offsets({place: (4, "four")}), told)

    def answer() -> str:
        reader.poll()
        return told.take()

    wait_for(answer, f"committed {topic}-0")
    assert reader.committed(place) == (4, "four")
    reader.made.pause([java_place])
    reader.seek(place, 0)
    assert reader.poll() == []
    reader.made.resume([java_place])
    assert [each.value for each in reader.take(1)] == [b"0"]


def test_a_consumer_without_a_position_starts_where_its_policy_says(client, bootstrap, topic):
    place, writer, now = (topic, 0), client.producer(bootstrap), time.time_ns() // 10**6
    for hours in (3, 2, 0):
        writer.sent(topic, "v", partition=0, timestamp=now - hours * 3_600_000)
    for policy, expected in (("earliest", 0), ("latest", 3), ("by_duration:PT2H30M", 1)):
        reader = client.consumer(bootstrap, auto_offset_reset=policy)
        reader.assign([place])
        assert reader.position(place) == expected
    strict = client.consumer(bootstrap, auto_offset_reset="none")
    strict.assign([place])
    assert client.thrown_by(lambda: strict.position(place)) == "NoOffsetForPartitionException"
    strict.seek(place, 77)
    out_of_range = client.thrown_by(lambda: strict.take(1))
    assert out_of_range == "OffsetOutOfRangeException"
