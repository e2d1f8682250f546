"""Every API refuses who may not, with Kafka's code, and serves who has just what its row says."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.broker_build import BrokerOnDisk, request
from support.core.plain_messages import operations, plain
from support.raw.access_asks import (
    ASKS,
    CLUSTER_REFUSED,
    ID_REFUSED,
    REFUSALS,
    TOPIC_REFUSED,
    acl_filter,
    codes,
    create_acls,
    init,
    markers,
    offset_commit,
    produce,
)

from broker_sim.core.config import AUTHORIZER
from broker_sim.core.controller.acls import CLUSTER_NAME, AclOperation, ResourceType
from broker_sim.core.handlers import HANDLERS
from broker_sim.core.handlers._access import ACCESS, MORE
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey

K, E, Op = ApiKey, ErrorCode, AclOperation

ADMIN, ALICE = "User:admin", "User:alice"
NAMES = {
    ResourceType.TOPIC: "t",
    ResourceType.GROUP: "g",
    ResourceType.TRANSACTIONAL_ID: "x",
    ResourceType.CLUSTER: CLUSTER_NAME,
}


def allow(
    broker: BrokerOnDisk, operation: AclOperation, resource_type: ResourceType, **fields: Any
) -> None:
    values = {
        "resource_type": int(resource_type),
        "resource_name": NAMES[resource_type],
        "resource_pattern_type": 3,
        "principal": ALICE,
        "host": "*",
        "operation": int(operation),
        "permission_type": 3,
    }
    message = request(K.CREATE_ACLS, creations=[values | fields])
    broker.principal, before = ADMIN, broker.principal
    assert broker.ask(message, 3).results[0].error_code == 0
    broker.principal = before


def guarded() -> BrokerOnDisk:
    """A broker where alice may nothing, with a topic, a group and a transaction."""
    broker = BrokerOnDisk({"authorizer.class.name": AUTHORIZER, "super.users": ADMIN})
    broker.principal = ADMIN
    assert broker.create_topic("t").error_code == 0
    broker.find_coordinators()
    assert broker.ask(init("x"), 4).error_code == 0
    broker.principal = ALICE
    return broker


FILTERED = {K.LIST_GROUPS, K.LIST_TRANSACTIONS}
"""APIs that answer without the entries that the principal may not see."""
OPEN = {
    K.SASL_HANDSHAKE, K.SASL_AUTHENTICATE, K.API_VERSIONS, K.DESCRIBE_CLUSTER,
    K.SHARE_GROUP_HEARTBEAT,
}  # fmt: skip


def asked(broker: BrokerOnDisk, message: Any, version: int) -> set[int]:
    key = broker.send(message, version)
    broker.advance(1000)
    assert key in broker.asked.answers, broker.asked.closed
    return codes(plain(broker.asked.answers[key]))


def test_every_api_is_in_the_tables():
    assert set(ACCESS) == set(HANDLERS) == set(APIS)
    assert set(MORE) <= set(ACCESS)
    assert set(ASKS) | FILTERED | OPEN == set(ACCESS)
    assert {key for key, needs in ACCESS.items() if not needs} == OPEN - {K.DESCRIBE_CLUSTER}


CASES = [
    pytest.param(key, number, id=f"{key.name}-{number}")
    for key, asks in ASKS.items()
    for number in range(len(asks))
]


@pytest.mark.invariant(77)
@pytest.mark.parametrize(("key", "number"), CASES)
def test_who_may_nothing_is_refused_and_who_has_the_row_is_not(key, number):
    message, version, error = ASKS[key][number]
    broker = guarded()
    found = asked(broker, message, version)
    assert error in found
    assert found & REFUSALS == {error}
    for resource_type, operation in ACCESS[key].items():
        allow(broker, operation, resource_type)
        if (key, resource_type) == (K.CREATE_TOPICS, ResourceType.TOPIC):
            allow(broker, operation, resource_type, resource_name="t2")
            allow(broker, Op.DESCRIBE_CONFIGS, resource_type, resource_name="t2")
    assert not asked(broker, message, version) & REFUSALS
    broker.principal = "User:bob"
    assert error in asked(broker, message, version)


@pytest.mark.parametrize(("key", "number"), CASES)
def test_without_an_authorizer_nobody_is_refused(key, number):
    message, version, _ = ASKS[key][number]
    broker = BrokerOnDisk()
    assert not asked(broker, message, version) & REFUSALS


# ------------------------------------------------------------------ single rules


def test_all_topics_are_those_that_may_be_described():
    broker = guarded()
    message = request(K.METADATA, topics=None)
    assert [t.name for t in broker.ask(message, 9).topics] == []
    allow(broker, Op.DESCRIBE, ResourceType.TOPIC)
    assert [t.name for t in broker.ask(message, 9).topics] == ["t"]


def test_a_topic_is_created_on_demand_by_who_may_create_it():
    broker = guarded()
    message = request(K.METADATA, topics=[{"name": "new"}])
    allow(broker, Op.WRITE, ResourceType.TOPIC, resource_name="new")
    assert broker.ask(message, 9).topics[0].error_code == TOPIC_REFUSED
    allow(broker, Op.CREATE, ResourceType.TOPIC, resource_name="new")
    assert broker.ask(message, 9).topics[0].error_code == 0


def test_a_topic_of_an_id_is_refused_without_its_name():
    broker = guarded()
    topic_id = broker.parts.image.topics["t"].topic_id
    message = request(K.METADATA, topics=[{"name": None, "topic_id": topic_id}])
    (topic,) = broker.ask(message, 12).topics
    assert (topic.error_code, topic.name, topic.topic_id) == (TOPIC_REFUSED, None, topic_id)


def test_who_may_write_to_any_topic_may_be_idempotent():
    broker = guarded()
    allow(broker, Op.WRITE, ResourceType.TOPIC, resource_name="any", resource_pattern_type=4)
    assert broker.ask(init(None), 4).error_code == 0


def test_a_transactional_batch_needs_its_id():
    broker = guarded()
    allow(broker, Op.WRITE, ResourceType.TOPIC)
    batch = {"producer_id": 0, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    assert asked(broker, produce("x", **batch), 9) == {ID_REFUSED}


def test_lists_have_what_may_be_described():
    broker = guarded()
    listing = request(K.LIST_TRANSACTIONS, state_filters=[], producer_id_filters=[])
    assert broker.ask(listing, 0).transaction_states == []
    allow(broker, Op.DESCRIBE, ResourceType.TRANSACTIONAL_ID)
    assert [t.transactional_id for t in broker.ask(listing, 0).transaction_states] == ["x"]
    broker.principal = ADMIN
    asked(broker, offset_commit(), 8)
    broker.principal = ALICE
    groups = request(K.LIST_GROUPS, states_filter=[], types_filter=[])
    assert broker.ask(groups, 4).groups == []
    allow(broker, Op.READ, ResourceType.GROUP)
    assert [g.group_id for g in broker.ask(groups, 4).groups] == ["g"]


def test_markers_are_written_by_administrators_too():
    broker = guarded()
    allow(broker, Op.ALTER, ResourceType.CLUSTER)
    assert CLUSTER_REFUSED not in asked(broker, markers(), 1)


def test_a_created_topic_shows_its_configurations_to_who_may_see_them():
    broker = guarded()
    allow(broker, Op.CREATE, ResourceType.CLUSTER)
    message = ASKS[K.CREATE_TOPICS][0][0]
    (topic,) = broker.ask(message, 5).topics
    assert (topic.error_code, topic.topic_config_error_code) == (0, TOPIC_REFUSED)
    assert (topic.num_partitions, topic.configs) == (-1, [])


def test_what_is_authorized_is_said_where_it_is_asked_for():
    broker = guarded()
    allow(broker, Op.READ, ResourceType.TOPIC)
    message = request(
        K.METADATA, topics=[{"name": "t"}], include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )  # fmt: skip
    answer = broker.ask(message, 9)
    assert operations(answer.topics[0].topic_authorized_operations) == {Op.READ, Op.DESCRIBE}
    assert answer.cluster_authorized_operations == 0
    allow(broker, Op.ALTER, ResourceType.CLUSTER)
    found = operations(broker.ask(message, 9).cluster_authorized_operations)
    assert found == {Op.ALTER, Op.DESCRIBE}


def test_who_may_not_delete_a_topic_learns_its_name_only_when_it_may_describe_it():
    broker = guarded()
    topic_id = broker.parts.image.topics["t"].topic_id
    message = request(K.DELETE_TOPICS, topics=[{"name": None, "topic_id": topic_id}])
    (result,) = broker.ask(message, 6).responses
    assert (result.error_code, result.name) == (TOPIC_REFUSED, None)
    allow(broker, Op.DESCRIBE, ResourceType.TOPIC)
    (result,) = broker.ask(message, 6).responses
    assert (result.error_code, result.name) == (TOPIC_REFUSED, "t")


def test_acls_last_and_can_be_taken_back():
    broker = guarded()
    allow(broker, Op.READ, ResourceType.TOPIC, resource_name="none")
    broker.kill()
    broker.principal = ADMIN
    found = broker.ask(acl_filter(K.DESCRIBE_ACLS), 3).resources
    assert [(r.resource_name, len(r.acls)) for r in found] == [("none", 1)]
    (result,) = broker.ask(acl_filter(K.DELETE_ACLS), 3).filter_results
    assert [a.principal for a in result.matching_acls] == [ALICE]
    broker.kill()
    assert broker.ask(acl_filter(K.DESCRIBE_ACLS), 3).resources == []


def test_without_an_authorizer_there_are_no_acls():
    broker = BrokerOnDisk()
    for message in (acl_filter(K.DESCRIBE_ACLS), create_acls(), acl_filter(K.DELETE_ACLS)):
        assert asked(broker, message, 3) >= {E.SECURITY_DISABLED}


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type": 1},
        {"resource_type": 99},
        {"resource_type": 4},
        {"resource_name": ""},
        {"resource_pattern_type": 2},
        {"operation": 1},
        {"permission_type": 1},
        {"principal": "alice"},
    ],
)
def test_an_acl_that_cannot_be_is_refused(fields):
    broker = guarded()
    broker.principal = ADMIN
    message = create_acls()
    for name, value in fields.items():
        setattr(message.creations[0], name, value)
    assert broker.ask(message, 3).results[0].error_code == E.INVALID_REQUEST


def test_one_request_changes_ten_thousand_at_most():
    broker = guarded()
    broker.principal = ADMIN
    message = create_acls()
    (one,) = message.creations
    creations = [plain(one) | {"resource_name": str(number)} for number in range(10_001)]
    message = request(K.CREATE_ACLS, creations=creations)
    assert asked(broker, message, 3) == {E.POLICY_VIOLATION}
    assert not list(broker.parts.image.acls)
    message.creations.pop()
    assert asked(broker, message, 3) == {0}
    user = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"password"}
    added = [user | {"name": f"u{number}"} for number in range(10_001)]
    users = request(K.ALTER_USER_SCRAM_CREDENTIALS, upsertions=added)
    assert asked(broker, users, 0) == {E.POLICY_VIOLATION}
