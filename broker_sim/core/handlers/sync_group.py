"""SyncGroup (key 14): answered when the leader has sent the assignment."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.group.requests import SyncGroup, SyncGroupResult
from broker_sim.core.handlers._access import group_allowed
from broker_sim.core.parts import BrokerParts, respond
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey

_Response = APIS[ApiKey.SYNC_GROUP].response

PROTOCOL_VERSION = 5
"""From here on protocol type and name are mandatory (KIP-559)."""


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """The group coordinator answers by calling back, at once or at a later step."""
    message = request.message

    def reply(result: SyncGroupResult, later: Effects) -> None:
        answer = _Response(
            error_code=int(result.error),
            protocol_type=result.protocol_type,
            protocol_name=result.protocol_name,
            assignment=result.assignment,
        )
        respond(request, answer, later)

    has_protocol = message.protocol_type is not None and message.protocol_name is not None
    if request.api_version >= PROTOCOL_VERSION and not has_protocol:
        return reply(SyncGroupResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL), effects)
    if not group_allowed(parts, request, message.group_id):
        return reply(SyncGroupResult(ErrorCode.GROUP_AUTHORIZATION_FAILED), effects)
    sync = SyncGroup(
        group_id=message.group_id,
        generation_id=message.generation_id,
        member_id=message.member_id,
        group_instance_id=message.group_instance_id,
        protocol_type=message.protocol_type,
        protocol_name=message.protocol_name,
        assignments={a.member_id: bytes(a.assignment) for a in message.assignments},
    )
    return parts.groups.sync_group(sync, reply, effects)
