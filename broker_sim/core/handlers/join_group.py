"""JoinGroup (key 11): answered when the rebalance completes."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.group.requests import JoinGroup, JoinGroupResult
from broker_sim.core.handlers._access import group_allowed
from broker_sim.core.parts import BrokerParts, respond
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey

_Response = APIS[ApiKey.JOIN_GROUP].response

REBALANCE_TIMEOUT_VERSION = 1
MEMBER_ID_REQUIRED_VERSION = 4
PROTOCOL_TYPE_VERSION = 7
SKIP_ASSIGNMENT_VERSION = 9


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """The group coordinator answers by calling back, at once or at a later step."""
    message = request.message

    # Answer in the words of the request's version, when the coordinator has the result.
    def reply(result: JoinGroupResult, later: Effects) -> None:
        name = result.protocol_name
        if name is None and request.api_version < PROTOCOL_TYPE_VERSION:
            name = ""
        answer = _Response(
            error_code=int(result.error),
            generation_id=result.generation_id,
            protocol_type=result.protocol_type,
            protocol_name=name,
            leader=result.leader,
            skip_assignment=result.skip_assignment,
            member_id=result.member_id,
            members=[
                _Response.JoinGroupResponseMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    metadata=member.metadata,
                )
                for member in result.members
            ],
        )
        respond(request, answer, later)

    # Refuse a client without rights on the group.
    if not group_allowed(parts, request, message.group_id):
        return reply(JoinGroupResult(ErrorCode.GROUP_AUTHORIZATION_FAILED), effects)
    # Ask the coordinator to join. Version 0 has one timeout for the session and the rebalance.
    rebalance_timeout_ms = message.rebalance_timeout_ms
    if request.api_version < REBALANCE_TIMEOUT_VERSION:
        rebalance_timeout_ms = message.session_timeout_ms
    join = JoinGroup(
        group_id=message.group_id,
        member_id=message.member_id,
        group_instance_id=message.group_instance_id,
        protocol_type=message.protocol_type,
        protocols=tuple((p.name, bytes(p.metadata)) for p in message.protocols),
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=max(rebalance_timeout_ms, 0),
        client_id=request.client_id or "",
        client_host=f"/{request.client_host}",
        requires_known_member_id=request.api_version >= MEMBER_ID_REQUIRED_VERSION,
        supports_skipping_assignment=request.api_version >= SKIP_ASSIGNMENT_VERSION,
    )
    return parts.groups.join_group(join, reply, effects)
