"""CreateAcls (key 30)."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._acls import read_acl, refused
from broker_sim.core.handlers._lookup import refused_fields
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.CREATE_ACLS].response


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Each on its own; what is accepted is durable together, and in force with the answer."""
    acls = [read_acl(creation) for creation in request.message.creations]
    refusal = refused(parts, request)
    results = [refusal for _ in acls] if refusal else parts.acls.create(acls, effects)
    return _Response(
        results=[_Response.AclCreationResult(**refused_fields(each)) for each in results]
    )
