"""Kafka's requests and responses, and the versions that `broker_sim` supports: one table.

A message is built without a version and encoded at the negotiated version: fields outside that
version are left out, absent fields get the definition's default (`wire.structs`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from txnlog_kafka.wire.structs import message_class

Message = Any
"""Message (a `wire.structs.MessageValue`); its fields come from its definition."""


class ApiKey(enum.IntEnum):
    """Requests that we know, by Kafka's numbers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76


@dataclass(frozen=True)
class Api:
    """Kind of request: its message classes and the inclusive version range that we can encode."""

    key: ApiKey
    name: str
    """Kafka's name, such as `InitProducerId`. The classes are made when they are first used,
    because a process uses only some of ninety."""
    version_min: int
    version_max: int

    @cached_property
    def request(self) -> Any:
        """Class of the request."""
        return message_class(f"{self.name}Request")

    @cached_property
    def response(self) -> Any:
        """Class of the answer."""
        return message_class(f"{self.name}Response")


_K = ApiKey
APIS: dict[ApiKey, Api] = {
    api.key: api
    for api in (
        Api(_K.PRODUCE, "Produce", 3, 13),
        Api(_K.FETCH, "Fetch", 4, 18),
        Api(_K.LIST_OFFSETS, "ListOffsets", 1, 11),
        Api(_K.METADATA, "Metadata", 0, 13),
        Api(_K.OFFSET_COMMIT, "OffsetCommit", 2, 10),
        Api(_K.OFFSET_FETCH, "OffsetFetch", 1, 10),
        Api(_K.FIND_COORDINATOR, "FindCoordinator", 0, 6),
        Api(_K.JOIN_GROUP, "JoinGroup", 0, 9),
        Api(_K.HEARTBEAT, "Heartbeat", 0, 4),
        Api(_K.LEAVE_GROUP, "LeaveGroup", 0, 5),
        Api(_K.SYNC_GROUP, "SyncGroup", 0, 5),
        Api(_K.DESCRIBE_GROUPS, "DescribeGroups", 0, 6),
        Api(_K.LIST_GROUPS, "ListGroups", 0, 5),
        # Version 0 of the handshake is followed by bytes without a frame, which Kafka 1.0 ended.
        Api(_K.SASL_HANDSHAKE, "SaslHandshake", 1, 1),
        Api(_K.API_VERSIONS, "ApiVersions", 0, 5),
        Api(_K.CREATE_TOPICS, "CreateTopics", 2, 7),
        Api(_K.DELETE_TOPICS, "DeleteTopics", 1, 6),
        Api(_K.DELETE_RECORDS, "DeleteRecords", 0, 2),
        Api(_K.INIT_PRODUCER_ID, "InitProducerId", 0, 5),
        Api(_K.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4),
        Api(_K.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 5),
        Api(_K.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 4),
        Api(_K.END_TXN, "EndTxn", 0, 5),
        Api(_K.WRITE_TXN_MARKERS, "WriteTxnMarkers", 1, 2),
        Api(_K.TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 6),
        Api(_K.DESCRIBE_ACLS, "DescribeAcls", 1, 3),
        Api(_K.CREATE_ACLS, "CreateAcls", 1, 3),
        Api(_K.DELETE_ACLS, "DeleteAcls", 1, 3),
        Api(_K.DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4),
        Api(_K.ALTER_CONFIGS, "AlterConfigs", 0, 2),
        Api(_K.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 5),
        Api(_K.SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2),
        Api(_K.CREATE_PARTITIONS, "CreatePartitions", 0, 3),
        Api(_K.DELETE_GROUPS, "DeleteGroups", 0, 3),
        Api(_K.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1),
        Api(_K.OFFSET_DELETE, "OffsetDelete", 0, 0),
        Api(_K.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", 0, 1),
        Api(_K.ALTER_CLIENT_QUOTAS, "AlterClientQuotas", 0, 1),
        Api(_K.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials", 0, 0),
        Api(_K.ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentials", 0, 0),
        Api(_K.DESCRIBE_CLUSTER, "DescribeCluster", 0, 2),
        Api(_K.DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0),
        Api(_K.DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0),
        Api(_K.LIST_TRANSACTIONS, "ListTransactions", 0, 2),
        Api(_K.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", 0, 1),
        Api(_K.CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", 0, 1),
        Api(_K.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0),
        Api(_K.SHARE_GROUP_HEARTBEAT, "ShareGroupHeartbeat", 1, 1),
    )
}
CLUSTER_APIS: dict[ApiKey, Api] = {
    api.key: api
    for api in (
        Api(_K.ELECT_LEADERS, "ElectLeaders", 0, 2),
        Api(_K.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 1),
        Api(_K.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0),
    )
}
"""Requests that only a broker of a cluster answers, and names in ApiVersions."""
KNOWN_APIS: dict[ApiKey, Api] = APIS | CLUSTER_APIS

END_TXN_BUMPS_EPOCH_FROM = 5
"""Version of EndTxn from which on it answers the producer id and epoch of the next transaction."""


def api_of(message: Message) -> Api:
    """Return the `Api` of a request message. Raises KeyError for an undeclared message."""
    return KNOWN_APIS[message.API_KEY]


THROTTLED_FROM: dict[int, int] = {
    _K.PRODUCE: 6, _K.FETCH: 8, _K.LIST_OFFSETS: 3, _K.METADATA: 6, _K.OFFSET_COMMIT: 4,
    _K.OFFSET_FETCH: 4, _K.FIND_COORDINATOR: 2, _K.JOIN_GROUP: 3, _K.HEARTBEAT: 2,
    _K.LEAVE_GROUP: 2, _K.SYNC_GROUP: 2, _K.DESCRIBE_GROUPS: 2, _K.LIST_GROUPS: 2,
    _K.API_VERSIONS: 2, _K.CREATE_TOPICS: 3, _K.DELETE_TOPICS: 2, _K.DELETE_RECORDS: 1,
    _K.INIT_PRODUCER_ID: 1, _K.ADD_PARTITIONS_TO_TXN: 1, _K.ADD_OFFSETS_TO_TXN: 1, _K.END_TXN: 1,
    _K.TXN_OFFSET_COMMIT: 1, _K.DESCRIBE_CONFIGS: 2, _K.ALTER_CONFIGS: 1, _K.DESCRIBE_LOG_DIRS: 1,
    _K.CREATE_PARTITIONS: 1, _K.DELETE_GROUPS: 1, _K.INCREMENTAL_ALTER_CONFIGS: 0,
    _K.OFFSET_DELETE: 0, _K.DESCRIBE_TOPIC_PARTITIONS: 0,
}  # fmt: skip
"""First version of each answer after which the client waits: Kafka's `shouldClientThrottle`
(KIP-219).

From this version on the broker answers at once, and the client sends nothing for as long as the
answer says. A client that sends all the same runs into its timeouts, because the broker does not
read its connection meanwhile. Before these versions the broker held the answer back instead: the
client has waited already.
"""

THROTTLE_S_MAX = 60.0
"""Limit of a wait: a broker could ask for any time."""
NEVER = 1 << 15


def throttle_seconds(api_key: int, version: int, answer: Message) -> float:
    """Return the seconds after this answer in which the broker wants no further request."""
    if version < THROTTLED_FROM.get(api_key, NEVER):
        return 0.0
    throttle_ms = answer.throttle_time_ms or 0
    return min(throttle_ms / 1000, THROTTLE_S_MAX) if throttle_ms > 0 else 0.0
