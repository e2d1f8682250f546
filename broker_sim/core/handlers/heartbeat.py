"""Heartbeat (key 12)."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.HEARTBEAT].response


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """The member lives; or must join again."""
    message = request.message
    error = state.groups.heartbeat(
        message.group_id,
        effects,
        member_id=message.member_id,
        generation_id=message.generation_id,
        group_instance_id=message.group_instance_id,
    )
    return _Response(throttle_time_ms=0, error_code=int(error))
