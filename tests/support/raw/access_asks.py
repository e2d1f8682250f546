"""A request of every API that needs to be allowed, and the code that who may nothing is answered:
one table for our core and for both running brokers."""

from __future__ import annotations

from collections import defaultdict
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


def in_topic(partition: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "t", "partitions": [partition]}]


def init(transactional_id: str | None) -> Any:
    return request(
        K.INIT_PRODUCER_ID, transactional_id=transactional_id, transaction_timeout_ms=60_000
    )


def produce(transactional_id: str | None = None, **producer: Any) -> Any:
    records = encode_batch([Record(None, b"v", 1)], **producer)
    return produce_request({("t", 0): records}, transactional_id=transactional_id)


def offsets(key: ApiKey, **fields: Any) -> Any:
    place = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    return request(key, topics=in_topic(place), group_id="g", **fields)


def offset_commit() -> Any:
    return offsets(K.OFFSET_COMMIT)


def markers() -> Any:
    topics = [{"name": "t", "partition_indexes": [0]}]
    return request(K.WRITE_TXN_MARKERS, markers=[{"producer_id": 5, "topics": topics}])


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


MEMBER = {"group_id": "g", "generation_id": 1, "member_id": "m"}
TXN = {"transactional_id": "x"}
Ask = tuple[Any, int, ErrorCode]
ROWS: tuple[Ask, ...] = (
    (produce(), 9, TOPIC_REFUSED),
    (fetch_request("t", 0, max_wait_ms=0), 12, TOPIC_REFUSED),
    (request(K.LIST_OFFSETS, replica_id=-1,
             topics=in_topic({"partition_index": 0, "timestamp": -1})), 7, TOPIC_REFUSED),
    (request(K.METADATA, topics=[{"name": "t"}]), 9, TOPIC_REFUSED),
    (offset_commit(), 8, GROUP_REFUSED),
    (request(K.OFFSET_FETCH, groups=[
        {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}]), 8, GROUP_REFUSED),
    (request(K.FIND_COORDINATOR, coordinator_keys=["g"]), 4, GROUP_REFUSED),
    (request(K.FIND_COORDINATOR, key_type=1, coordinator_keys=["x"]), 4, ID_REFUSED),
    (request(K.FIND_COORDINATOR, key="g"), 3, GROUP_REFUSED),
    (request(K.JOIN_GROUP, group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
             protocol_type="consumer", protocols=[{"name": "range", "metadata": b""}]),
     5, GROUP_REFUSED),
    (request(K.HEARTBEAT, **MEMBER), 4, GROUP_REFUSED),
    (request(K.LEAVE_GROUP, group_id="g", members=[{"member_id": "m"}]), 4, GROUP_REFUSED),
    (request(K.SYNC_GROUP, **MEMBER, protocol_type="consumer", protocol_name="range"),
     5, GROUP_REFUSED),
    (request(K.DESCRIBE_GROUPS, groups=["g"]), 5, GROUP_REFUSED),
    (request(K.CREATE_TOPICS, validate_only=True, topics=[
        {"name": "t2", "num_partitions": 1, "replication_factor": 1}]), 5, TOPIC_REFUSED),
    (request(K.DELETE_TOPICS, topic_names=["t"], timeout_ms=1000), 5, TOPIC_REFUSED),
    (request(K.DELETE_RECORDS, timeout_ms=1000,
             topics=in_topic({"partition_index": 0, "offset": 0})), 2, TOPIC_REFUSED),
    (init("x"), 4, ID_REFUSED),
    (init(None), 4, CLUSTER_REFUSED),
    (request(K.OFFSET_FOR_LEADER_EPOCH, replica_id=-1, topics=[
        {"topic": "t", "partitions": [{"partition": 0, "leader_epoch": 0}]}]), 4, TOPIC_REFUSED),
    (request(K.ADD_PARTITIONS_TO_TXN, v3_and_below_transactional_id="x",
             v3_and_below_topics=[{"name": "t", "partitions": [0]}]), 3, ID_REFUSED),
    (request(K.ADD_PARTITIONS_TO_TXN, transactions=[
        TXN | {"verify_only": True, "topics": [{"name": "t", "partitions": [0]}]}]),
     4, CLUSTER_REFUSED),
    (request(K.ADD_OFFSETS_TO_TXN, **TXN, group_id="g"), 3, ID_REFUSED),
    (request(K.END_TXN, **TXN), 3, ID_REFUSED),
    (markers(), 1, CLUSTER_REFUSED),
    (offsets(K.TXN_OFFSET_COMMIT, **TXN), 3, ID_REFUSED),
    (acl_filter(K.DESCRIBE_ACLS), 3, CLUSTER_REFUSED),
    (create_acls(), 3, CLUSTER_REFUSED),
    (acl_filter(K.DELETE_ACLS), 3, CLUSTER_REFUSED),
    (configs(K.DESCRIBE_CONFIGS, 2, "t"), 4, TOPIC_REFUSED),
    (configs(K.DESCRIBE_CONFIGS, 4, "0"), 4, CLUSTER_REFUSED),
    (configs(K.DESCRIBE_CONFIGS, 32, "g"), 4, GROUP_REFUSED),
    (configs(K.ALTER_CONFIGS, 2, "t"), 2, TOPIC_REFUSED),
    (configs(K.ALTER_CONFIGS, 4, ""), 2, CLUSTER_REFUSED),
    (configs(K.ALTER_CONFIGS, 32, "g"), 2, GROUP_REFUSED),
    (request(K.DESCRIBE_LOG_DIRS, topics=None), 4, CLUSTER_REFUSED),
    (request(K.CREATE_PARTITIONS, validate_only=True,
             topics=[{"name": "t", "count": 2, "assignments": None}]), 3, TOPIC_REFUSED),
    (request(K.DELETE_GROUPS, groups_names=["g"]), 2, GROUP_REFUSED),
    (configs(K.INCREMENTAL_ALTER_CONFIGS, 2, "t"), 1, TOPIC_REFUSED),
    (configs(K.INCREMENTAL_ALTER_CONFIGS, 4, ""), 1, CLUSTER_REFUSED),
    (configs(K.INCREMENTAL_ALTER_CONFIGS, 32, "g"), 1, GROUP_REFUSED),
    (request(K.OFFSET_DELETE, group_id="g", topics=in_topic({"partition_index": 0})),
     0, GROUP_REFUSED),
    (request(K.DESCRIBE_CLIENT_QUOTAS), 1, CLUSTER_REFUSED),
    (request(K.ALTER_CLIENT_QUOTAS, entries=[
        {"entity": [{"entity_type": "user", "entity_name": "nobody"}],
         "ops": [{"key": "producer_byte_rate", "remove": True}]}]), 1, CLUSTER_REFUSED),
    # Apache Kafka never answers when all users are asked for by who may not.
    (request(K.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[{"name": "nobody"}]), 0, CLUSTER_REFUSED),
    (request(K.ALTER_USER_SCRAM_CREDENTIALS, deletions=[{"name": "nobody", "mechanism": 1}]),
     0, CLUSTER_REFUSED),
    (request(K.DESCRIBE_PRODUCERS, topics=[{"name": "t", "partition_indexes": [0]}]),
     0, TOPIC_REFUSED),
    (request(K.DESCRIBE_TRANSACTIONS, transactional_ids=["x"]), 0, ID_REFUSED),
    (request(K.CONSUMER_GROUP_HEARTBEAT, group_id="g", member_id="m", rebalance_timeout_ms=10_000,
             subscribed_topic_names=["t"], topic_partitions=[]), 1, GROUP_REFUSED),
    (request(K.CONSUMER_GROUP_DESCRIBE, group_ids=["g"]), 1, GROUP_REFUSED),
    (request(K.DESCRIBE_TOPIC_PARTITIONS, response_partition_limit=10, topics=[{"name": "t"}]),
     0, TOPIC_REFUSED),
)  # fmt: skip
"""Requests, their version, and what who may nothing is answered."""
ASKS: dict[ApiKey, list[Ask]] = defaultdict(list)
"""The same by API."""
for _row in ROWS:
    ASKS[K(_row[0].API_KEY)].append(_row)


def codes(value: Any) -> set[int]:
    """Return all error codes of an answer."""
    if isinstance(value, dict):
        own = {v for k, v in value.items() if k.endswith("error_code")}
        return own.union(*map(codes, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(codes, value))
    return set()
