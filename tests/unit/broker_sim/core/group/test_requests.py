"""Group requests message by message: what depends on their version, and topics by id."""

from __future__ import annotations

import pytest
from support.core import plain_messages
from support.core.broker_build import BrokerOnDisk, request
from support.raw.raw import RawProducer

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey

E, K = ErrorCode, ApiKey


def started() -> BrokerOnDisk:
    """A broker with both coordinators."""
    broker = BrokerOnDisk()
    broker.find_coordinators()
    return broker


def join(broker: BrokerOnDisk, version: int = 9, **fields):
    """JoinGroup of one member; the answer once the rebalance is over."""
    known = {
        "group_id": "g", "session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000,
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": bytes(6)}],
    }  # fmt: skip
    key = broker.send(request(K.JOIN_GROUP, **known | fields), version)
    broker.advance(10)
    return broker.asked.answers[key]


def sync(broker: BrokerOnDisk, joined, version: int = 5, **fields):
    known = {
        "group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id,
        "protocol_type": "consumer", "protocol_name": "range",
        "assignments": [{"member_id": joined.member_id, "assignment": b"part"}],
    }  # fmt: skip
    return broker.ask(request(K.SYNC_GROUP, **known | fields), version)


def stable_group(broker: BrokerOnDisk):
    joined = join(broker, member_id=join(broker).member_id)
    answer = sync(broker, joined)
    assert (answer.error_code, answer.assignment) == (0, b"part"), (answer, joined)
    return joined


def describe(broker: BrokerOnDisk, *group_ids: str, version: int = 6, operations: bool = False):
    message = request(
        K.DESCRIBE_GROUPS, groups=[*group_ids], include_authorized_operations=operations
    )
    return broker.ask(message, version).groups


def commit(broker: BrokerOnDisk, topics: dict, version: int) -> list[tuple]:
    """OffsetCommit of partition 0 of each topic (by name or id): (topic, error)."""
    named = "topic_id" if version >= 10 else "name"
    asked = [
        {named: topic, "partitions": [{"partition_index": 0, "committed_offset": offset}]}
        for topic, offset in topics.items()
    ]
    answered = broker.ask(request(K.OFFSET_COMMIT, group_id="g", topics=asked), version).topics
    return [(getattr(t, named), E(t.partitions[0].error_code)) for t in answered]


def fetch(broker: BrokerOnDisk, topics: list | None, version: int) -> list[tuple]:
    """OffsetFetch of partition 0 of each topic: (topic, offset, error)."""
    named = "topic_id" if version >= 10 else "name"
    asked = topics and [{named: topic, "partition_indexes": [0]} for topic in topics]
    group = {"group_id": "g", "topics": asked}
    message = request(K.OFFSET_FETCH, require_stable=True, groups=[group])
    (group,) = broker.ask(message, version).groups
    assert group.error_code == 0
    found = [(getattr(t, named), t.partitions[0]) for t in group.topics]
    return [(name, p.committed_offset, E(p.error_code)) for name, p in found]


def test_topics_by_id_are_committed_and_fetched_and_unknown_ids_refused():
    broker = started()
    known = broker.create_topic("orders").topic_id
    gone = broker.create_topic("gone").topic_id
    assert commit(broker, {known: 1, gone: 2}, 10) == [(known, E.NONE), (gone, E.NONE)]
    broker.ask(request(K.DELETE_TOPICS, topic_names=["gone"], timeout_ms=1000), 5)
    assert commit(broker, {gone: 3, known: 4}, 10) == [
        (gone, E.UNKNOWN_TOPIC_ID),
        (known, E.NONE),
    ]
    assert fetch(broker, [gone, known], 10) == [
        (gone, -1, E.UNKNOWN_TOPIC_ID),
        (known, 4, E.NONE),
    ]
    assert fetch(broker, None, 10) == [(known, 4, E.NONE)]
    assert fetch(broker, ["nowhere", "orders"], 9) == [
        ("nowhere", -1, E.NONE),
        ("orders", 4, E.NONE),
    ]


def commit_in_transaction(broker: BrokerOnDisk) -> None:
    """TxnOffsetCommit of version 5, which names the topic."""
    producer = RawProducer(broker, "txn")
    assert producer.init() == "NONE"
    assert producer.commit_offset("g", "orders", 0, 7, version=5) == "NONE"
    assert producer.end(commit=True, version=5) == "NONE"


@pytest.mark.parametrize("version", [2, 9, None])
def test_the_offset_of_an_earlier_topic_of_the_name_is_none_by_id(version):
    broker = started()
    broker.create_topic("orders")
    if version is None:
        commit_in_transaction(broker)
    else:
        assert commit(broker, {"orders": 7}, version) == [("orders", E.NONE)]
    # As after a crash between the deletion and the tombstones of its offsets.
    state = broker.broker.parts
    old_id = state.image.topics["orders"].topic_id
    listener, state.groups.on_partitions_deleted = state.groups.on_partitions_deleted, ignore
    broker.ask(request(K.DELETE_TOPICS, topic_names=["orders"], timeout_ms=1000), 5)
    state.groups.on_partitions_deleted = listener
    new_id = broker.create_topic("orders").topic_id
    assert new_id != old_id
    for _ in range(2):
        assert fetch(broker, [new_id], 10) == [(new_id, -1, E.NONE)]
        assert fetch(broker, ["orders"], 9) == [("orders", 7, E.NONE)]
        broker.kill()


def ignore(_partitions, _effects) -> None:
    """A listener that never ran."""


def test_without_protocol_type_and_name_a_sync_is_refused_from_version_5_on():
    broker = started()
    joined = join(broker, member_id=join(broker).member_id)
    refused = sync(broker, joined, protocol_type=None)
    assert refused.error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert sync(broker, joined, protocol_name=None).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert sync(broker, joined, 4).error_code == E.NONE


def test_describe_groups_shows_the_last_assignment_also_while_a_rebalance_goes_on():
    broker = started()
    joined = stable_group(broker)
    (described,) = describe(broker, "g")
    (member,) = described.members
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert (member.member_metadata, member.member_assignment) == (b"\0" * 6, b"part")
    join(broker, member_id=joined.member_id)
    (described,) = describe(broker, "g")
    (member,) = described.members
    assert (described.group_state, described.protocol_data) == ("CompletingRebalance", "")
    assert (member.member_metadata, member.member_assignment) == (b"", b"part")


def test_describe_groups_tells_unknown_groups_and_what_everybody_may_do():
    broker = started()
    stable_group(broker)
    known, unknown = describe(broker, "g", "nobody", operations=True)
    assert plain_messages.operations(known.authorized_operations) == {3, 6, 8, 10, 11}
    assert (unknown.error_code, unknown.group_state) == (E.GROUP_ID_NOT_FOUND, "Dead")
    assert unknown.error_message == "Group nobody not found."
    assert unknown.authorized_operations == -(2**31)
    (old,) = describe(broker, "nobody", version=5)
    assert (old.error_code, old.group_state) == (E.NONE, "Dead")
    (not_asked,) = describe(broker, "g")
    assert not_asked.authorized_operations == -(2**31)


def test_an_empty_group_id_adds_nothing_to_the_transaction():
    broker = started()
    broker.create_topic("orders")
    producer = broker.producer()
    assert producer.init() == "NONE"
    assert producer.commit_offset("", "orders", 0, 1, version=5) == "INVALID_GROUP_ID"
    assert broker.parts.transactions.describe("t").state == "Empty"


def test_list_groups_filters_ignore_case_and_blanks():
    broker = started()
    stable_group(broker)

    def listed(states: list[str], types: list[str]) -> list[str]:
        message = request(K.LIST_GROUPS, states_filter=states, types_filter=types)
        return [group.group_id for group in broker.ask(message, 5).groups]

    assert listed([" staBLE"], ["ClassIC"]) == ["g"]
    assert listed(["Empty"], []) == []
    assert listed([], ["consumer"]) == []
    assert listed([], ["no such type"]) == []


def test_find_coordinator_says_none_in_words_where_there_is_one_answer():
    broker = started()
    answer = broker.ask(request(K.FIND_COORDINATOR, key="g", key_type=0), 3)
    assert (answer.error_code, answer.error_message) == (0, "NONE")


@pytest.mark.parametrize(("version", "expected"), [(0, "CompletingRebalance"), (1, "Empty")])
def test_only_version_0_takes_the_session_timeout_for_a_rebalance_timeout_below_0(
    version, expected
):
    broker = started()
    joined = join(broker, version, rebalance_timeout_ms=-1)
    assert (joined.error_code, joined.generation_id) == (0, 1)
    # Else there is no time to bring the assignment.
    (group,) = broker.ask(request(K.DESCRIBE_GROUPS, groups=["g"]), 5).groups
    assert group.group_state == expected
