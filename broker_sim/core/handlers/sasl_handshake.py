"""SaslHandshake (key 17): which mechanism a login is by."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.SASL_HANDSHAKE].response


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message | None:
    """With the mechanisms that are enabled on the listener."""
    result = parts.logins.handshake(request, effects)
    answer = _Response(error_code=int(result.error), mechanisms=list(result.mechanisms))
    if result.refused:
        parts.logins.refuse(request, answer, effects)
        return None
    return answer
