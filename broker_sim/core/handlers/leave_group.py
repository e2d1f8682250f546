"""LeaveGroup (key 13): one member below version 3, several from then on."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.group.requests import LeaveGroupResult, LeavingMember
from broker_sim.core.handlers._access import group_allowed
from broker_sim.core.parts import BrokerParts, respond
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.LEAVE_GROUP].response

MEMBERS_VERSION = 3


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Members leave; the others rebalance."""
    message = request.message
    if not group_allowed(parts, request, message.group_id):
        refused = LeaveGroupResult(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return respond(request, _response(request, refused), effects)
    if request.api_version < MEMBERS_VERSION:
        leaving = [LeavingMember(message.member_id)]
    else:
        leaving = [LeavingMember(m.member_id, m.group_instance_id) for m in message.members]

    def answer(result: LeaveGroupResult, effects: Effects) -> None:
        respond(request, _response(request, result), effects)

    return parts.groups.leave_group(message.group_id, leaving, answer, effects)


def _response(request: Request, result: LeaveGroupResult) -> Message:
    error = result.error
    if request.api_version < MEMBERS_VERSION and error is ErrorCode.NONE and result.members:
        error = result.members[0][1]
    return _Response(
        error_code=int(error),
        members=[
            _Response.MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=int(code),
            )
            for member, code in result.members
        ],
    )
