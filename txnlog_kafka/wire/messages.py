"""Kafka's requests and responses, and the versions that `broker_sim` supports: one table.

The message classes are kafka-python's `kafka.protocol`, compiled from Kafka's own definitions; they
are reached through this module and `wire.kafka_python` alone. A message is built without a version
and encoded at the version that was negotiated: fields outside that version are left out, absent
fields get the schema's default.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from txnlog_kafka.wire.kafka_python import message_class

Message = Any
"""A `kafka.protocol` message. The package ships no types for its generated classes."""


class ApiKey(enum.IntEnum):
    """The requests we know, by Kafka's numbers."""

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
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    DESCRIBE_TOPIC_PARTITIONS = 75


@dataclass(frozen=True)
class Api:
    """One request kind: its message classes and the inclusive version range we can encode."""

    key: ApiKey
    module: str
    """Where kafka-python has the classes, which are read when first asked for: a process uses some
    of sixty, and each costs the start of every one of Spark's Python workers half a millisecond."""
    name: str
    """Kafka's name, such as `InitProducerId`."""
    version_min: int
    version_max: int

    @cached_property
    def request(self) -> Any:
        """The class of the request."""
        return message_class(self.module, f"{self.name}Request")

    @cached_property
    def response(self) -> Any:
        """The class of the answer."""
        return message_class(self.module, f"{self.name}Response")


_K = ApiKey
APIS: dict[ApiKey, Api] = {
    api.key: api
    for api in (
        Api(_K.PRODUCE, "producer.produce", "Produce", 3, 13),
        Api(_K.FETCH, "consumer.fetch", "Fetch", 4, 18),
        Api(_K.LIST_OFFSETS, "consumer.offsets", "ListOffsets", 1, 11),
        Api(_K.METADATA, "metadata.metadata", "Metadata", 0, 13),
        Api(_K.OFFSET_COMMIT, "consumer.group", "OffsetCommit", 2, 10),
        Api(_K.OFFSET_FETCH, "consumer.group", "OffsetFetch", 1, 10),
        Api(_K.FIND_COORDINATOR, "metadata.find_coordinator", "FindCoordinator", 0, 6),
        Api(_K.JOIN_GROUP, "consumer.group", "JoinGroup", 0, 9),
        Api(_K.HEARTBEAT, "consumer.group", "Heartbeat", 0, 4),
        Api(_K.LEAVE_GROUP, "consumer.group", "LeaveGroup", 0, 5),
        Api(_K.SYNC_GROUP, "consumer.group", "SyncGroup", 0, 5),
        Api(_K.DESCRIBE_GROUPS, "admin.groups", "DescribeGroups", 0, 6),
        Api(_K.LIST_GROUPS, "admin.groups", "ListGroups", 0, 5),
        # Version 0 of the handshake is followed by bytes without a frame, which Kafka 1.0 ended.
        Api(_K.SASL_HANDSHAKE, "sasl", "SaslHandshake", 1, 1),
        Api(_K.API_VERSIONS, "metadata.api_versions", "ApiVersions", 0, 4),
        Api(_K.CREATE_TOPICS, "admin.topics", "CreateTopics", 2, 7),
        Api(_K.DELETE_TOPICS, "admin.topics", "DeleteTopics", 1, 6),
        Api(_K.DELETE_RECORDS, "admin.topics", "DeleteRecords", 0, 2),
        Api(_K.INIT_PRODUCER_ID, "producer.transaction", "InitProducerId", 0, 5),
        Api(_K.OFFSET_FOR_LEADER_EPOCH, "consumer.offsets", "OffsetForLeaderEpoch", 2, 4),
        Api(_K.ADD_PARTITIONS_TO_TXN, "producer.transaction", "AddPartitionsToTxn", 0, 5),
        Api(_K.ADD_OFFSETS_TO_TXN, "producer.transaction", "AddOffsetsToTxn", 0, 4),
        Api(_K.END_TXN, "producer.transaction", "EndTxn", 0, 5),
        Api(_K.WRITE_TXN_MARKERS, "producer.transaction", "WriteTxnMarkers", 1, 2),
        Api(_K.TXN_OFFSET_COMMIT, "producer.transaction", "TxnOffsetCommit", 0, 5),
        Api(_K.DESCRIBE_ACLS, "admin.acl", "DescribeAcls", 1, 3),
        Api(_K.CREATE_ACLS, "admin.acl", "CreateAcls", 1, 3),
        Api(_K.DELETE_ACLS, "admin.acl", "DeleteAcls", 1, 3),
        Api(_K.DESCRIBE_CONFIGS, "admin.configs", "DescribeConfigs", 1, 4),
        Api(_K.ALTER_CONFIGS, "admin.configs", "AlterConfigs", 0, 2),
        Api(_K.DESCRIBE_LOG_DIRS, "admin.cluster", "DescribeLogDirs", 1, 5),
        Api(_K.SASL_AUTHENTICATE, "sasl", "SaslAuthenticate", 0, 2),
        Api(_K.CREATE_PARTITIONS, "admin.topics", "CreatePartitions", 0, 3),
        Api(_K.DELETE_GROUPS, "admin.groups", "DeleteGroups", 0, 2),
        Api(_K.INCREMENTAL_ALTER_CONFIGS, "admin.configs", "IncrementalAlterConfigs", 0, 1),
        Api(_K.OFFSET_DELETE, "consumer.group", "OffsetDelete", 0, 0),
        Api(_K.DESCRIBE_CLIENT_QUOTAS, "admin.client_quotas", "DescribeClientQuotas", 0, 1),
        Api(
            _K.DESCRIBE_USER_SCRAM_CREDENTIALS, "admin.users", "DescribeUserScramCredentials", 0, 0
        ),
        Api(_K.ALTER_USER_SCRAM_CREDENTIALS, "admin.users", "AlterUserScramCredentials", 0, 0),
        Api(_K.DESCRIBE_CLUSTER, "admin.cluster", "DescribeCluster", 0, 2),
        Api(_K.DESCRIBE_PRODUCERS, "admin.transactions", "DescribeProducers", 0, 0),
        Api(_K.DESCRIBE_TRANSACTIONS, "admin.transactions", "DescribeTransactions", 0, 0),
        Api(_K.LIST_TRANSACTIONS, "admin.transactions", "ListTransactions", 0, 2),
        Api(_K.DESCRIBE_TOPIC_PARTITIONS, "admin.topics", "DescribeTopicPartitions", 0, 0),
    )
}
CLUSTER_APIS: dict[ApiKey, Api] = {
    api.key: api
    for api in (
        Api(_K.ELECT_LEADERS, "admin.topics", "ElectLeaders", 0, 2),
        Api(
            _K.ALTER_PARTITION_REASSIGNMENTS,
            "admin.topics",
            "AlterPartitionReassignments",
            0,
            1,
        ),
        Api(_K.LIST_PARTITION_REASSIGNMENTS, "admin.topics", "ListPartitionReassignments", 0, 0),
    )
}
"""What only a broker of a cluster answers, and names in ApiVersions."""
KNOWN_APIS: dict[ApiKey, Api] = APIS | CLUSTER_APIS

END_TXN_BUMPS_EPOCH_FROM = 5
"""The version of EndTxn from which on its answer has the producer id and epoch to go on with."""


def api_of(message: Message) -> Api:
    """The `Api` a request message belongs to. Raises KeyError for one that is not declared."""
    message_class: Any = type(message)
    return _api_of_class(message_class)


@cache
def _api_of_class(message_class: Any) -> Api:
    return KNOWN_APIS[message_class.API_KEY]
