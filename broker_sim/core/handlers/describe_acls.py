"""DescribeAcls (key 29)."""

from __future__ import annotations

from itertools import groupby

from broker_sim.core.controller.acls import Acl, PatternType, ResourceType
from broker_sim.core.controller.scram import Refusal
from broker_sim.core.effects import Request
from broker_sim.core.handlers._acls import read_filter, refused
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DESCRIBE_ACLS].response
_Resource = _Response.DescribeAclsResource


def handle(parts: BrokerParts, request: Request) -> Message:
    """Answer with the ACLs that the filter selects, by resource."""
    wanted = read_filter(request.message)
    refusal = refused(parts, request)
    if refusal is None and wanted.is_unknown:
        refusal = Refusal(ErrorCode.INVALID_REQUEST, "the filter has a kind that is not known")
    if refusal is not None:
        return _Response(error_code=int(refusal.error), error_message=refusal.message, resources=[])
    by_pattern = groupby(sorted(parts.acls.find(wanted), key=_pattern), key=_pattern)
    return _Response(
        error_message=None,
        resources=[
            _Resource(
                resource_type=int(resource_type),
                resource_name=name,
                pattern_type=int(pattern_type),
                acls=[
                    _Resource.AclDescription(
                        principal=acl.principal,
                        host=acl.host,
                        operation=int(acl.operation),
                        permission_type=int(acl.permission),
                    )
                    for acl in members
                ],
            )
            for (resource_type, name, pattern_type), members in by_pattern
        ],
    )


def _pattern(acl: Acl) -> tuple[ResourceType, str, PatternType]:
    return acl.resource_type, acl.name, acl.pattern_type
