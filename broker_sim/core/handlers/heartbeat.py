"""Heartbeat (key 12)."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import group_allowed
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.HEARTBEAT].response


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """The member lives; or must join again."""
    message = request.message
    if not group_allowed(parts, request, message.group_id):
        refused = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return _Response(error_code=refused)
    error = parts.groups.heartbeat(
        message.group_id,
        effects,
        member_id=message.member_id,
        generation_id=message.generation_id,
        group_instance_id=message.group_instance_id,
    )
    return _Response(error_code=int(error))
