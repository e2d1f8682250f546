"""DescribeGroups (key 15)."""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Request
from broker_sim.core.group.requests import GroupDescription
from broker_sim.core.handlers._access import add_group_operations, group_allowed
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DESCRIBE_GROUPS].response
_Group = _Response.DescribedGroup

NOT_FOUND_VERSION = 6
"""From here on an unknown group is GROUP_ID_NOT_FOUND; before, a Dead group (KIP-1043)."""
OPERATIONS_VERSION = 3
_NO_STATE = {ErrorCode.GROUP_AUTHORIZATION_FAILED: ""}


def handle(parts: BrokerParts, request: Request) -> Message:
    """State, members and assignments of each group, once."""
    groups = [
        _group(_description(parts, request, group_id), request.api_version)
        for group_id in dict.fromkeys(request.message.groups)
    ]
    if request.api_version >= OPERATIONS_VERSION and request.message.include_authorized_operations:
        add_group_operations(parts, request, groups)
    return _Response(groups=groups)


def _description(parts: BrokerParts, request: Request, group_id: str) -> GroupDescription:
    if not group_allowed(parts, request, group_id):
        return GroupDescription(ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id)
    return parts.groups.describe_group(group_id)


def _group(description: GroupDescription, api_version: int) -> Any:
    error, text = description.error, description.message or None
    if error is ErrorCode.GROUP_ID_NOT_FOUND and api_version < NOT_FOUND_VERSION:
        error, text = ErrorCode.NONE, None
    return _Group(
        error_code=int(error),
        error_message=text,
        group_id=description.group_id,
        group_state=description.state or _NO_STATE.get(error, "Dead"),
        protocol_type=description.protocol_type,
        protocol_data=description.protocol_data,
        members=[
            _Group.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in description.members
        ],
    )
