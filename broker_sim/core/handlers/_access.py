"""Access rules: the operations that each API needs, and the checks that handlers make by them.

Source: Kafka's `KafkaApis` and `ControllerApis`. An API's row has the operation on each type of
resource that its requests name. `MORE` has further operations on a type, needed as well or instead;
the handler checks them with `may` or `may_any`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from broker_sim.apis import AnyApiKey, BrokerApiKey
from broker_sim.core.controller.acls import CLUSTER_NAME, AclOperation, ResourceType
from broker_sim.core.effects import Request
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.messages import ApiKey

_K, _O = ApiKey, AclOperation
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
CLUSTER, TRANSACTIONAL_ID = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID

_Needs = Mapping[ResourceType, AclOperation]
_NOTHING: _Needs = MappingProxyType({})
_MEMBER: _Needs = MappingProxyType({GROUP: _O.READ})
_CONFIGURED = (TOPIC, GROUP, CLUSTER)

ACCESS: Mapping[AnyApiKey, _Needs] = {
    _K.PRODUCE: {TOPIC: _O.WRITE, TRANSACTIONAL_ID: _O.WRITE},
    _K.FETCH: {TOPIC: _O.READ, CLUSTER: _O.CLUSTER_ACTION},
    _K.LIST_OFFSETS: {TOPIC: _O.DESCRIBE},
    _K.METADATA: {TOPIC: _O.DESCRIBE, CLUSTER: _O.DESCRIBE},
    _K.OFFSET_COMMIT: {GROUP: _O.READ, TOPIC: _O.READ},
    _K.OFFSET_FETCH: {GROUP: _O.DESCRIBE, TOPIC: _O.DESCRIBE},
    _K.FIND_COORDINATOR: {GROUP: _O.DESCRIBE, TRANSACTIONAL_ID: _O.DESCRIBE},
    _K.JOIN_GROUP: _MEMBER,
    _K.HEARTBEAT: _MEMBER,
    _K.LEAVE_GROUP: _MEMBER,
    _K.SYNC_GROUP: _MEMBER,
    _K.DESCRIBE_GROUPS: {GROUP: _O.DESCRIBE},
    _K.LIST_GROUPS: {GROUP: _O.DESCRIBE, CLUSTER: _O.DESCRIBE},
    _K.SASL_HANDSHAKE: _NOTHING,
    _K.API_VERSIONS: _NOTHING,
    _K.CREATE_TOPICS: {TOPIC: _O.CREATE, CLUSTER: _O.CREATE},
    _K.DELETE_TOPICS: {TOPIC: _O.DELETE, CLUSTER: _O.DELETE},
    _K.DELETE_RECORDS: {TOPIC: _O.DELETE},
    _K.INIT_PRODUCER_ID: {TRANSACTIONAL_ID: _O.WRITE, CLUSTER: _O.IDEMPOTENT_WRITE},
    _K.OFFSET_FOR_LEADER_EPOCH: {TOPIC: _O.DESCRIBE, CLUSTER: _O.CLUSTER_ACTION},
    _K.ADD_PARTITIONS_TO_TXN: {
        TRANSACTIONAL_ID: _O.WRITE,
        TOPIC: _O.WRITE,
        CLUSTER: _O.CLUSTER_ACTION,
    },
    _K.ADD_OFFSETS_TO_TXN: {TRANSACTIONAL_ID: _O.WRITE, GROUP: _O.READ},
    _K.END_TXN: {TRANSACTIONAL_ID: _O.WRITE},
    _K.WRITE_TXN_MARKERS: {CLUSTER: _O.CLUSTER_ACTION},
    _K.TXN_OFFSET_COMMIT: {TRANSACTIONAL_ID: _O.WRITE, GROUP: _O.READ, TOPIC: _O.READ},
    _K.DESCRIBE_ACLS: {CLUSTER: _O.DESCRIBE},
    _K.CREATE_ACLS: {CLUSTER: _O.ALTER},
    _K.DELETE_ACLS: {CLUSTER: _O.ALTER},
    _K.DESCRIBE_CONFIGS: dict.fromkeys(_CONFIGURED, _O.DESCRIBE_CONFIGS),
    _K.ALTER_CONFIGS: dict.fromkeys(_CONFIGURED, _O.ALTER_CONFIGS),
    _K.DESCRIBE_LOG_DIRS: {CLUSTER: _O.DESCRIBE},
    _K.SASL_AUTHENTICATE: _NOTHING,
    _K.CREATE_PARTITIONS: {TOPIC: _O.ALTER},
    _K.DELETE_GROUPS: {GROUP: _O.DELETE},
    _K.INCREMENTAL_ALTER_CONFIGS: dict.fromkeys(_CONFIGURED, _O.ALTER_CONFIGS),
    _K.OFFSET_DELETE: {GROUP: _O.DELETE, TOPIC: _O.READ},
    _K.DESCRIBE_CLIENT_QUOTAS: {CLUSTER: _O.DESCRIBE_CONFIGS},
    _K.ALTER_CLIENT_QUOTAS: {CLUSTER: _O.ALTER_CONFIGS},
    _K.DESCRIBE_USER_SCRAM_CREDENTIALS: {CLUSTER: _O.DESCRIBE},
    _K.ALTER_USER_SCRAM_CREDENTIALS: {CLUSTER: _O.ALTER},
    _K.DESCRIBE_CLUSTER: {CLUSTER: _O.DESCRIBE},
    _K.DESCRIBE_PRODUCERS: {TOPIC: _O.READ},
    _K.DESCRIBE_TRANSACTIONS: {TRANSACTIONAL_ID: _O.DESCRIBE, TOPIC: _O.DESCRIBE},
    _K.LIST_TRANSACTIONS: {TRANSACTIONAL_ID: _O.DESCRIBE},
    _K.CONSUMER_GROUP_HEARTBEAT: {GROUP: _O.READ, TOPIC: _O.DESCRIBE},
    _K.CONSUMER_GROUP_DESCRIBE: {GROUP: _O.DESCRIBE, TOPIC: _O.DESCRIBE},
    _K.DESCRIBE_TOPIC_PARTITIONS: {TOPIC: _O.DESCRIBE},
    _K.SHARE_GROUP_HEARTBEAT: _NOTHING,
}

_BROKERS_ONLY: _Needs = MappingProxyType({CLUSTER: _O.CLUSTER_ACTION})
CLUSTER_ACCESS: Mapping[AnyApiKey, _Needs] = {
    _K.ELECT_LEADERS: {CLUSTER: _O.ALTER},
    _K.ALTER_PARTITION_REASSIGNMENTS: {CLUSTER: _O.ALTER},
    _K.LIST_PARTITION_REASSIGNMENTS: {CLUSTER: _O.DESCRIBE},
    BrokerApiKey.ALTER_PARTITION: _BROKERS_ONLY,
    BrokerApiKey.ENVELOPE: _BROKERS_ONLY,
    BrokerApiKey.ALLOCATE_PRODUCER_IDS: _BROKERS_ONLY,
}
"""Operations that the APIs of brokers in a cluster need."""
_ROWS: Mapping[AnyApiKey, _Needs] = {**ACCESS, **CLUSTER_ACCESS}

MORE: Mapping[AnyApiKey, frozenset[tuple[AclOperation, ResourceType]]] = {
    _K.METADATA: frozenset({(_O.CREATE, TOPIC), (_O.CREATE, CLUSTER)}),
    _K.CREATE_TOPICS: frozenset({(_O.DESCRIBE_CONFIGS, TOPIC)}),
    _K.DELETE_TOPICS: frozenset({(_O.DESCRIBE, TOPIC)}),
    _K.INIT_PRODUCER_ID: frozenset({(_O.WRITE, TOPIC)}),
    _K.WRITE_TXN_MARKERS: frozenset({(_O.ALTER, CLUSTER)}),
}


def topic_allowed(parts: BrokerParts, request: Request, name: str) -> bool:
    """True if the request may name this topic."""
    return parts.authorizer.allows(request, _ROWS[request.api_key][TOPIC], TOPIC, name)


def group_allowed(parts: BrokerParts, request: Request, group_id: str) -> bool:
    """True if the request may name this group."""
    return parts.authorizer.allows(request, _ROWS[request.api_key][GROUP], GROUP, group_id)


def transactional_id_allowed(parts: BrokerParts, request: Request, transactional_id: str) -> bool:
    """True if the request may name this transactional id."""
    operation = _ROWS[request.api_key][TRANSACTIONAL_ID]
    return parts.authorizer.allows(request, operation, TRANSACTIONAL_ID, transactional_id)


def cluster_allowed(parts: BrokerParts, request: Request) -> bool:
    """True if the request may act on the cluster."""
    operation = _ROWS[request.api_key][CLUSTER]
    return parts.authorizer.allows(request, operation, CLUSTER, CLUSTER_NAME)


def may(
    parts: BrokerParts,
    request: Request,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str = CLUSTER_NAME,
) -> bool:
    """True if the request's principal may also do this operation, which is in `MORE`."""
    _check_row(request, operation, resource_type)
    return parts.authorizer.allows(request, operation, resource_type, name)


def may_any(
    parts: BrokerParts, request: Request, operation: AclOperation, resource_type: ResourceType
) -> bool:
    """True if the principal may do this operation of `MORE` with any resource of the type."""
    _check_row(request, operation, resource_type)
    return parts.authorizer.allows_any(request, operation, resource_type)


def _check_row(request: Request, operation: AclOperation, resource_type: ResourceType) -> None:
    row = MORE.get(request.api_key, ())
    check((operation, resource_type) in row, "an operation that is not in the table",
          api=request.api_key, operation=operation)  # fmt: skip


def authorized_operations(
    parts: BrokerParts, request: Request, resource_type: ResourceType, name: str = CLUSTER_NAME
) -> int:
    """A bit for each operation that the client may do; of the cluster none, unless the client may
    describe it."""
    if resource_type is CLUSTER and not cluster_allowed(parts, request):
        return 0
    found = parts.authorizer.operations(request, resource_type, name)
    return sum(1 << operation for operation in found)


def add_group_operations(parts: BrokerParts, request: Request, groups: Iterable[Any]) -> None:
    """Add the authorized operations to each described group that has no error."""
    for group in groups:
        if group.error_code == ErrorCode.NONE:
            group.authorized_operations = authorized_operations(
                parts, request, GROUP, group.group_id
            )
