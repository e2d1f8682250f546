"""DeleteAcls (key 31)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker_sim.core.controller.acls import Acl
from broker_sim.core.controller.scram import Refusal
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._acls import read_filter, refused
from broker_sim.core.handlers._lookup import refused_fields
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DELETE_ACLS].response
_Result = _Response.DeleteAclsFilterResult
_UNKNOWN = Refusal(ErrorCode.INVALID_REQUEST, "the filter has a kind that is not known")


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Delete the ACLs that each filter selects, and answer with them."""
    filters = [read_filter(each) for each in request.message.filters]
    refusal = refused(parts, request)
    if refusal is not None:
        results = [_result(refusal, ()) for _ in filters]
    else:
        deleted = parts.acls.delete(filters, effects)
        results = [
            _result(_UNKNOWN if wanted.is_unknown else None, acls)
            for wanted, acls in zip(filters, deleted, strict=True)
        ]
    return _Response(filter_results=results)


def _result(refusal: Refusal | None, acls: Sequence[Acl]) -> Any:
    return _Result(
        **refused_fields(refusal),
        matching_acls=[
            _Result.DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=int(acl.resource_type),
                resource_name=acl.name,
                pattern_type=int(acl.pattern_type),
                principal=acl.principal,
                host=acl.host,
                operation=int(acl.operation),
                permission_type=int(acl.permission),
            )
            for acl in acls
        ],
    )
