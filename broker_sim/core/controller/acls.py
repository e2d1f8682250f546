"""ACLs: what one says, which of them concern a resource, filters, and changes of them.

Source: Kafka's `AclControlManager`, `StandardAuthorizerData` and `ResourcePatternFilter`.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


class ResourceType(enum.IntEnum):
    """Type of a protected resource, numbered as in requests."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    """Kind of resource name in an ACL. MATCH, in filters only: all that concern the resource."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(enum.IntEnum):
    """Operation on a resource, numbered as in requests."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(enum.IntEnum):
    """Permission of an ACL: deny or allow."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME = "kafka-cluster"
"""The only resource of its type."""
WILDCARD = "*"
"""Every resource, as a literal name; every host."""

_O = AclOperation
OPERATIONS: dict[ResourceType, frozenset[AclOperation]] = {
    ResourceType.TOPIC: frozenset(
        {
            _O.READ,
            _O.WRITE,
            _O.CREATE,
            _O.DESCRIBE,
            _O.DELETE,
            _O.ALTER,
            _O.DESCRIBE_CONFIGS,
            _O.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset(
        {_O.READ, _O.DESCRIBE, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}
    ),
    ResourceType.CLUSTER: frozenset(
        {
            _O.CREATE,
            _O.CLUSTER_ACTION,
            _O.DESCRIBE_CONFIGS,
            _O.ALTER_CONFIGS,
            _O.IDEMPOTENT_WRITE,
            _O.ALTER,
            _O.DESCRIBE,
        }
    ),
}
"""Operations on a resource whose authorized operations clients ask for (Kafka's `AclEntry`)."""


@dataclass(frozen=True, slots=True)
class Acl:
    """A principal may, or may not, do something with resources, from a host."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: AclOperation
    permission: Permission

    @classmethod
    def of_record(cls, record: Any) -> Acl:
        """Make an ACL from the fields that `record_fields` returns."""
        return cls(
            ResourceType[record["resource_type"]],
            PatternType[record["pattern_type"]],
            record["name"],
            record["principal"],
            record["host"],
            AclOperation[record["operation"]],
            Permission[record["permission"]],
        )

    def record_fields(self) -> dict[str, str]:
        """Return the fields as plain values, for JSON."""
        return {
            "resource_type": self.resource_type.name,
            "pattern_type": self.pattern_type.name,
            "name": self.name,
            "principal": self.principal,
            "host": self.host,
            "operation": self.operation.name,
            "permission": self.permission.name,
        }


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Filter of ACLs: None and ANY match all."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str | None
    principal: str | None
    host: str | None
    operation: AclOperation
    permission: Permission

    @property
    def is_unknown(self) -> bool:
        """True if a field has a number that is not known here."""
        kinds = (self.resource_type, self.pattern_type, self.operation, self.permission)
        return any(kind == 0 for kind in kinds)

    def matches(self, acl: Acl) -> bool:
        """True if the filter selects the ACL."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._names(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _names(self, acl: Acl) -> bool:
        kind = self.pattern_type
        if kind not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.name is None:
            return True
        if kind is not PatternType.MATCH:
            return self.name == acl.name
        if acl.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in (self.name, WILDCARD)


class Acls:
    """ACLs of the cluster, found by resource."""

    def __init__(self) -> None:
        self._by_pattern: dict[tuple[ResourceType, PatternType, str], dict[Acl, None]] = {}
        self._prefix_lengths: dict[ResourceType, Counter[int]] = {}
        self.change_count = 0
        """Count of changes: an answer from before another change may be out of date."""

    def __iter__(self) -> Iterator[Acl]:
        for members in self._by_pattern.values():
            yield from members

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Acls) and set(self) == set(other)

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, acl: object) -> bool:
        return isinstance(acl, Acl) and acl in self._by_pattern.get(_pattern(acl), ())

    def add(self, acl: Acl) -> None:
        """Add an ACL; nothing happens if it exists."""
        if acl in self:
            return
        self.change_count += 1
        self._by_pattern.setdefault(_pattern(acl), {})[acl] = None
        if acl.pattern_type is PatternType.PREFIXED:
            self._prefix_lengths.setdefault(acl.resource_type, Counter())[len(acl.name)] += 1

    def remove(self, acl: Acl) -> None:
        """Remove an ACL, which must exist."""
        self.change_count += 1
        members = self._by_pattern[_pattern(acl)]
        del members[acl]
        if not members:
            del self._by_pattern[_pattern(acl)]
        if acl.pattern_type is PatternType.PREFIXED:
            lengths = self._prefix_lengths[acl.resource_type]
            lengths[len(acl.name)] -= 1
            if not lengths[len(acl.name)]:
                del lengths[len(acl.name)]

    def become(self, others: Acls) -> None:
        """The same as those others from here on."""
        for acl in [each for each in self if each not in others]:
            self.remove(acl)
        for acl in others:
            self.add(acl)

    def concerning(self, resource_type: ResourceType, name: str) -> Iterator[Acl]:
        """Yield the ACLs of the resource's name, of a prefix of the name, and of every name."""
        for literal in dict.fromkeys((name, WILDCARD)):
            yield from self._by_pattern.get((resource_type, PatternType.LITERAL, literal), ())
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                key = (resource_type, PatternType.PREFIXED, name[:length])
                yield from self._by_pattern.get(key, ())

    def of_type(self, resource_type: ResourceType) -> Iterator[Acl]:
        """Yield the ACLs of all resources of a type."""
        for (kind, _, _), members in self._by_pattern.items():
            if kind is resource_type:
                yield from members

    def find(self, wanted: AclFilter) -> Sequence[Acl]:
        """Return the ACLs that the filter selects."""
        return [acl for acl in self if wanted.matches(acl)]


def _pattern(acl: Acl) -> tuple[ResourceType, PatternType, str]:
    return acl.resource_type, acl.pattern_type, acl.name
