"""Permissions of a principal: Kafka's `StandardAuthorizer`, over the ACLs of the image.

Rules for this file: questions only, about the principal and host of a request. A DENY wins over
every ALLOW. Where no ACL concerns a resource, `allow.everyone.if.no.acl.found` decides; where any
does, an operation that is not allowed is denied. Super users may do everything. Without an
authorizer every client may.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_sim.core.config import BrokerConfig, ConfigError
from broker_sim.core.controller.acls import (
    OPERATIONS,
    WILDCARD,
    Acl,
    AclOperation,
    Acls,
    PatternType,
    Permission,
    ResourceType,
)
from broker_sim.core.effects import Request
from broker_sim.core.security.principals import A_BROKER

EVERYBODY = "User:*"
_ANY_NAME = "hardcode"
"""Kafka asks for a resource of this name, too, when it looks for any of a type."""

_O = AclOperation
_IMPLIES = {
    _O.DESCRIBE: frozenset({_O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER}),
    _O.DESCRIBE_CONFIGS: frozenset({_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}),
}
"""By which operations an ALLOW holds for these, too. A DENY is for its own operation only."""


class Authorizer:
    """Answers for one broker."""

    def __init__(self, config: BrokerConfig, acls: Acls) -> None:
        """Raises ConfigError for a super user that is not a principal."""
        self.is_enabled = bool(config.text("authorizer.class.name"))
        self._acls = acls
        self._super_users = _principals(config.text("super.users")) | {A_BROKER}
        self._allows_without_acl = config.boolean("allow.everyone.if.no.acl.found")

    def allows(
        self, request: Request, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """True if the request's principal may do this operation with the resource."""
        if not self.is_enabled or request.principal in self._super_users:
            return True
        has_acl = allowed = False
        for acl in self._acls.concerning(resource_type, name):
            has_acl = True
            if not _is_for(acl, request) or not _covers(acl, operation):
                continue
            if acl.permission is Permission.DENY:
                return False
            allowed = True
        return allowed or (not has_acl and self._allows_without_acl)

    def allows_any(
        self, request: Request, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """True if the principal may do this with a resource of the type, which need not exist."""
        if self.allows(request, operation, resource_type, _ANY_NAME):
            return True
        mine = [
            acl
            for acl in self._acls.of_type(resource_type)
            if _is_for(acl, request) and acl.operation in (operation, AclOperation.ALL)
        ]
        denied = {(a.pattern_type, a.name) for a in mine if a.permission is Permission.DENY}
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(
            acl.permission is Permission.ALLOW and not _is_dominated(acl, denied) for acl in mine
        )

    def operations(
        self, request: Request, resource_type: ResourceType, name: str
    ) -> set[AclOperation]:
        """Return all operations that the principal may do with the resource."""
        return {
            operation
            for operation in OPERATIONS[resource_type]
            if self.allows(request, operation, resource_type, name)
        }


def _is_for(acl: Acl, request: Request) -> bool:
    return acl.principal in (request.principal, EVERYBODY) and acl.host in (
        request.client_host,
        WILDCARD,
    )


def _covers(acl: Acl, operation: AclOperation) -> bool:
    if acl.operation is AclOperation.ALL:
        return True
    if acl.permission is Permission.DENY:
        return acl.operation is operation
    return acl.operation in _IMPLIES.get(operation, (operation,))


def _is_dominated(acl: Acl, denied: set[tuple[PatternType, str]]) -> bool:
    """Everything that the ACL allows is denied by one of these."""
    if acl.pattern_type is PatternType.LITERAL:
        if acl.name == WILDCARD:
            return False
        if (PatternType.LITERAL, acl.name) in denied:
            return True
    return any(kind is PatternType.PREFIXED and acl.name.startswith(name) for kind, name in denied)


def _principals(text: str) -> frozenset[str]:
    found = [part.strip() for part in text.split(";") if part.strip()]
    _check_principals(found)
    return frozenset(found)


def _check_principals(principals: Iterable[str]) -> None:
    for principal in principals:
        if ":" not in principal:
            raise ConfigError(f"super.users must be User:name;User:name, not {principal!r}")
