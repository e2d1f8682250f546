"""Every API: it is in the table, answers every version, and says what Kafka says."""

from __future__ import annotations

import random

import pytest
from support.core.broker_build import BrokerOnDisk, request
from support.core.message_build import fill

from broker_sim.core.handlers import HANDLERS
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey

PAIRS = [
    (key, version)
    for key in HANDLERS
    for version in range(APIS[key].version_min, APIS[key].version_max + 1)
]


def test_every_declared_api_has_a_handler():
    assert set(HANDLERS) == set(APIS)


@pytest.mark.parametrize(("key", "version"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_every_version_is_answered_and_the_answer_can_be_read(key, version):
    broker = BrokerOnDisk()
    broker.create_topic("orders")
    rng = random.Random(f"{key.name}/{version}")
    for number in range(5):
        broker.send(fill(APIS[key].request, version, rng), version, connection_id=number)
    broker.advance(100_000)
    traces = [t for step in broker.steps for t in step.traces if t.kind == "request-failed"]
    assert traces == []
    refused = [r for r in broker.asked.closed.values() if "acks=0" not in r]
    assert refused == []


def advertised(answer) -> dict[int, tuple[int, int]]:
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}


def api_versions(name: str = "a", version: str = "1.0-b"):
    return request(ApiKey.API_VERSIONS, client_software_name=name, client_software_version=version)


def test_api_versions_advertises_what_is_spoken_and_produce_from_0_for_librdkafka():
    answer = BrokerOnDisk().ask(api_versions(), 3)
    table = advertised(answer)
    assert table[ApiKey.PRODUCE] == (0, APIS[ApiKey.PRODUCE].version_max)
    assert set(table) == set(HANDLERS)


@pytest.mark.parametrize(
    "levels",
    [
        {"group.version": 0, "transaction.version": 0},
        {"group.version": 0, "transaction.version": 1},
        {"group.version": 1, "transaction.version": 2},
    ],
)
def test_the_finalized_features_are_the_configured_ones(levels):
    answer = BrokerOnDisk(levels).ask(api_versions(), 3)
    finalized = {f.name: f.max_version_level for f in answer.finalized_features}
    assert finalized == {name: level for name, level in levels.items() if level}


def join_consumer_group(**more):
    fields = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 9}
    fields |= {"subscribed_topic_names": ["t"], "topic_partitions": []} | more
    return request(ApiKey.CONSUMER_GROUP_HEARTBEAT, **fields)


def describe_consumer_group(broker, group_id):
    asked = request(
        ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=[group_id], include_authorized_operations=True
    )
    (group,) = broker.ask(asked, 1).groups
    return group


def test_a_consumer_group_is_joined_and_described_by_messages():
    broker = BrokerOnDisk({"group.consumer.assignment.interval.ms": 0})
    broker.find_coordinators()
    broker.create_topic("t", 2)
    answer = broker.ask(join_consumer_group(subscribed_topic_regex="t+"), 1)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "m", 2)
    (topic,) = answer.assignment.topic_partitions
    assert topic.partitions == [0, 1]
    owned = {"topic_id": topic.topic_id, "partitions": [0, 1]}
    kind = APIS[ApiKey.CONSUMER_GROUP_HEARTBEAT].request.TopicPartitions
    beat = join_consumer_group(
        member_epoch=2, rebalance_timeout_ms=-1, subscribed_topic_names=None,
        topic_partitions=[kind(**owned)],
    )  # fmt: skip
    answer = broker.ask(beat, 1)
    assert (answer.error_code, answer.assignment) == (0, None)
    group = describe_consumer_group(broker, "g")
    assert (group.error_code, group.group_state, group.assignor_name) == (0, "Stable", "uniform")
    (member,) = group.members
    assert member.assignment == member.target_assignment
    assert member.assignment.topic_partitions[0].topic_name == "t"
    assert member.client_host.startswith("/")
    assert (member.subscribed_topic_regex, member.member_type) == ("t+", 1)
    refused = describe_consumer_group(broker, "h")
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND, "Group h not found.",
    )  # fmt: skip
    assert describe_consumer_group(broker, "").error_code == ErrorCode.INVALID_GROUP_ID


def test_without_the_feature_group_version_there_are_no_consumer_groups():
    broker = BrokerOnDisk({"group.version": 0})
    broker.find_coordinators()
    answer = broker.ask(join_consumer_group(), 1)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert describe_consumer_group(broker, "g").error_code == ErrorCode.UNSUPPORTED_VERSION


def test_members_of_share_groups_are_refused_with_an_error_that_their_clients_show():
    broker = BrokerOnDisk()
    beat = request(ApiKey.SHARE_GROUP_HEARTBEAT, group_id="g", member_id="m", member_epoch=0)
    answer = broker.ask(beat, 1)
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.UNSUPPORTED_VERSION, "This broker has no share groups.",
    )  # fmt: skip


@pytest.mark.parametrize(("name", "version"), [("", "1"), ("a", ""), ("a b", "1"), ("a", "1-")])
def test_a_client_without_a_proper_name_is_refused(name, version):
    broker = BrokerOnDisk()
    answer = broker.ask(api_versions(name, version), 3)
    assert (answer.error_code, answer.api_keys) == (ErrorCode.INVALID_REQUEST, [])
    assert broker.ask(api_versions(name, version), 2).error_code == 0


def test_find_coordinator_answers_this_broker_for_groups_and_transactions():
    broker = BrokerOnDisk({"listeners": "PLAINTEXT://127.0.0.1:1234"})
    for key_type in (0, 1):
        message = request(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=["a", "b"])
        found = broker.ask(message, 4).coordinators
        assert [(c.key, c.node_id, c.port, c.error_code) for c in found] == [
            ("a", 0, 1234, 0),
            ("b", 0, 1234, 0),
        ]
    message = request(ApiKey.FIND_COORDINATOR, key_type=2, coordinator_keys=["a"])
    assert broker.ask(message, 6).coordinators[0].error_code == ErrorCode.INVALID_REQUEST


def list_offsets(broker, timestamp: int, *, epoch: int = -1, version: int = 9):
    place = {"partition_index": 0, "current_leader_epoch": epoch, "timestamp": timestamp}
    (result,) = list_all_offsets(broker, [place], version)
    return result


def list_all_offsets(broker, places: list[dict], version: int):
    topics = [{"name": "orders", "partitions": places}]
    return broker.ask(request(ApiKey.LIST_OFFSETS, topics=topics), version).topics[0].partitions


def test_a_partition_asked_for_twice_in_list_offsets_is_refused():
    broker = BrokerOnDisk()
    broker.create_topic("orders", 2)
    places = [{"partition_index": index, "timestamp": -1} for index in (0, 1, 0)]
    codes = [result.error_code for result in list_all_offsets(broker, places, 7)]
    assert codes == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]


def test_list_offsets_knows_the_special_timestamps():
    broker = BrokerOnDisk()
    broker.create_topic("orders")
    assert list_offsets(broker, -3).offset == -1
    broker.produce("orders", "a", "b")
    broker.now_ms += 1000
    broker.produce("orders", "c")
    assert list_offsets(broker, -1).offset == 3
    assert list_offsets(broker, -2).offset == 0
    assert list_offsets(broker, -3).offset == 2
    assert list_offsets(broker, -4).offset == 0
    assert list_offsets(broker, -5).offset == -1
    assert list_offsets(broker, -6, version=11).offset == -1
    assert list_offsets(broker, -7, version=11).error_code == ErrorCode.UNSUPPORTED_VERSION
    found = list_offsets(broker, broker.now_ms - 1)
    assert (found.offset, found.timestamp) == (2, broker.now_ms)
    assert list_offsets(broker, broker.now_ms + 1).offset == -1


def test_a_stale_or_future_leader_epoch_is_refused():
    broker = BrokerOnDisk()
    broker.create_topic("orders")
    broker.kill()
    assert list_offsets(broker, -1, epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert list_offsets(broker, -1, epoch=2).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert list_offsets(broker, -1, epoch=-2).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert list_offsets(broker, -1, epoch=1).error_code == 0
    assert broker.fetch("orders", leader_epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_topic_partitions_are_described_in_pages():
    broker = BrokerOnDisk()
    broker.create_topic("a", 3)
    broker.create_topic("b", 2)
    seen, cursor = [], None
    for _ in range(10):
        message = request(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[], response_partition_limit=2, cursor=cursor
        )
        answer = broker.ask(message, 0)
        seen += [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
        if answer.next_cursor is None:
            break
        place = answer.next_cursor
        cursor = {"topic_name": place.topic_name, "partition_index": place.partition_index}
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]


def test_an_altered_config_counts_at_once_and_after_a_kill():
    broker = BrokerOnDisk()
    broker.create_topic("orders")
    assert broker.alter_topic("orders", "max.message.bytes", "100") == 0
    assert broker.produce("orders", "x" * 200).error_code == ErrorCode.MESSAGE_TOO_LARGE
    broker.kill()
    assert broker.produce("orders", "x" * 200).error_code == ErrorCode.MESSAGE_TOO_LARGE
