"""SaslAuthenticate (key 36): the messages of a login's mechanism."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.parts import BrokerParts
from broker_sim.core.replies import answer_to
from txnlog_kafka.wire.messages import APIS, ApiKey

_Response = APIS[ApiKey.SASL_AUTHENTICATE].response


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """The host takes requests of any size once the login is complete."""
    result = parts.logins.authenticate(request, effects)
    answer = _Response(
        error_code=int(result.error),
        error_message=result.message,
        auth_bytes=result.data,
        session_lifetime_ms=result.lifetime_ms,
    )
    if result.refused:
        parts.logins.refuse(request, None if result.message is None else answer, effects)
    else:
        effects.responses.append(answer_to(request, answer, logged_in=result.complete))
