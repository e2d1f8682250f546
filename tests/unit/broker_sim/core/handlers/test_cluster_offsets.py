"""A coordinator knows the partitions that others have: it asks the metadata, not its disk."""

from __future__ import annotations

import pytest
from support.core.broker_build import request, struct
from support.core.transaction_cluster import OFFSETS, TransactionCluster

from broker_sim.core.controller.registrations import PartitionRegistration
from txnlog_kafka.wire.errors import error_name
from txnlog_kafka.wire.messages import ApiKey

ALONE = "alone"
COORDINATOR, OWNER = 1, 2


@pytest.fixture
def cluster() -> TransactionCluster:
    """With a topic of one replica, which is not at the coordinator of the groups."""
    made = TransactionCluster()
    made.create(PartitionRegistration.new((OWNER,), (OWNER,)), name=ALONE)
    made.wait()
    assert made.leader(OFFSETS) == COORDINATOR
    return made


def commit(cluster: TransactionCluster, partition: int = 0) -> str:
    """OffsetCommit outside of a group."""
    message = request(ApiKey.OFFSET_COMMIT, group_id="g", generation_id_or_member_epoch=-1)
    topic = struct(message, "OffsetCommitRequestTopic", name=ALONE)
    topic.partitions = [
        struct(message, "OffsetCommitRequestPartition", partition_index=partition,
               committed_offset=5, committed_leader_epoch=-1)
    ]  # fmt: skip
    message.topics = [topic]
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
    message = request(ApiKey.OFFSET_DELETE, group_id="g")
    topic = struct(message, "OffsetDeleteRequestTopic", name=ALONE)
    topic.partitions = [struct(message, "OffsetDeleteRequestPartition", partition_index=0)]
    message.topics = [topic]
    answer = cluster.ask(COORDINATOR, message, 0)
    assert error_name(answer.topics[0].partitions[0].error_code) == "NONE"


@pytest.mark.parametrize(
    ("partition", "error"), [(0, "NOT_LEADER_OR_FOLLOWER"), (1, "UNKNOWN_TOPIC_OR_PARTITION")]
)
def test_producers_of_a_partition_are_described_by_who_has_it(cluster, partition, error) -> None:
    message = request(ApiKey.DESCRIBE_PRODUCERS)
    message.topics = [struct(message, "TopicRequest", name=ALONE, partition_indexes=[partition])]
    (topic,) = cluster.ask(COORDINATOR, message, 0).topics
    assert error_name(topic.partitions[0].error_code) == error
