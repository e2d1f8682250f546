"""A coordinator knows the partitions that others have: it asks the metadata, not its disk."""

from __future__ import annotations

import pytest
from support.core.broker_build import request
from support.core.core_cluster import OFFSETS, CoreCluster, coordinated

from broker_sim.core.controller.registrations import PartitionRegistration
from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import ApiKey

ALONE = "alone"
COORDINATOR, OWNER = 1, 2


@pytest.fixture
def cluster() -> CoreCluster:
    """Return a cluster with a topic of one replica, which the coordinator of the groups does not
    have."""
    made = coordinated()
    made.create(PartitionRegistration.new((OWNER,), (OWNER,)), name=ALONE)
    made.run(1_200)
    assert made.leader(OFFSETS) == COORDINATOR
    return made


def commit(cluster: CoreCluster, partition: int = 0) -> str:
    """OffsetCommit outside of a group."""
    place = {"partition_index": partition, "committed_offset": 5}
    topic = {"name": ALONE, "partitions": [place]}
    message = request(ApiKey.OFFSET_COMMIT, group_id="g", topics=[topic])
    (answered,) = cluster.ask(COORDINATOR, message, 8).topics
    return error_name(answered.partitions[0].error_code)


def test_offsets_are_committed_of_a_partition_that_the_coordinator_does_not_have(cluster) -> None:
    assert commit(cluster) == "NONE"
    assert commit(cluster, partition=1) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_transaction_has_offsets_of_such_a_partition(cluster) -> None:
    producer = cluster.producer()
    assert producer.init() == "NONE"
    assert producer.add_offsets("g") == "NONE"
    assert producer.commit_offset("g", ALONE, 0, 7) == "NONE"


def test_such_offsets_can_be_deleted(cluster) -> None:
    assert commit(cluster) == "NONE"
    topic = {"name": ALONE, "partitions": [{"partition_index": 0}]}
    message = request(ApiKey.OFFSET_DELETE, group_id="g", topics=[topic])
    answer = cluster.ask(COORDINATOR, message, 0)
    assert error_name(answer.topics[0].partitions[0].error_code) == "NONE"


@pytest.mark.parametrize(
    ("partition", "error"), [(0, "NOT_LEADER_OR_FOLLOWER"), (1, "UNKNOWN_TOPIC_OR_PARTITION")]
)
def test_producers_of_a_partition_are_described_by_who_has_it(cluster, partition, error) -> None:
    topic = {"name": ALONE, "partition_indexes": [partition]}
    message = request(ApiKey.DESCRIBE_PRODUCERS, topics=[topic])
    (topic,) = cluster.ask(COORDINATOR, message, 0).topics
    assert error_name(topic.partitions[0].error_code) == error
