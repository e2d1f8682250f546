"""FindCoordinator (key 10): where a group's or a transactional id's coordinator is."""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import group_allowed, transactional_id_allowed
from broker_sim.core.parts import BrokerParts
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message
from txnlog_spark.wire.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

_Response = APIS[ApiKey.FIND_COORDINATOR].response

GROUP_KEY = 0
KEY_TYPES = {GROUP_KEY: GROUP_METADATA_TOPIC, 1: TRANSACTION_STATE_TOPIC}
BATCH_VERSION = 4
NO_NODE = -1


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """One key below version 4, several from then on. Creates the internal topic when needed."""
    message = request.message
    if request.api_version < BATCH_VERSION:
        fields = _locate(parts, request, message.key, effects)
        if not fields["error_code"]:
            fields["error_message"] = ErrorCode.NONE.name
        return _Response(throttle_time_ms=0, **fields)
    coordinators = [
        _Response.Coordinator(key=key, **_locate(parts, request, key, effects))
        for key in message.coordinator_keys
    ]
    return _Response(throttle_time_ms=0, coordinators=coordinators)


def _locate(parts: BrokerParts, request: Request, key: str, effects: Effects) -> dict[str, Any]:
    key_type = request.message.key_type
    topic = KEY_TYPES.get(key_type)
    if topic is None:
        return {
            "error_code": int(ErrorCode.INVALID_REQUEST),
            "error_message": f"key type {key_type} is not supported; 0 is a group, 1 a transaction",
            "node_id": NO_NODE,
            "host": "",
            "port": -1,
        }
    refused = _refused(parts, request, key)
    if refused is not ErrorCode.NONE:
        return {
            "error_code": int(refused),
            "error_message": f"the coordinator of {key[:300]!r} may not be asked for",
            "node_id": NO_NODE,
            "host": "",
            "port": -1,
        }
    if not parts.topics.ensure_internal(topic, effects):
        return {
            "error_code": int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
            "error_message": f"there is no free space to create {topic}",
            "node_id": NO_NODE,
            "host": "",
            "port": -1,
        }
    address = parts.address(request)
    return {
        "error_code": 0,
        "error_message": None,
        "node_id": parts.node_id,
        "host": address.host,
        "port": address.port,
    }


def _refused(parts: BrokerParts, request: Request, key: str) -> ErrorCode:
    if request.message.key_type == GROUP_KEY:
        if not group_allowed(parts, request, key):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif not transactional_id_allowed(parts, request, key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.NONE
