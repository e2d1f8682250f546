"""Common parts of the ACL handlers: messages to values, and the refusal of a request."""

from __future__ import annotations

import enum
from typing import Any, TypeVar

from broker_sim.core.controller.acls import (
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from broker_sim.core.controller.scram import Refusal
from broker_sim.core.effects import Request
from broker_sim.core.handlers._access import cluster_allowed
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode

_Kind = TypeVar("_Kind", bound=enum.IntEnum)


def refused(parts: BrokerParts, request: Request) -> Refusal | None:
    """Why ACLs cannot be asked for or changed by this request; None when they can."""
    if not cluster_allowed(parts, request):
        text = "the ACLs are not open to this principal"
        return Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, text)
    if not parts.authorizer.is_enabled:
        return Refusal(ErrorCode.SECURITY_DISABLED, "there is no authorizer: set its class name")
    return None


def read_acl(creation: Any) -> Acl:
    """Read an ACL from CreateAcls; an unknown number becomes UNKNOWN."""
    return Acl(
        resource_type=_kind(ResourceType, creation.resource_type),
        pattern_type=_kind(PatternType, creation.resource_pattern_type),
        name=creation.resource_name,
        principal=creation.principal,
        host=creation.host,
        operation=_kind(AclOperation, creation.operation),
        permission=_kind(Permission, creation.permission_type),
    )


def read_filter(message: Any) -> AclFilter:
    """Read a filter from DescribeAcls or from DeleteAcls."""
    return AclFilter(
        resource_type=_kind(ResourceType, message.resource_type_filter),
        pattern_type=_kind(PatternType, message.pattern_type_filter),
        name=message.resource_name_filter,
        principal=message.principal_filter,
        host=message.host_filter,
        operation=_kind(AclOperation, message.operation),
        permission=_kind(Permission, message.permission_type),
    )


def _kind(kind: type[_Kind], number: int) -> _Kind:
    try:
        return kind(number)
    except ValueError:
        return kind(0)
