"""kafka-python's consumer groups and administrator, unchanged, on both brokers."""

from __future__ import annotations

import threading

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import (
    AlterConfigOp,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    MemberToRemove,
    OffsetSpec,
)
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    GroupSubscribedToTopicError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    KafkaError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata
from support.brokers.probe import wait_for, wait_until
from support.clients.kafka_python import consumer, poll_count, produce_values, read_topic
from support.clients.librdkafka import create_topic, values_of

pytestmark = pytest.mark.no_kill("kafka-python hangs when a poll ends before SyncGroup does")

PARTITIONS = 6
TIMEOUT_S = 30
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


@pytest.fixture
def topic(broker, unique) -> str:
    """An empty topic of six partitions."""
    return create_topic(broker.bootstrap_servers, unique("shared"), PARTITIONS)


@pytest.fixture
def admin(broker):
    """An administrator of the broker."""
    made = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield made
    made.close()


def member(bootstrap: str, group: str, topic: str, listener=None, **settings) -> KafkaConsumer:
    """A consumer of the topic that hears of a rebalance soon.

    It learns the topic's partitions before it joins: as the leader it would else share out none,
    and notice only much later.
    """
    made = consumer(bootstrap, group, heartbeat_interval_ms=200, **settings)
    made.subscribe([topic], listener=listener)
    made.partitions_for_topic(topic)
    return made


def shared(members: list[KafkaConsumer]) -> bool:
    """Serve each once; whether together they have each partition once, evenly."""
    for each in members:
        each.poll(timeout_ms=20)
    return evenly([{place.partition for place in each.assignment()} for each in members])


def evenly(shares: list[set[int]]) -> bool:
    """Whether these are all partitions, each once, and as many for everyone."""
    whole = sorted(number for share in shares for number in share)
    return whole == list(range(PARTITIONS)) and len({len(share) for share in shares}) == 1


class Poller:
    """A member polled by a thread of its own: joins of kafka-python wait for the others' joins."""

    def __init__(self, made: KafkaConsumer) -> None:
        self.share: set[int] = set()
        self._consumer = made
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stopped.is_set():
            self._consumer.poll(timeout_ms=50)
            self.share = {place.partition for place in self._consumer.assignment()}
        self._consumer.close()

    def leave(self) -> None:
        """Leave the group, and wait until that is done."""
        self._stopped.set()
        self._thread.join(TIMEOUT_S)


@pytest.mark.parametrize("name", list(ASSIGNORS))
def test_three_members_come_and_go_and_always_share_all_partitions(broker, topic, unique, name):
    settings = {"partition_assignment_strategy": (ASSIGNORS[name],)}
    group = unique("group")
    members: list[Poller] = []

    def shared_out() -> bool:
        return evenly([each.share for each in members])

    try:
        for count in (1, 2, 3):
            members.append(Poller(member(broker.bootstrap_servers, group, topic, **settings)))
            wait_until(shared_out, f"{count} even shares")
        members.pop(0).leave()
        wait_until(shared_out, "two even shares after one left")
    finally:
        for each in members:
            each.leave()


class Told(ConsumerRebalanceListener):
    """What a member was told to give back, and what it was given."""

    def __init__(self) -> None:
        self.revoked: list[int] = []
        self.assigned: list[int] = []

    def on_partitions_revoked(self, revoked):
        """Partitions that go."""
        self.revoked.append(len(revoked))

    def on_partitions_assigned(self, assigned):
        """Partitions that come."""
        self.assigned.append(len(assigned))


def test_a_cooperative_rebalance_takes_away_only_what_moves(broker, topic, unique):
    settings = {"partition_assignment_strategy": (CooperativeStickyAssignor,)}
    group, told = unique("group"), Told()
    first = Poller(member(broker.bootstrap_servers, group, topic, told, **settings))
    wait_until(lambda: evenly([first.share]), "all partitions")
    second = Poller(member(broker.bootstrap_servers, group, topic, **settings))
    wait_until(lambda: evenly([first.share, second.share]), "half each")
    assert sum(told.revoked) == 3
    first.leave()
    second.leave()


def test_a_killed_member_s_partitions_go_to_the_other_after_the_session(broker, topic, unique):
    bootstrap, group = broker.bootstrap_servers, unique("group")
    settings = {"session_timeout_ms": 1000, "max_poll_interval_ms": 1000}
    silent = member(bootstrap, group, topic, **settings)
    wait_until(lambda: shared([silent]), "all partitions")
    busy = member(bootstrap, group, topic)
    wait_until(lambda: shared([busy]), "the busy one to have everything")
    with pytest.raises((CommitFailedError, KafkaError)):
        silent.commit({TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)})
    assert busy.committed(TopicPartition(topic, 0)) is None
    busy.close()
    silent.close()


def test_a_static_member_keeps_its_partitions_over_a_restart_and_fences_its_double(
    broker, topic, unique
):
    bootstrap, group = broker.bootstrap_servers, unique("group")
    settings = {"session_timeout_ms": 30_000}
    place = TopicPartition(topic, 0)
    first = member(bootstrap, group, topic, group_instance_id="one", **settings)
    wait_until(lambda: shared([first]), "all partitions")
    double = member(bootstrap, group, topic, group_instance_id="one", **settings)
    wait_until(lambda: shared([double]), "the same partitions")
    with pytest.raises((FencedInstanceIdError, CommitFailedError)):
        first.commit({place: OffsetAndMetadata(1, "", -1)})
    double.commit({place: OffsetAndMetadata(0, "", -1)})
    assert double.committed(place) == 0
    first.close()
    double.close()


def test_positions_commits_seeks_and_times_agree(broker, unique):
    bootstrap, group = broker.bootstrap_servers, unique("group")
    topic = create_topic(bootstrap, unique("offsets"))
    place = TopicPartition(topic, 0)
    produce_values(bootstrap, topic, [f"{number}" for number in range(10)])
    reader = member(bootstrap, group, topic, max_poll_records=4)
    poll_count(reader, 4)
    reader.commit()
    assert (reader.position(place), reader.committed(place)) == (4, 4)
    reader.seek(place, 8)
    assert [one.offset for one in poll_count(reader, 2)] == [8, 9]
    first = reader.offsets_for_times({place: 0})[place]
    assert first.offset == 0
    assert reader.offsets_for_times({place: first.timestamp + 10**9})[place] is None
    assert reader.end_offsets([place]) == {place: 10}
    reader.close()
    again = member(bootstrap, group, topic, max_poll_records=1)
    assert [one.offset for one in poll_count(again, 1)] == [4]
    again.close()


def test_topics_are_created_described_grown_and_deleted(admin, unique):
    topic = unique("admin")
    asked = {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "77"}}
    admin.create_topics({topic: asked}, wait_for_metadata=True)
    (told,) = admin.describe_topics([topic])
    assert len(told["partitions"]) == 2
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics({topic: asked})
    with pytest.raises(InvalidReplicationFactorError):
        admin.create_topics({unique("wide"): asked | {"replication_factor": 9}})
    with pytest.raises(InvalidPartitionsError):
        admin.create_partitions({topic: 1})
    with pytest.raises(InvalidConfigurationError):
        admin.create_topics({unique("bad"): asked | {"configs": {"retention.ms": "soon"}}})
    admin.delete_topics([topic])
    wait_until(lambda: topic not in admin.list_topics(), "the topic's deletion")
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([topic])


def test_a_configuration_is_set_shown_and_reset(admin, topic):
    def retention() -> str:
        asked = ConfigResource(ConfigResourceType.TOPIC, topic)
        told = admin.describe_configs([asked], config_filter="all")
        return str(told["topic"][topic]["retention.ms"]["value"])

    default = retention()
    change = {"retention.ms": (AlterConfigOp.SET, "1234")}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=change)])
    wait_for(retention, "1234")
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=change)])
    wait_for(retention, default)


def test_a_group_s_offsets_are_moved_reset_and_deleted(broker, admin, topic, unique):
    bootstrap, group = broker.bootstrap_servers, unique("group")
    place = TopicPartition(topic, 1)
    produce_values(bootstrap, topic, [f"{number}" for number in range(60)])
    (end,) = admin.list_partition_offsets({place: OffsetSpec.LATEST}).values()

    def stored() -> int | None:
        told = admin.list_group_offsets({group: [place]})[group].get(place)
        return None if told is None or told.offset < 0 else told.offset

    admin.alter_group_offsets(group, {place: OffsetAndMetadata(3, "moved", -1)})
    assert stored() == 3
    admin.reset_group_offsets(group, {place: OffsetSpec.LATEST})
    assert stored() == end.offset
    admin.delete_group_offsets(group, [place])
    assert stored() is None


def test_offsets_of_a_topic_that_a_member_reads_are_not_deleted(broker, admin, topic, unique):
    bootstrap, group = broker.bootstrap_servers, unique("group")
    place = TopicPartition(topic, 1)
    reader = member(bootstrap, group, topic)
    wait_until(lambda: shared([reader]), "all partitions")
    reader.commit({place: OffsetAndMetadata(0, "", -1)})
    told = admin.delete_group_offsets(group, [place])
    assert told[place] is GroupSubscribedToTopicError
    assert reader.committed(place) == 0
    reader.close()


def test_an_administrator_removes_a_static_member(broker, admin, topic, unique):
    bootstrap, group = broker.bootstrap_servers, unique("group")
    settings = {"session_timeout_ms": 30_000}
    reader = member(bootstrap, group, topic, group_instance_id="one", **settings)
    wait_until(lambda: shared([reader]), "all partitions")
    reader.close()
    # A static member's close is no leave: the group still has it.
    assert len(admin.describe_groups([group])[group]["members"]) == 1
    admin.remove_group_members(group, [MemberToRemove(group_instance_id="one")])
    wait_for(lambda: admin.describe_groups([group])[group]["members"], [])
    admin.delete_groups([group])
    assert group not in {each["group_id"] for each in admin.list_groups()}


def test_deleted_records_are_gone_and_beyond_the_end_is_refused(broker, admin, unique):
    bootstrap = broker.bootstrap_servers
    topic = create_topic(bootstrap, unique("deleted"))
    place = TopicPartition(topic, 0)
    produce_values(bootstrap, topic, ["a", "b", "c"])
    admin.delete_records({place: 2})
    assert values_of(read_topic(bootstrap, topic)) == ["c"]
    with pytest.raises(OffsetOutOfRangeError):
        admin.delete_records({place: 99})


def test_the_cluster_its_features_and_its_log_directory_are_described(broker, admin, topic):
    produce_values(broker.bootstrap_servers, topic, ["x"])
    told = admin.describe_cluster()
    found = sorted(f"{node['host']}:{node['port']}" for node in told["brokers"])
    assert found == sorted(broker.bootstrap_servers.split(","))
    features = admin.describe_features()
    assert features["transaction.version"]["finalized"] == (2, 2)
    of_brokers = admin.describe_log_dirs([topic])
    assert [topic in str(each) for each in of_brokers] == [True] * len(found)
