"""ListGroups (key 16)."""

from __future__ import annotations

from broker_sim.core.effects import Request
from broker_sim.core.handlers._access import cluster_allowed, group_allowed
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.LIST_GROUPS].response


def handle(parts: BrokerParts, request: Request) -> Message:
    """List the groups, filtered by state (version 4) and by type (version 5)."""
    message = request.message
    listing = parts.groups.list_groups(
        state_filters=message.states_filter or (), type_filters=message.types_filter or ()
    )
    sees_all = cluster_allowed(parts, request)
    return _Response(
        error_code=int(listing.error),
        groups=[
            _Response.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            )
            for group in listing.groups
            if sees_all or group_allowed(parts, request, group.group_id)
        ],
    )
