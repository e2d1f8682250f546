"""Changes of ACLs (source: Kafka's `AclApis` and `AclControlManager`)."""

from __future__ import annotations

from collections.abc import Sequence

from broker_sim.core.controller import Metadata
from broker_sim.core.controller.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from broker_sim.core.controller.metadata_records import acl_record, acl_removed_record
from broker_sim.core.controller.scram import CHANGES_MAX, TOO_MANY, Refusal
from broker_sim.core.effects import Effects
from broker_sim.core.free_space import NO_FREE_SPACE, FreeSpace
from txnlog_kafka.wire.error_codes import ErrorCode


class AclAdmin:
    """Adds, finds and removes ACLs."""

    def __init__(self, metadata: Metadata, space: FreeSpace) -> None:
        self._metadata = metadata
        self._space = space

    def create(self, acls: Sequence[Acl], effects: Effects) -> list[Refusal | None]:
        """Each on its own: why it was not added, or None; one that is there already is fine."""
        results = [self._refused(acl) for acl in acls]
        accepted = [acl for acl, refusal in zip(acls, results, strict=True) if refusal is None]
        present = self._metadata.image.acls
        missing = [acl for acl in dict.fromkeys(accepted) if acl not in present]
        if len(missing) > CHANGES_MAX:
            return [TOO_MANY for _ in acls]
        if missing:
            self._metadata.commit([acl_record(acl) for acl in missing], effects)
        return results

    def find(self, wanted: AclFilter) -> Sequence[Acl]:
        """Return the ACLs that the filter selects."""
        return self._metadata.image.acls.find(wanted)

    def delete(self, filters: Sequence[AclFilter], effects: Effects) -> list[Sequence[Acl]]:
        """Remove the ACLs that each filter selects, and return them. An unknown filter has none."""
        found = [() if wanted.is_unknown else self.find(wanted) for wanted in filters]
        removed = dict.fromkeys(acl for acls in found for acl in acls)
        if removed:
            self._metadata.commit([acl_removed_record(acl) for acl in removed], effects)
        return found

    def _refused(self, acl: Acl) -> Refusal | None:
        reason = None
        if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
            reason = f"the only resource of the type CLUSTER is {CLUSTER_NAME}"
        elif not acl.name:
            reason = "a resource has a name"
        elif acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
            reason = "an ACL is for resources of one type"
        elif acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
            reason = "the pattern type of an ACL is LITERAL or PREFIXED"
        elif acl.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
            reason = "an ACL is for one operation, or for ALL"
        elif acl.permission not in (Permission.DENY, Permission.ALLOW):
            reason = "an ACL is DENY or ALLOW"
        elif ":" not in acl.principal:
            reason = "a principal has a type and a name, such as User:alice"
        if reason is not None:
            return Refusal(ErrorCode.INVALID_REQUEST, reason)
        if self._space.is_low:
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, NO_FREE_SPACE)
        return None
