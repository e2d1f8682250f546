"""Topics and their durable log: what survives which crash, what is refused."""

from __future__ import annotations

import uuid

import pytest
from support.core.broker_build import BrokerOnDisk, request
from support.core.plain_messages import operations

from broker_sim.core.config import ConfigError
from broker_sim.core.controller.image import ClusterImage, Topic
from broker_sim.core.controller.metadata_records import topic_record
from broker_sim.core.effects import Append, Delete, Flush, WriteFile
from broker_sim.core.log import STRAY_SUFFIX
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import InvariantViolation
from txnlog_kafka.wire.messages import ApiKey


def names(broker: BrokerOnDisk) -> set[str]:
    return set(broker.parts.image.topics)


def metadata(broker: BrokerOnDisk, version: int = 12, **fields):
    return broker.ask(request(ApiKey.METADATA, **fields), version)


def wanted(name: str | None, topic_id=None) -> list[dict]:
    return [{"name": name, "topic_id": topic_id}]


def test_topics_partitions_and_configs_survive_a_kill():
    broker = BrokerOnDisk()
    created = broker.create_topic("orders", 3, retention_ms="5000")
    cluster_id = broker.parts.image.cluster_id
    broker.kill()
    image = broker.parts.image
    topic = image.topics["orders"]
    assert (topic.partition_count, dict(topic.configs)) == (3, {"retention.ms": 5000})
    assert topic.topic_id == created.topic_id
    assert image.cluster_id == cluster_id
    assert image.broker_epoch == 1


def test_a_leader_epoch_rises_with_each_start():
    broker = BrokerOnDisk()
    broker.create_topic("orders")
    broker.produce("orders", "a")
    broker.kill()
    broker.produce("orders", "b")
    log = broker.log()
    assert log.leader_epoch == 1
    assert log.end_offset_for_epoch(0) == (0, 1)
    assert log.end_offset_for_epoch(1) == (1, 2)


def test_topics_asked_for_are_created_together_or_when_they_are_too_many_not_at_all():
    broker = BrokerOnDisk({"num.partitions": 3})
    asked = [wanted(f"new-{n}")[0] for n in range(3)]
    answer = metadata(broker, topics=asked, allow_auto_topic_creation=True)
    assert [(t.error_code, len(t.partitions)) for t in answer.topics] == [(0, 3)] * 3
    flushes = [op for op in broker.steps[-1].storage if isinstance(op, Flush)]
    assert len(flushes) == 1
    asked += [wanted(f"more-{n}")[0] for n in range(3334)]
    answer = metadata(broker, topics=asked, allow_auto_topic_creation=True)
    codes = [t.error_code for t in answer.topics]
    assert codes == [0] * 3 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3334
    assert names(broker) == {"new-0", "new-1", "new-2"}


def test_who_asks_by_ids_is_answered_by_ids_alone_each_once():
    broker = BrokerOnDisk()
    topic_id = broker.create_topic("orders").topic_id
    broker.create_topic("other")
    unknown = uuid.UUID(int=7)
    asked = [wanted(None, topic_id), wanted("x", topic_id), wanted("other"), wanted(None, unknown)]
    answer = metadata(broker, topics=[each for (each,) in asked], allow_auto_topic_creation=True)
    assert [(t.name, t.topic_id, t.error_code) for t in answer.topics] == [
        ("orders", topic_id, 0),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert names(broker) == {"orders", "other"}


@pytest.mark.parametrize("version", [10, 11])
def test_versions_that_only_carry_topic_ids_refuse_to_ask_by_them(version):
    broker = BrokerOnDisk()
    topic_id = broker.create_topic("orders").topic_id
    for name, each_id in (("orders", topic_id), (None, topic_id), (None, None)):
        (answer,) = metadata(broker, version, topics=wanted(name, each_id)).topics
        assert (answer.error_code, answer.name) == (ErrorCode.INVALID_REQUEST, name or "")
    (answer,) = metadata(broker, version, topics=wanted("orders")).topics
    assert (answer.error_code, answer.topic_id) == (0, topic_id)


def test_a_crash_at_any_operation_of_a_creation_leaves_all_of_a_topic_or_nothing():
    whole = BrokerOnDisk()
    before = len(whole.operations)
    whole.create_topic("orders", 2)
    for disk in whole.disks_since(before + 1):
        broker = BrokerOnDisk(disk=disk)
        logs = [broker.parts.logs.get("orders", p) for p in range(2)]
        assert all(log is not None for log in logs) == ("orders" in names(broker))
        if "orders" not in names(broker):
            assert broker.create_topic("orders", 2).error_code == 0
        assert broker.produce("orders", "a", partition=1).error_code == 0


def test_a_crash_at_any_operation_of_a_deletion_leaves_no_half_of_it():
    whole = BrokerOnDisk()
    whole.create_topic("orders", 2)
    whole.produce("orders", "old")
    before = len(whole.operations)
    whole.delete_topic("orders")
    for disk in whole.disks_since(before + 1):
        broker = BrokerOnDisk(disk=disk)
        if "orders" in names(broker):
            assert broker.fetch("orders").high_watermark == 1
            continue
        left = [name for name in broker.disk.list("") if name.startswith("orders")]
        assert all(name.endswith(STRAY_SUFFIX) for name in left)  # set aside, as in Kafka
        assert broker.create_topic("orders", 2).error_code == ErrorCode.NONE
        assert broker.fetch("orders").high_watermark == 0


def test_all_topics_are_listed_and_unknown_ones_are_created_only_when_allowed():
    broker = BrokerOnDisk()
    broker.create_topic("orders")
    assert [t.name for t in metadata(broker, topics=None).topics] == ["orders"]
    asked = metadata(broker, topics=wanted("fresh"), allow_auto_topic_creation=False)
    assert asked.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    asked = metadata(broker, topics=wanted("fresh"), allow_auto_topic_creation=True)
    assert (asked.topics[0].error_code, len(asked.topics[0].partitions)) == (0, 1)
    closed = BrokerOnDisk({"auto.create.topics.enable": False})
    asked = metadata(closed, topics=wanted("fresh"), allow_auto_topic_creation=True)
    assert asked.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_version_0_means_all_topics_by_an_empty_list_and_later_ones_none():
    broker = BrokerOnDisk()
    broker.create_topic("orders")
    assert len(metadata(broker, version=0, topics=[]).topics) == 1
    assert metadata(broker, version=1, topics=[]).topics == []


def test_the_directory_of_another_broker_is_refused():
    broker = BrokerOnDisk()
    with pytest.raises(ConfigError, match=r"node\.id=0"):
        BrokerOnDisk({"node.id": 1}, disk=broker.disk)


def test_a_directory_whose_metadata_was_removed_is_refused():
    broker = BrokerOnDisk()
    disk = SimDisk()
    disk._files = {
        name: file for name, file in broker.disk._files.items() if "__cluster" not in name
    }
    with pytest.raises(ConfigError, match="metadata log"):
        BrokerOnDisk(disk=disk)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "version None"),
        (b"version=0\nbroker.id=0\n", "version 0"),
        (b"version=1\nnode.id=0\ncluster.id=elsewhere\n", "two clusters"),
        (b"version=1\ncluster.id=elsewhere\n", "node.id=None"),
        (b"nonsense\n", "version None"),
        (b"version=\\u00\n", "damaged"),
    ],
)
def test_a_directory_whose_owner_cannot_be_told_is_refused(content, says):
    broker = BrokerOnDisk()
    broker.stop()
    broker.disk.apply(WriteFile("meta.properties", content))
    with pytest.raises(ConfigError, match=says):
        BrokerOnDisk(disk=broker.disk)


def test_a_partition_that_is_missing_after_a_clean_stop_is_named_and_may_be_given_up():
    broker = BrokerOnDisk()
    broker.create_topic("orders", 2)
    broker.stop()
    broker.disk.apply(Delete("orders-1"))
    for _ in range(2):
        with pytest.raises(ConfigError, match="orders-1 is missing"):
            BrokerOnDisk(disk=broker.disk)
    broker.disk.apply(Delete(".kafka_cleanshutdown"))
    again = BrokerOnDisk(disk=broker.disk)
    assert again.produce("orders", "a", partition=1).base_offset == 0


def test_the_limits_of_clients_topics_do_not_apply_to_the_metadata():
    """The records of one request are one batch, larger than clients' topics may take."""
    broker = BrokerOnDisk({"message.max.bytes": 100, "log.segment.bytes": 1 << 20})
    assert broker.create_topic("orders").error_code == ErrorCode.NONE
    topics = [Topic(f"t{at}" + "x" * 200, uuid.UUID(int=at), 1, {}, 0) for at in range(4000)]
    metadata = broker.parts.metadata
    broker.cause(lambda effects: metadata.commit([topic_record(each) for each in topics], effects))
    written = broker.steps[-1].storage
    assert max(len(op.data) for op in written if isinstance(op, Append)) > 1 << 20
    assert metadata.image.topics[topics[-1].name] == topics[-1]


def test_a_record_of_an_unknown_type_is_an_error_and_not_skipped():
    with pytest.raises(InvariantViolation, match="unknown type"):
        ClusterImage(1).replay({"type": "of the future"})


def test_internal_topics_keep_their_partition_count_when_the_configuration_changes():
    broker = BrokerOnDisk()
    broker.find_coordinators()
    changed = BrokerOnDisk({"offsets.topic.num.partitions": 7}, disk=broker.disk)
    assert changed.parts.image.partition_count("__consumer_offsets") == 2


def test_everybody_is_told_to_be_allowed_everything_when_asked():
    """Kafka without an authorizer allows everything, also for topics that do not exist."""
    broker = BrokerOnDisk()
    broker.create_topic("orders")
    asked = {
        "topics": [*wanted("orders"), *wanted("none")],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }
    answer = metadata(broker, 10, **asked)
    topic_operations = {3, 4, 5, 6, 7, 8, 10, 11}
    assert [operations(t.topic_authorized_operations) for t in answer.topics] == [
        topic_operations
    ] * 2
    assert operations(answer.cluster_authorized_operations) == {5, 7, 8, 9, 10, 11, 12}
    answer = metadata(broker, 10, topics=wanted("orders"))
    found = answer.topics[0].topic_authorized_operations, answer.cluster_authorized_operations
    assert found == (-(2**31), -(2**31))
    message = request(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": "orders"}], response_partition_limit=9
    )
    described = broker.ask(message, 0).topics[0].topic_authorized_operations
    assert described == sum(1 << operation for operation in topic_operations)
