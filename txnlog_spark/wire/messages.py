"""Kafka's requests and responses, and the versions that `broker_sim` supports: one table.

The message classes are kafka-python's `kafka.protocol`, compiled from Kafka's own definitions; they
are reached through this module and `wire.kafka_python` alone. A message is built without a version
and encoded at the version that was negotiated: fields outside that version are left out, absent
fields get the schema's default.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from kafka.protocol import admin, consumer, metadata, producer, sasl

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
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    DESCRIBE_TOPIC_PARTITIONS = 75


@dataclass(frozen=True, slots=True)
class Api:
    """One request kind: its message classes and the inclusive version range we can encode."""

    key: ApiKey
    request: Any
    response: Any
    version_min: int
    version_max: int

    @property
    def name(self) -> str:
        """Kafka's name, such as `InitProducerId`."""
        return str(self.request.__name__).removesuffix("Request")


def _api(key: ApiKey, package: Any, name: str, version_min: int, version_max: int) -> Api:
    request = getattr(package, f"{name}Request")
    response = getattr(package, f"{name}Response")
    return Api(key, request, response, version_min, version_max)


_K = ApiKey
APIS: dict[ApiKey, Api] = {
    api.key: api
    for api in (
        _api(_K.PRODUCE, producer, "Produce", 3, 13),
        _api(_K.FETCH, consumer, "Fetch", 4, 17),
        _api(_K.LIST_OFFSETS, consumer, "ListOffsets", 1, 10),
        _api(_K.METADATA, metadata, "Metadata", 0, 13),
        _api(_K.OFFSET_COMMIT, consumer, "OffsetCommit", 2, 10),
        _api(_K.OFFSET_FETCH, consumer, "OffsetFetch", 1, 10),
        _api(_K.FIND_COORDINATOR, metadata, "FindCoordinator", 0, 6),
        _api(_K.JOIN_GROUP, consumer, "JoinGroup", 0, 9),
        _api(_K.HEARTBEAT, consumer, "Heartbeat", 0, 4),
        _api(_K.LEAVE_GROUP, consumer, "LeaveGroup", 0, 5),
        _api(_K.SYNC_GROUP, consumer, "SyncGroup", 0, 5),
        _api(_K.DESCRIBE_GROUPS, admin, "DescribeGroups", 0, 6),
        _api(_K.LIST_GROUPS, admin, "ListGroups", 0, 5),
        # Version 0 of the handshake is followed by bytes without a frame, which Kafka 1.0 ended.
        _api(_K.SASL_HANDSHAKE, sasl, "SaslHandshake", 1, 1),
        _api(_K.API_VERSIONS, metadata, "ApiVersions", 0, 4),
        _api(_K.CREATE_TOPICS, admin, "CreateTopics", 2, 7),
        _api(_K.DELETE_TOPICS, admin, "DeleteTopics", 1, 6),
        _api(_K.DELETE_RECORDS, admin, "DeleteRecords", 0, 2),
        _api(_K.INIT_PRODUCER_ID, producer, "InitProducerId", 0, 5),
        _api(_K.OFFSET_FOR_LEADER_EPOCH, consumer, "OffsetForLeaderEpoch", 2, 4),
        _api(_K.ADD_PARTITIONS_TO_TXN, producer, "AddPartitionsToTxn", 0, 5),
        _api(_K.ADD_OFFSETS_TO_TXN, producer, "AddOffsetsToTxn", 0, 4),
        _api(_K.END_TXN, producer, "EndTxn", 0, 5),
        _api(_K.WRITE_TXN_MARKERS, producer, "WriteTxnMarkers", 1, 2),
        _api(_K.TXN_OFFSET_COMMIT, producer, "TxnOffsetCommit", 0, 5),
        _api(_K.DESCRIBE_ACLS, admin, "DescribeAcls", 1, 3),
        _api(_K.CREATE_ACLS, admin, "CreateAcls", 1, 3),
        _api(_K.DELETE_ACLS, admin, "DeleteAcls", 1, 3),
        _api(_K.DESCRIBE_CONFIGS, admin, "DescribeConfigs", 1, 4),
        _api(_K.ALTER_CONFIGS, admin, "AlterConfigs", 0, 2),
        _api(_K.DESCRIBE_LOG_DIRS, admin, "DescribeLogDirs", 1, 5),
        _api(_K.SASL_AUTHENTICATE, sasl, "SaslAuthenticate", 0, 2),
        _api(_K.CREATE_PARTITIONS, admin, "CreatePartitions", 0, 3),
        _api(_K.DELETE_GROUPS, admin, "DeleteGroups", 0, 2),
        _api(_K.INCREMENTAL_ALTER_CONFIGS, admin, "IncrementalAlterConfigs", 0, 1),
        _api(_K.OFFSET_DELETE, consumer, "OffsetDelete", 0, 0),
        _api(_K.DESCRIBE_CLIENT_QUOTAS, admin, "DescribeClientQuotas", 0, 1),
        _api(_K.DESCRIBE_USER_SCRAM_CREDENTIALS, admin, "DescribeUserScramCredentials", 0, 0),
        _api(_K.ALTER_USER_SCRAM_CREDENTIALS, admin, "AlterUserScramCredentials", 0, 0),
        _api(_K.DESCRIBE_CLUSTER, admin, "DescribeCluster", 0, 2),
        _api(_K.DESCRIBE_PRODUCERS, admin, "DescribeProducers", 0, 0),
        _api(_K.DESCRIBE_TRANSACTIONS, admin, "DescribeTransactions", 0, 0),
        _api(_K.LIST_TRANSACTIONS, admin, "ListTransactions", 0, 2),
        _api(_K.DESCRIBE_TOPIC_PARTITIONS, admin, "DescribeTopicPartitions", 0, 0),
    )
}

END_TXN_BUMPS_EPOCH_FROM = 5
"""The version of EndTxn from which on its answer has the producer id and epoch to go on with."""
API_OF_REQUEST: dict[Any, Api] = {api.request: api for api in APIS.values()}


def api_of(message: Message) -> Api:
    """The `Api` a request message belongs to. Raises KeyError for one that is not declared."""
    return API_OF_REQUEST[type(message)]
