"""Handlers of Kafka's APIs: a module for each, named by its API, and the table of all of them.

A handler turns a decoded request into calls of the broker's parts, and their plain results into a
message. It never raises for bad input: errors are codes in the answer. It returns the answer, or
None when the answer is in the effects already, or comes at a later step (long polls, rebalances).
Fields that a handler does not set have the defaults of Kafka's definitions: no error, no throttle.

To add an API: its versions into `txnlog_kafka.wire.messages.APIS`, its module here, its line in
`HANDLERS` and its row in `_access.ACCESS`; `handlers/test_handlers.py` compares the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker_sim.apis import AnyApiKey, BrokerApiKey
from broker_sim.core.effects import Request
from broker_sim.core.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    allocate_producer_ids,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    envelope,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    share_group_heartbeat,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from broker_sim.core.handlers._forwarding import FORWARDED, carry_out, forward
from broker_sim.core.handlers._lookup import Handler
from broker_sim.core.membership import ClusterMember
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.messages import ApiKey, Message


def _answering(handle: Callable[[BrokerParts, Request], Message]) -> Handler:
    """A handler that only answers."""
    return lambda parts, request, _effects: handle(parts, request)


HANDLERS: dict[AnyApiKey, Handler] = {
    ApiKey.PRODUCE: produce.handle,
    ApiKey.FETCH: fetch.handle,
    ApiKey.LIST_OFFSETS: list_offsets.handle,
    ApiKey.METADATA: metadata.handle,
    ApiKey.OFFSET_COMMIT: offset_commit.handle,
    ApiKey.OFFSET_FETCH: _answering(offset_fetch.handle),
    ApiKey.FIND_COORDINATOR: find_coordinator.handle,
    ApiKey.JOIN_GROUP: join_group.handle,
    ApiKey.HEARTBEAT: heartbeat.handle,
    ApiKey.LEAVE_GROUP: leave_group.handle,
    ApiKey.SYNC_GROUP: sync_group.handle,
    ApiKey.DESCRIBE_GROUPS: _answering(describe_groups.handle),
    ApiKey.LIST_GROUPS: _answering(list_groups.handle),
    ApiKey.SASL_HANDSHAKE: sasl_handshake.handle,
    ApiKey.API_VERSIONS: _answering(api_versions.handle),
    ApiKey.CREATE_TOPICS: create_topics.handle,
    ApiKey.DELETE_TOPICS: delete_topics.handle,
    ApiKey.DELETE_RECORDS: delete_records.handle,
    ApiKey.INIT_PRODUCER_ID: init_producer_id.handle,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _answering(offset_for_leader_epoch.handle),
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn.handle,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn.handle,
    ApiKey.END_TXN: end_txn.handle,
    ApiKey.WRITE_TXN_MARKERS: write_txn_markers.handle,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit.handle,
    ApiKey.DESCRIBE_ACLS: _answering(describe_acls.handle),
    ApiKey.CREATE_ACLS: create_acls.handle,
    ApiKey.DELETE_ACLS: delete_acls.handle,
    ApiKey.DESCRIBE_CONFIGS: _answering(describe_configs.handle),
    ApiKey.ALTER_CONFIGS: alter_configs.handle,
    ApiKey.DESCRIBE_LOG_DIRS: _answering(describe_log_dirs.handle),
    ApiKey.SASL_AUTHENTICATE: sasl_authenticate.handle,
    ApiKey.CREATE_PARTITIONS: create_partitions.handle,
    ApiKey.DELETE_GROUPS: delete_groups.handle,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs.handle,
    ApiKey.OFFSET_DELETE: offset_delete.handle,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _answering(describe_client_quotas.handle),
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas.handle,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _answering(describe_user_scram_credentials.handle),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials.handle,
    ApiKey.DESCRIBE_CLUSTER: _answering(describe_cluster.handle),
    ApiKey.DESCRIBE_PRODUCERS: _answering(describe_producers.handle),
    ApiKey.DESCRIBE_TRANSACTIONS: _answering(describe_transactions.handle),
    ApiKey.LIST_TRANSACTIONS: list_transactions.handle,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat.handle,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _answering(consumer_group_describe.handle),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _answering(describe_topic_partitions.handle),
    ApiKey.SHARE_GROUP_HEARTBEAT: _answering(share_group_heartbeat.handle),
}

CONTROLLER_HANDLERS: dict[AnyApiKey, Handler] = HANDLERS | {
    ApiKey.ELECT_LEADERS: elect_leaders.handle,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments.handle,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _answering(list_partition_reassignments.handle),
    BrokerApiKey.ALTER_PARTITION: alter_partition.handle,
    BrokerApiKey.ALLOCATE_PRODUCER_IDS: allocate_producer_ids.handle,
}
"""Handlers by which the controller of a cluster carries out requests."""


def cluster_handlers(member: ClusterMember) -> dict[AnyApiKey, Handler]:
    """Return the handlers of a broker in a cluster: they forward the controller's work to it."""
    altered, allocated = alter_partition.refused, allocate_producer_ids.refused
    return {
        **HANDLERS,
        **dict.fromkeys(FORWARDED, partial(forward, member)),
        BrokerApiKey.ALTER_PARTITION: partial(carry_out, member, altered),
        BrokerApiKey.ALLOCATE_PRODUCER_IDS: partial(carry_out, member, allocated),
        BrokerApiKey.ENVELOPE: partial(envelope.handle, member),
    }
