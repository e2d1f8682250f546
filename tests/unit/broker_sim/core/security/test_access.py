"""Every API refuses who may not, with Kafka's code, and serves who has just what its row says."""

from __future__ import annotations

from typing import Any

import pytest
from support.broker_build import BrokerOnDisk, fetch_request, produce_request, request, struct

from broker_sim.core.config import AUTHORIZER
from broker_sim.core.controller.acls import CLUSTER_NAME, AclOperation, ResourceType
from broker_sim.core.handlers import HANDLERS
from broker_sim.core.handlers._access import ACCESS, MORE
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey
from txnlog_spark.wire.records import Record, encode_batch

K, E, Op = ApiKey, ErrorCode, AclOperation
TOPIC_REFUSED = E.TOPIC_AUTHORIZATION_FAILED
GROUP_REFUSED = E.GROUP_AUTHORIZATION_FAILED
ID_REFUSED = E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
CLUSTER_REFUSED = E.CLUSTER_AUTHORIZATION_FAILED
REFUSALS = {TOPIC_REFUSED, GROUP_REFUSED, ID_REFUSED, CLUSTER_REFUSED}

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
    message = request(K.CREATE_ACLS)
    values = {
        "resource_type": int(resource_type),
        "resource_name": NAMES[resource_type],
        "resource_pattern_type": 3,
        "principal": ALICE,
        "host": "*",
        "operation": int(operation),
        "permission_type": 3,
    }
    message.creations = [struct(message, "AclCreation", **(values | fields))]
    broker.principal, before = ADMIN, broker.principal
    assert broker.ask(message, 3).results[0].error_code == 0
    broker.principal = before


def guarded() -> BrokerOnDisk:
    """A broker where alice may nothing, with a topic, a group and a transaction."""
    broker = BrokerOnDisk({"authorizer.class.name": AUTHORIZER, "super.users": ADMIN})
    broker.principal = ADMIN
    message = request(K.CREATE_TOPICS)
    message.topics = [struct(message, "CreatableTopic", name="t", num_partitions=1,
                             replication_factor=1, assignments=[], configs=[])]  # fmt: skip
    assert broker.ask(message, 5).topics[0].error_code == 0
    for kind in (0, 1):  # the coordinators' topics come to be
        broker.ask(request(K.FIND_COORDINATOR, key_type=kind, coordinator_keys=["x"]), 4)
    assert broker.ask(init("x"), 4).error_code == 0
    broker.principal = ALICE
    return broker


def init(transactional_id: str | None) -> Any:
    return request(K.INIT_PRODUCER_ID, transactional_id=transactional_id,
                   transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1)  # fmt: skip


def fill(message: Any, path: str, struct_name: str, /, **fields: Any) -> Any:
    """Sets a list of one struct."""
    setattr(message, path, [struct(message, struct_name, **fields)])
    return message


def topic_list(key: ApiKey, struct_name: str, part_name: str, *, at="topics", inner="partitions",
               field="name", part: dict[str, Any] | None = None, **fields: Any) -> Any:  # fmt: skip
    message = request(key, **fields)
    parts = [struct(message, part_name, **(part or {}))]
    return fill(message, at, struct_name, **{field: "t", inner: parts})


def produce(transactional_id: str | None = None, **producer: Any) -> Any:
    records = encode_batch([Record(None, b"v", 1)], **producer)
    return produce_request({("t", 0): records}, transactional_id=transactional_id)


def offsets(key: ApiKey, prefix: str, **fields: Any) -> Any:
    values = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1,
              "committed_metadata": ""}  # fmt: skip
    return topic_list(key, f"{prefix}Topic", f"{prefix}Partition", part=values, group_id="g",
                      member_id="", group_instance_id=None, **fields)  # fmt: skip


def offset_commit() -> Any:
    return offsets(K.OFFSET_COMMIT, "OffsetCommitRequest", generation_id_or_member_epoch=-1)


def offset_fetch() -> Any:
    message = request(K.OFFSET_FETCH, require_stable=False)
    topic = struct(message, "OffsetFetchRequestTopics", name="t", partition_indexes=[0])
    return fill(message, "groups", "OffsetFetchRequestGroup", group_id="g", topics=[topic])


def add_partitions() -> Any:
    message = request(K.ADD_PARTITIONS_TO_TXN, v3_and_below_transactional_id="x",
                      v3_and_below_producer_id=0, v3_and_below_producer_epoch=0)  # fmt: skip
    topic = struct(message, "AddPartitionsToTxnTopic", name="t", partitions=[0])
    message.v3_and_below_topics = [topic]
    return message


def markers() -> Any:
    message = request(K.WRITE_TXN_MARKERS)
    topic = struct(message, "WritableTxnMarkerTopic", name="t", partition_indexes=[0])
    return fill(message, "markers", "WritableTxnMarker", producer_id=5, producer_epoch=0,
                transaction_result=False, topics=[topic], coordinator_epoch=0)  # fmt: skip


def scram(key: ApiKey) -> Any:
    if key is K.DESCRIBE_USER_SCRAM_CREDENTIALS:
        return request(key, users=None)
    message = request(key, upsertions=[])
    return fill(message, "deletions", "ScramCredentialDeletion", name="nobody", mechanism=1)


def acl_filter(key: ApiKey) -> Any:
    values = {"resource_type_filter": 2, "resource_name_filter": "none", "pattern_type_filter": 3,
              "principal_filter": None, "host_filter": None, "operation": 1,
              "permission_type": 1}  # fmt: skip
    if key is K.DESCRIBE_ACLS:
        return request(key, **values)
    return fill(request(key), "filters", "DeleteAclsFilter", **values)


def create_acls() -> Any:
    return fill(request(K.CREATE_ACLS), "creations", "AclCreation", resource_type=2,
                resource_name="new", resource_pattern_type=3, principal="User:bob", host="*",
                operation=3, permission_type=3)  # fmt: skip


def configs(key: ApiKey, kind: int, name: str) -> Any:
    struct_name = "DescribeConfigsResource" if key is K.DESCRIBE_CONFIGS else "AlterConfigsResource"
    extra = {"configuration_keys": []} if key is K.DESCRIBE_CONFIGS else {"configs": []}
    fields = {} if key is K.DESCRIBE_CONFIGS else {"validate_only": True}
    return fill(request(key, **fields), "resources", struct_name, resource_type=kind,
                resource_name=name, **extra)  # fmt: skip


def join() -> Any:
    message = request(K.JOIN_GROUP, group_id="g", session_timeout_ms=10_000, member_id="",
                      rebalance_timeout_ms=10_000, group_instance_id=None,
                      protocol_type="consumer", reason=None)  # fmt: skip
    return fill(message, "protocols", "JoinGroupRequestProtocol", name="range", metadata=b"")


MEMBER = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
TXN = {"transactional_id": "x", "producer_id": 0, "producer_epoch": 0}
Ask = tuple[Any, int, ErrorCode]
ASKS: dict[ApiKey, list[Ask]] = {
    K.PRODUCE: [(produce(), 9, TOPIC_REFUSED)],
    K.FETCH: [
        (fetch_request("t", 0, max_wait_ms=0), 12, TOPIC_REFUSED)
    ],
    K.LIST_OFFSETS: [
        (topic_list(K.LIST_OFFSETS, "ListOffsetsTopic", "ListOffsetsPartition", replica_id=-1,
                    isolation_level=0, part={"partition_index": 0, "timestamp": -1}),
         7, TOPIC_REFUSED)
    ],
    K.METADATA: [
        (fill(request(K.METADATA), "topics", "MetadataRequestTopic", name="t"), 9, TOPIC_REFUSED)
    ],
    K.OFFSET_COMMIT: [
        (offset_commit(), 8, GROUP_REFUSED)
    ],
    K.OFFSET_FETCH: [(offset_fetch(), 8, GROUP_REFUSED)],
    K.FIND_COORDINATOR: [
        (request(K.FIND_COORDINATOR, key_type=0, coordinator_keys=["g"]), 4, GROUP_REFUSED),
        (request(K.FIND_COORDINATOR, key_type=1, coordinator_keys=["x"]), 4, ID_REFUSED),
        (request(K.FIND_COORDINATOR, key_type=0, key="g"), 3, GROUP_REFUSED),
    ],
    K.JOIN_GROUP: [(join(), 5, GROUP_REFUSED)],
    K.HEARTBEAT: [(request(K.HEARTBEAT, **MEMBER), 4, GROUP_REFUSED)],
    K.LEAVE_GROUP: [
        (fill(request(K.LEAVE_GROUP, group_id="g"), "members", "MemberIdentity", member_id="m",
              group_instance_id=None), 4, GROUP_REFUSED)
    ],
    K.SYNC_GROUP: [
        (request(K.SYNC_GROUP, **MEMBER, protocol_type="consumer", protocol_name="range",
                 assignments=[]), 5, GROUP_REFUSED)
    ],
    K.DESCRIBE_GROUPS: [(request(K.DESCRIBE_GROUPS, groups=["g"]), 5, GROUP_REFUSED)],
    K.CREATE_TOPICS: [
        (fill(request(K.CREATE_TOPICS, validate_only=True), "topics", "CreatableTopic", name="t2",
              num_partitions=1, replication_factor=1, assignments=[], configs=[]), 5, TOPIC_REFUSED)
    ],
    K.DELETE_TOPICS: [
        (request(K.DELETE_TOPICS, topic_names=["t"], timeout_ms=1000), 5, TOPIC_REFUSED)
    ],
    K.DELETE_RECORDS: [
        (topic_list(K.DELETE_RECORDS, "DeleteRecordsTopic", "DeleteRecordsPartition",
                    timeout_ms=1000, part={"partition_index": 0, "offset": 0}), 2, TOPIC_REFUSED)
    ],
    K.INIT_PRODUCER_ID: [(init("x"), 4, ID_REFUSED), (init(None), 4, CLUSTER_REFUSED)],
    K.OFFSET_FOR_LEADER_EPOCH: [
        (topic_list(K.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderTopic", "OffsetForLeaderPartition",
                    field="topic", replica_id=-1,
                    part={"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}),
         4, TOPIC_REFUSED)
    ],
    K.ADD_PARTITIONS_TO_TXN: [
        (add_partitions(), 3, ID_REFUSED),
        (request(K.ADD_PARTITIONS_TO_TXN, transactions=[]), 4, CLUSTER_REFUSED),
    ],
    K.ADD_OFFSETS_TO_TXN: [(request(K.ADD_OFFSETS_TO_TXN, **TXN, group_id="g"), 3, ID_REFUSED)],
    K.END_TXN: [(request(K.END_TXN, **TXN, committed=False), 3, ID_REFUSED)],
    K.WRITE_TXN_MARKERS: [(markers(), 1, CLUSTER_REFUSED)],
    K.TXN_OFFSET_COMMIT: [
        (offsets(K.TXN_OFFSET_COMMIT, "TxnOffsetCommitRequest", generation_id=-1, **TXN),
         3, ID_REFUSED)
    ],
    K.DESCRIBE_ACLS: [(acl_filter(K.DESCRIBE_ACLS), 3, CLUSTER_REFUSED)],
    K.CREATE_ACLS: [(create_acls(), 3, CLUSTER_REFUSED)],
    K.DELETE_ACLS: [(acl_filter(K.DELETE_ACLS), 3, CLUSTER_REFUSED)],
    K.DESCRIBE_CONFIGS: [
        (configs(K.DESCRIBE_CONFIGS, 2, "t"), 4, TOPIC_REFUSED),
        (configs(K.DESCRIBE_CONFIGS, 4, "0"), 4, CLUSTER_REFUSED),
    ],
    K.ALTER_CONFIGS: [
        (configs(K.ALTER_CONFIGS, 2, "t"), 2, TOPIC_REFUSED),
        (configs(K.ALTER_CONFIGS, 4, "0"), 2, CLUSTER_REFUSED),
    ],
    K.DESCRIBE_LOG_DIRS: [(request(K.DESCRIBE_LOG_DIRS, topics=None), 4, CLUSTER_REFUSED)],
    K.CREATE_PARTITIONS: [
        (fill(request(K.CREATE_PARTITIONS, validate_only=True), "topics", "CreatePartitionsTopic",
              name="t", count=2, assignments=None), 3, TOPIC_REFUSED)
    ],
    K.DELETE_GROUPS: [(request(K.DELETE_GROUPS, groups_names=["g"]), 2, GROUP_REFUSED)],
    K.INCREMENTAL_ALTER_CONFIGS: [
        (configs(K.INCREMENTAL_ALTER_CONFIGS, 2, "t"), 1, TOPIC_REFUSED),
        (configs(K.INCREMENTAL_ALTER_CONFIGS, 4, "0"), 1, CLUSTER_REFUSED),
    ],
    K.OFFSET_DELETE: [
        (topic_list(K.OFFSET_DELETE, "OffsetDeleteRequestTopic", "OffsetDeleteRequestPartition",
                    group_id="g", part={"partition_index": 0}), 0, GROUP_REFUSED)
    ],
    K.DESCRIBE_CLIENT_QUOTAS: [
        (request(K.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False), 1, CLUSTER_REFUSED)
    ],
    K.DESCRIBE_USER_SCRAM_CREDENTIALS: [
        (scram(K.DESCRIBE_USER_SCRAM_CREDENTIALS), 0, CLUSTER_REFUSED)
    ],
    K.ALTER_USER_SCRAM_CREDENTIALS: [(scram(K.ALTER_USER_SCRAM_CREDENTIALS), 0, CLUSTER_REFUSED)],
    K.DESCRIBE_PRODUCERS: [
        (fill(request(K.DESCRIBE_PRODUCERS), "topics", "TopicRequest", name="t",
              partition_indexes=[0]), 0, TOPIC_REFUSED)
    ],
    K.DESCRIBE_TRANSACTIONS: [
        (request(K.DESCRIBE_TRANSACTIONS, transactional_ids=["x"]), 0, ID_REFUSED)
    ],
    K.DESCRIBE_TOPIC_PARTITIONS: [
        (fill(request(K.DESCRIBE_TOPIC_PARTITIONS, response_partition_limit=10, cursor=None),
              "topics", "TopicRequest", name="t"), 0, TOPIC_REFUSED)
    ],
}  # fmt: skip
"""Requests, their version, and what who may nothing is answered."""
FILTERED = {K.LIST_GROUPS, K.LIST_TRANSACTIONS}
"""What may not be seen is left out."""
OPEN = {K.SASL_HANDSHAKE, K.SASL_AUTHENTICATE, K.API_VERSIONS, K.DESCRIBE_CLUSTER}


def codes(value: Any) -> set[int]:
    """All error codes of an answer."""
    if isinstance(value, dict):
        own = {v for k, v in value.items() if k.endswith("error_code")}
        return own.union(*map(codes, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(codes, value))
    return set()


def asked(broker: BrokerOnDisk, message: Any, version: int) -> set[int]:
    key = broker.send(message, version)
    broker.advance(1000)
    assert key in broker.asked.answers, broker.asked.closed
    return codes(broker.asked.answers[key].to_dict())


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
    message = fill(request(K.METADATA, allow_auto_topic_creation=True), "topics",
                   "MetadataRequestTopic", name="new")  # fmt: skip
    allow(broker, Op.WRITE, ResourceType.TOPIC, resource_name="new")
    assert broker.ask(message, 9).topics[0].error_code == TOPIC_REFUSED
    allow(broker, Op.CREATE, ResourceType.TOPIC, resource_name="new")
    assert broker.ask(message, 9).topics[0].error_code == 0


def test_a_topic_of_an_id_is_refused_without_its_name():
    broker = guarded()
    topic_id = broker.broker.parts.image.topics["t"].topic_id
    message = fill(request(K.METADATA), "topics", "MetadataRequestTopic", name=None,
                   topic_id=topic_id)  # fmt: skip
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
    message = fill(request(K.METADATA, include_topic_authorized_operations=True,
                           include_cluster_authorized_operations=True),
                   "topics", "MetadataRequestTopic", name="t")  # fmt: skip
    answer = broker.ask(message, 9)
    assert set(answer.topics[0].authorized_operations) == {Op.READ, Op.DESCRIBE}
    assert set(answer.authorized_operations) == set()
    allow(broker, Op.ALTER, ResourceType.CLUSTER)
    assert set(broker.ask(message, 9).authorized_operations) == {Op.ALTER, Op.DESCRIBE}


def test_who_may_not_delete_a_topic_learns_its_name_only_when_it_may_describe_it():
    broker = guarded()
    topic_id = broker.broker.parts.image.topics["t"].topic_id
    message = fill(request(K.DELETE_TOPICS, timeout_ms=1000), "topics", "DeleteTopicState",
                   name=None, topic_id=topic_id)  # fmt: skip
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
    message.creations = [
        struct(message, "AclCreation", **(one.to_dict() | {"resource_name": str(number)}))
        for number in range(10_001)
    ]
    assert asked(broker, message, 3) == {E.POLICY_VIOLATION}
    assert not list(broker.broker.parts.image.acls)
    message.creations.pop()
    assert asked(broker, message, 3) == {0}
    users = request(K.ALTER_USER_SCRAM_CREDENTIALS, deletions=[])
    users.upsertions = [
        struct(users, "ScramCredentialUpsertion", name=f"u{number}", mechanism=1, iterations=4096,
               salt=b"salt", salted_password=b"password")
        for number in range(10_001)
    ]  # fmt: skip
    assert asked(broker, users, 0) == {E.POLICY_VIOLATION}
