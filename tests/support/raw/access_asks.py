"""A request of every API that needs to be allowed, and the code that who may nothing is answered:
one table for our core and for both running brokers."""

from __future__ import annotations

from typing import Any

from support.core.broker_build import fetch_request, produce_request, request, struct

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


def verify_partitions() -> Any:
    message = request(K.ADD_PARTITIONS_TO_TXN)
    topic = struct(message, "AddPartitionsToTxnTopic", name="t", partitions=[0])
    return fill(message, "transactions", "AddPartitionsToTxnTransaction", transactional_id="x",
                producer_id=0, producer_epoch=0, verify_only=True, topics=[topic])  # fmt: skip


def markers() -> Any:
    message = request(K.WRITE_TXN_MARKERS)
    topic = struct(message, "WritableTxnMarkerTopic", name="t", partition_indexes=[0])
    return fill(message, "markers", "WritableTxnMarker", producer_id=5, producer_epoch=0,
                transaction_result=False, topics=[topic], coordinator_epoch=0)  # fmt: skip


def scram(key: ApiKey) -> Any:
    if key is K.DESCRIBE_USER_SCRAM_CREDENTIALS:
        # Apache Kafka never answers when all users are asked for by who may not.
        return fill(request(key), "users", "UserName", name="nobody")
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
        (verify_partitions(), 4, CLUSTER_REFUSED),
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
        (configs(K.ALTER_CONFIGS, 4, ""), 2, CLUSTER_REFUSED),
    ],
    K.DESCRIBE_LOG_DIRS: [(request(K.DESCRIBE_LOG_DIRS, topics=None), 4, CLUSTER_REFUSED)],
    K.CREATE_PARTITIONS: [
        (fill(request(K.CREATE_PARTITIONS, validate_only=True), "topics", "CreatePartitionsTopic",
              name="t", count=2, assignments=None), 3, TOPIC_REFUSED)
    ],
    K.DELETE_GROUPS: [(request(K.DELETE_GROUPS, groups_names=["g"]), 2, GROUP_REFUSED)],
    K.INCREMENTAL_ALTER_CONFIGS: [
        (configs(K.INCREMENTAL_ALTER_CONFIGS, 2, "t"), 1, TOPIC_REFUSED),
        (configs(K.INCREMENTAL_ALTER_CONFIGS, 4, ""), 1, CLUSTER_REFUSED),
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


def codes(value: Any) -> set[int]:
    """All error codes of an answer."""
    if isinstance(value, dict):
        own = {v for k, v in value.items() if k.endswith("error_code")}
        return own.union(*map(codes, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(codes, value))
    return set()
