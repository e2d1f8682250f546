"""DeleteGroups (key 42)."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.parts import BrokerParts
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DELETE_GROUPS].response


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Only groups without members go, with all their offsets."""
    errors = parts.groups.delete_groups(request.message.groups_names, effects)
    return _Response(
        throttle_time_ms=0,
        results=[
            _Response.DeletableGroupResult(group_id=group_id, error_code=int(error))
            for group_id, error in errors.items()
        ],
    )
