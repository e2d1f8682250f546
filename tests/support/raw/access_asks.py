"""A request of every API that needs to be allowed, and the code that who may nothing is answered:
one table for our core and for both running brokers."""

from __future__ import annotations

from typing import Any

from support.raw.requests import fetch_request, produce_request, request

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import Record, encode_batch

K, E = ApiKey, ErrorCode
TOPIC_REFUSED = E.TOPIC_AUTHORIZATION_FAILED
GROUP_REFUSED = E.GROUP_AUTHORIZATION_FAILED
ID_REFUSED = E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
CLUSTER_REFUSED = E.CLUSTER_AUTHORIZATION_FAILED
REFUSALS = {TOPIC_REFUSED, GROUP_REFUSED, ID_REFUSED, CLUSTER_REFUSED}


def init(transactional_id: str | None) -> Any:
    return request(K.INIT_PRODUCER_ID, transactional_id=transactional_id,
                   transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1)  # fmt: skip


def produce(transactional_id: str | None = None, **producer: Any) -> Any:
    records = encode_batch([Record(None, b"v", 1)], **producer)
    return produce_request({("t", 0): records}, transactional_id=transactional_id)


def offsets(key: ApiKey, **fields: Any) -> Any:
    place = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1,
             "committed_metadata": ""}  # fmt: skip
    return request(key, topics=[{"name": "t", "partitions": [place]}], group_id="g",
                   member_id="", group_instance_id=None, **fields)  # fmt: skip


def offset_commit() -> Any:
    return offsets(K.OFFSET_COMMIT, generation_id_or_member_epoch=-1)


def offset_fetch() -> Any:
    topics = [{"name": "t", "partition_indexes": [0]}]
    groups = [{"group_id": "g", "topics": topics}]
    return request(K.OFFSET_FETCH, require_stable=False, groups=groups)


def add_partitions() -> Any:
    return request(K.ADD_PARTITIONS_TO_TXN, v3_and_below_transactional_id="x",
                   v3_and_below_producer_id=0, v3_and_below_producer_epoch=0,
                   v3_and_below_topics=[{"name": "t", "partitions": [0]}])  # fmt: skip


def verify_partitions() -> Any:
    topics = [{"name": "t", "partitions": [0]}]
    return request(K.ADD_PARTITIONS_TO_TXN, transactions=[
        TXN | {"verify_only": True, "topics": topics}])  # fmt: skip


def markers() -> Any:
    topics = [{"name": "t", "partition_indexes": [0]}]
    marker = {"producer_id": 5, "producer_epoch": 0, "transaction_result": False,
              "topics": topics, "coordinator_epoch": 0}  # fmt: skip
    return request(K.WRITE_TXN_MARKERS, markers=[marker])


def scram(key: ApiKey) -> Any:
    if key is K.DESCRIBE_USER_SCRAM_CREDENTIALS:
        # Apache Kafka never answers when all users are asked for by who may not.
        return request(key, users=[{"name": "nobody"}])
    return request(key, upsertions=[], deletions=[{"name": "nobody", "mechanism": 1}])


def quotas() -> Any:
    entry = {"entity": [{"entity_type": "user", "entity_name": "nobody"}],
             "ops": [{"key": "producer_byte_rate", "value": 0.0, "remove": True}]}  # fmt: skip
    return request(K.ALTER_CLIENT_QUOTAS, entries=[entry], validate_only=False)


def acl_filter(key: ApiKey) -> Any:
    values = {"resource_type_filter": 2, "resource_name_filter": "none", "pattern_type_filter": 3,
              "principal_filter": None, "host_filter": None, "operation": 1,
              "permission_type": 1}  # fmt: skip
    return request(key, **values) if key is K.DESCRIBE_ACLS else request(key, filters=[values])


def create_acls() -> Any:
    acl = {"resource_type": 2, "resource_name": "new", "resource_pattern_type": 3,
           "principal": "User:bob", "host": "*", "operation": 3, "permission_type": 3}  # fmt: skip
    return request(K.CREATE_ACLS, creations=[acl])


def configs(key: ApiKey, kind: int, name: str) -> Any:
    describes = key is K.DESCRIBE_CONFIGS
    extra = {"configuration_keys": []} if describes else {"configs": []}
    resource = {"resource_type": kind, "resource_name": name} | extra
    return request(key, resources=[resource], **{} if describes else {"validate_only": True})


def join() -> Any:
    return request(K.JOIN_GROUP, group_id="g", session_timeout_ms=10_000, member_id="",
                   rebalance_timeout_ms=10_000, group_instance_id=None, protocol_type="consumer",
                   reason=None, protocols=[{"name": "range", "metadata": b""}])  # fmt: skip


def in_topic(partition: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "t", "partitions": [partition]}]


MEMBER = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
TXN = {"transactional_id": "x", "producer_id": 0, "producer_epoch": 0}
Ask = tuple[Any, int, ErrorCode]
ASKS: dict[ApiKey, list[Ask]] = {
    K.PRODUCE: [(produce(), 9, TOPIC_REFUSED)],
    K.FETCH: [
        (fetch_request("t", 0, max_wait_ms=0), 12, TOPIC_REFUSED)
    ],
    K.LIST_OFFSETS: [
        (request(K.LIST_OFFSETS, replica_id=-1, isolation_level=0,
                 topics=in_topic({"partition_index": 0, "timestamp": -1})), 7, TOPIC_REFUSED)
    ],
    K.METADATA: [
        (request(K.METADATA, topics=[{"name": "t"}]), 9, TOPIC_REFUSED)
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
        (request(K.LEAVE_GROUP, group_id="g",
                 members=[{"member_id": "m", "group_instance_id": None}]), 4, GROUP_REFUSED)
    ],
    K.SYNC_GROUP: [
        (request(K.SYNC_GROUP, **MEMBER, protocol_type="consumer", protocol_name="range",
                 assignments=[]), 5, GROUP_REFUSED)
    ],
    K.DESCRIBE_GROUPS: [(request(K.DESCRIBE_GROUPS, groups=["g"]), 5, GROUP_REFUSED)],
    K.CREATE_TOPICS: [
        (request(K.CREATE_TOPICS, validate_only=True, topics=[
            {"name": "t2", "num_partitions": 1, "replication_factor": 1, "assignments": [],
             "configs": []}]), 5, TOPIC_REFUSED)
    ],
    K.DELETE_TOPICS: [
        (request(K.DELETE_TOPICS, topic_names=["t"], timeout_ms=1000), 5, TOPIC_REFUSED)
    ],
    K.DELETE_RECORDS: [
        (request(K.DELETE_RECORDS, timeout_ms=1000,
                 topics=in_topic({"partition_index": 0, "offset": 0})), 2, TOPIC_REFUSED)
    ],
    K.INIT_PRODUCER_ID: [(init("x"), 4, ID_REFUSED), (init(None), 4, CLUSTER_REFUSED)],
    K.OFFSET_FOR_LEADER_EPOCH: [
        (request(K.OFFSET_FOR_LEADER_EPOCH, replica_id=-1, topics=[{"topic": "t", "partitions": [
            {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}]), 4, TOPIC_REFUSED)
    ],
    K.ADD_PARTITIONS_TO_TXN: [
        (add_partitions(), 3, ID_REFUSED),
        (verify_partitions(), 4, CLUSTER_REFUSED),
    ],
    K.ADD_OFFSETS_TO_TXN: [(request(K.ADD_OFFSETS_TO_TXN, **TXN, group_id="g"), 3, ID_REFUSED)],
    K.END_TXN: [(request(K.END_TXN, **TXN, committed=False), 3, ID_REFUSED)],
    K.WRITE_TXN_MARKERS: [(markers(), 1, CLUSTER_REFUSED)],
    K.TXN_OFFSET_COMMIT: [
        (offsets(K.TXN_OFFSET_COMMIT, **TXN), 3, ID_REFUSED)
    ],
    K.DESCRIBE_ACLS: [(acl_filter(K.DESCRIBE_ACLS), 3, CLUSTER_REFUSED)],
    K.CREATE_ACLS: [(create_acls(), 3, CLUSTER_REFUSED)],
    K.DELETE_ACLS: [(acl_filter(K.DELETE_ACLS), 3, CLUSTER_REFUSED)],
    K.DESCRIBE_CONFIGS: [
        (configs(K.DESCRIBE_CONFIGS, 2, "t"), 4, TOPIC_REFUSED),
        (configs(K.DESCRIBE_CONFIGS, 4, "0"), 4, CLUSTER_REFUSED),
        (configs(K.DESCRIBE_CONFIGS, 32, "g"), 4, GROUP_REFUSED),
    ],
    K.ALTER_CONFIGS: [
        (configs(K.ALTER_CONFIGS, 2, "t"), 2, TOPIC_REFUSED),
        (configs(K.ALTER_CONFIGS, 4, ""), 2, CLUSTER_REFUSED),
        (configs(K.ALTER_CONFIGS, 32, "g"), 2, GROUP_REFUSED),
    ],
    K.DESCRIBE_LOG_DIRS: [(request(K.DESCRIBE_LOG_DIRS, topics=None), 4, CLUSTER_REFUSED)],
    K.CREATE_PARTITIONS: [
        (request(K.CREATE_PARTITIONS, validate_only=True,
                 topics=[{"name": "t", "count": 2, "assignments": None}]), 3, TOPIC_REFUSED)
    ],
    K.DELETE_GROUPS: [(request(K.DELETE_GROUPS, groups_names=["g"]), 2, GROUP_REFUSED)],
    K.INCREMENTAL_ALTER_CONFIGS: [
        (configs(K.INCREMENTAL_ALTER_CONFIGS, 2, "t"), 1, TOPIC_REFUSED),
        (configs(K.INCREMENTAL_ALTER_CONFIGS, 4, ""), 1, CLUSTER_REFUSED),
        (configs(K.INCREMENTAL_ALTER_CONFIGS, 32, "g"), 1, GROUP_REFUSED),
    ],
    K.OFFSET_DELETE: [
        (request(K.OFFSET_DELETE, group_id="g", topics=in_topic({"partition_index": 0})),
         0, GROUP_REFUSED)
    ],
    K.DESCRIBE_CLIENT_QUOTAS: [
        (request(K.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False), 1, CLUSTER_REFUSED)
    ],
    K.ALTER_CLIENT_QUOTAS: [(quotas(), 1, CLUSTER_REFUSED)],
    K.DESCRIBE_USER_SCRAM_CREDENTIALS: [
        (scram(K.DESCRIBE_USER_SCRAM_CREDENTIALS), 0, CLUSTER_REFUSED)
    ],
    K.ALTER_USER_SCRAM_CREDENTIALS: [(scram(K.ALTER_USER_SCRAM_CREDENTIALS), 0, CLUSTER_REFUSED)],
    K.DESCRIBE_PRODUCERS: [
        (request(K.DESCRIBE_PRODUCERS, topics=[{"name": "t", "partition_indexes": [0]}]),
         0, TOPIC_REFUSED)
    ],
    K.DESCRIBE_TRANSACTIONS: [
        (request(K.DESCRIBE_TRANSACTIONS, transactional_ids=["x"]), 0, ID_REFUSED)
    ],
    K.CONSUMER_GROUP_HEARTBEAT: [
        (request(K.CONSUMER_GROUP_HEARTBEAT, group_id="g", member_id="m", member_epoch=0,
                 rebalance_timeout_ms=10_000, subscribed_topic_names=["t"], topic_partitions=[]),
         1, GROUP_REFUSED)
    ],
    K.CONSUMER_GROUP_DESCRIBE: [
        (request(K.CONSUMER_GROUP_DESCRIBE, group_ids=["g"], include_authorized_operations=False),
         1, GROUP_REFUSED)
    ],
    K.DESCRIBE_TOPIC_PARTITIONS: [
        (request(K.DESCRIBE_TOPIC_PARTITIONS, response_partition_limit=10, cursor=None,
                 topics=[{"name": "t"}]), 0, TOPIC_REFUSED)
    ],
}  # fmt: skip
"""Requests, their version, and what who may nothing is answered."""


def codes(value: Any) -> set[int]:
    """Return all error codes of an answer."""
    if isinstance(value, dict):
        own = {v for k, v in value.items() if k.endswith("error_code")}
        return own.union(*map(codes, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(codes, value))
    return set()
