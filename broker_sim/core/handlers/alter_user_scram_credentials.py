"""AlterUserScramCredentials (key 51): users that log in by SCRAM."""

from __future__ import annotations

from broker_sim.core.controller.scram import Refusal
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import cluster_allowed
from broker_sim.core.handlers._lookup import refused_fields
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.ALTER_USER_SCRAM_CREDENTIALS].response


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Each user on its own; what is accepted is durable together."""
    message = request.message
    if not cluster_allowed(parts, request):
        text = "the users are not open to this principal"
        refused = Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, text)
        names = [each.name for each in (*message.deletions, *message.upsertions)]
        results: dict[str, Refusal | None] = dict.fromkeys(names, refused)
    else:
        results = parts.scram.alter(message.deletions, message.upsertions, effects)
    return _Response(
        results=[
            _Response.AlterUserScramCredentialsResult(user=user, **refused_fields(refusal))
            for user, refusal in results.items()
        ]
    )
