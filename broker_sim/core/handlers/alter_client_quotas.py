"""AlterClientQuotas (key 49): the quotas of users, client ids and addresses."""

from __future__ import annotations

from broker_sim.core.controller.image import quota_entity
from broker_sim.core.controller.scram import Refusal
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import cluster_allowed
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.ALTER_CLIENT_QUOTAS].response
_Entry = _Response.EntryData


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Each entity on its own; what is accepted is durable together."""
    message = request.message
    if cluster_allowed(parts, request):
        results = parts.quota_admin.alter(
            message.entries, effects, validate_only=message.validate_only
        )
    else:
        text = "quotas are not open to this principal"
        refused = Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, text)
        named = ({e.entity_type: e.entity_name for e in each.entity} for each in message.entries)
        results = {quota_entity(names): refused for names in named}
    return _Response(
        entries=[
            _Entry(
                error_code=int(refusal.error if refusal else ErrorCode.NONE),
                error_message=refusal.message if refusal else None,
                entity=[
                    _Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity
                ],
            )
            for entity, refusal in results.items()
        ]
    )
