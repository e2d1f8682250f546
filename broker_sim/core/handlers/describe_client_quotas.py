"""DescribeClientQuotas (key 48): the quotas of the entities that a filter selects."""

from __future__ import annotations

from broker_sim.core.controller.scram import Refusal
from broker_sim.core.effects import Request
from broker_sim.core.handlers._access import cluster_allowed
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DESCRIBE_CLIENT_QUOTAS].response
_Entry = _Response.EntryData


def handle(parts: BrokerParts, request: Request) -> Message:
    """Describe the selected entities, or refuse the filter."""
    message = request.message
    if cluster_allowed(parts, request):
        found = parts.quota_admin.find(message.components, strict=message.strict)
    else:
        text = "quotas are not open to this principal"
        found = Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, text)
    if isinstance(found, Refusal):
        return _Response(error_code=int(found.error), error_message=found.message, entries=None)
    return _Response(
        error_message=None,
        entries=[
            _Entry(
                entity=[
                    _Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity
                ],
                values=[_Entry.ValueData(key=key, value=value) for key, value in quotas.items()],
            )
            for entity, quotas in found.items()
        ],
    )
