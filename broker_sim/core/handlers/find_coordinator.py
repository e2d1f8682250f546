"""FindCoordinator (key 10): where a group's or a transactional id's coordinator is."""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import group_allowed, transactional_id_allowed
from broker_sim.core.handlers._lookup import leader_of
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

_Response = APIS[ApiKey.FIND_COORDINATOR].response

GROUP_KEY, TRANSACTION_KEY = 0, 1
KEY_TYPES = {GROUP_KEY: GROUP_METADATA_TOPIC, TRANSACTION_KEY: TRANSACTION_STATE_TOPIC}
BATCH_VERSION = 4
NO_NODE = -1


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Find a single coordinator below version 4, several from then on.

    Creates the internal topic when needed.
    """
    message = request.message
    if request.api_version < BATCH_VERSION:
        fields = _locate_coordinator(parts, request, message.key, effects)
        if not fields["error_code"]:
            fields["error_message"] = ErrorCode.NONE.name
        return _Response(**fields)
    coordinators = [
        _Response.Coordinator(key=key, **_locate_coordinator(parts, request, key, effects))
        for key in message.coordinator_keys
    ]
    return _Response(coordinators=coordinators)


def _locate_coordinator(
    parts: BrokerParts, request: Request, key: str, effects: Effects
) -> dict[str, Any]:
    key_type = request.message.key_type
    topic = KEY_TYPES.get(key_type)
    if topic is None:
        text = f"key type {key_type} is not supported; 0 is a group, 1 a transaction"
        return _not_found(ErrorCode.INVALID_REQUEST, text)
    refused = _refused(parts, request, key)
    if refused is not ErrorCode.NONE:
        return _not_found(refused, f"the coordinator of {key[:300]!r} may not be asked for")
    if not parts.topics.ensure_internal(topic, effects):
        text = f"there is no free space to create {topic}"
        if not parts.space.is_low:
            text = f"{topic} is being created"
        return _not_found(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
    return _leader(parts, request, topic, key)


def _leader(parts: BrokerParts, request: Request, topic: str, key: str) -> dict[str, Any]:
    """The leader of the key's partition coordinates it."""
    coordinator = parts.groups if topic == GROUP_METADATA_TOPIC else parts.transactions
    partition = coordinator.partition_for(key)
    held = leader_of(parts, topic, partition)
    if held is None:
        address, node_id = parts.address(request), parts.node_id
    else:
        broker = parts.image.brokers.get(held.leader)
        known = None if broker is None else broker.endpoints.get(request.listener)
        if known is None:
            text = f"{topic}-{partition} has no leader that this listener's clients can reach"
            return _not_found(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        address, node_id = known, held.leader
    return {
        "error_code": 0,
        "error_message": None,
        "node_id": node_id,
        "host": address.host,
        "port": address.port,
    }


def _not_found(error: ErrorCode, text: str) -> dict[str, Any]:
    return {
        "error_code": int(error),
        "error_message": text,
        "node_id": NO_NODE,
        "host": "",
        "port": -1,
    }


def _refused(parts: BrokerParts, request: Request, key: str) -> ErrorCode:
    if request.message.key_type == GROUP_KEY:
        if not group_allowed(parts, request, key):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif not transactional_id_allowed(parts, request, key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.NONE
