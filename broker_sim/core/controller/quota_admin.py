"""Changes of the clients' quotas (source: Kafka's `ClientQuotaControlManager` and
`ClientQuotasImage`)."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping, Sequence
from typing import Any

from broker_sim.core.config import INT32_MAX, INT64_MAX
from broker_sim.core.controller import Metadata
from broker_sim.core.controller.image import QuotaEntity, quota_entity
from broker_sim.core.controller.metadata_records import client_quotas_record
from broker_sim.core.controller.scram import CHANGES_MAX, TOO_MANY, Refusal
from broker_sim.core.effects import Effects
from broker_sim.core.free_space import NO_FREE_SPACE, FreeSpace
from txnlog_kafka.wire.error_codes import ErrorCode

USER, CLIENT_ID, IP = "user", "client-id", "ip"
TYPES = (USER, CLIENT_ID, IP)
OF_CLIENTS: Mapping[str, float | None] = {
    "producer_byte_rate": INT64_MAX,
    "consumer_byte_rate": INT64_MAX,
    "request_percentage": None,
    "controller_mutation_rate": None,
}
"""Quotas of users and client ids, each with the largest whole number; None: any number."""
OF_ADDRESSES: Mapping[str, float | None] = {"connection_creation_rate": INT32_MAX}
FRACTION_MAX = 1e-6
"""Part that a whole number may have, as it comes as a double."""
EXACT, DEFAULT, SPECIFIED = range(3)
"""Kinds of a filter's components: this name, the default, any name."""

Quotas = Mapping[str, float]


class QuotaAdmin:
    """Sets, removes and finds quotas."""

    def __init__(self, metadata: Metadata, space: FreeSpace) -> None:
        self._metadata = metadata
        self._space = space

    def alter(
        self, entries: Sequence[Any], effects: Effects, *, validate_only: bool
    ) -> dict[QuotaEntity, Refusal | None]:
        """Change each entity by itself: return the reason why it was not changed, or None."""
        results: dict[QuotaEntity, Refusal | None] = {}
        planned: dict[QuotaEntity, Quotas] = {}
        for entry in entries:
            entity = quota_entity({each.entity_type: each.entity_name for each in entry.entity})
            if entity in results:
                results[entity] = _invalid("the request changes the entity more than once")
                planned.pop(entity, None)
                continue
            before = self._metadata.image.client_quotas.get(entity, {})
            after = dict(before)
            results[entity] = _entity_refused(entity) or self._ops_refused(entity, entry.ops, after)
            if results[entity] is None and after != before:
                planned[entity] = after
        if sum(len(quotas) for quotas in planned.values()) > CHANGES_MAX:
            return dict.fromkeys(results, TOO_MANY)
        if planned and not validate_only:
            records = [client_quotas_record(entity, after) for entity, after in planned.items()]
            self._metadata.commit(records, effects)
        return results

    def find(
        self, components: Sequence[Any], *, strict: bool
    ) -> dict[QuotaEntity, Quotas] | Refusal:
        """Return the entities, with their quotas, that have all the components of a filter, and
        nothing else if `strict`."""
        wanted: dict[str, Any] = {}
        for each in components:
            refused = _component_refused(each, wanted)
            if refused is not None:
                return refused
            wanted[each.entity_type] = each
        if IP in wanted and len(wanted) > 1:
            return _invalid("a filter names an ip alone")
        return {
            entity: quotas
            for entity, quotas in self._metadata.image.client_quotas.items()
            if _matches(dict(entity), wanted, strict=strict)
        }

    def _ops_refused(
        self, entity: QuotaEntity, ops: Sequence[Any], quotas: dict[str, float]
    ) -> Refusal | None:
        """Apply the operations to `quotas`; return why they cannot be."""
        keys = [op.key for op in ops]
        if len(set(keys)) < len(keys):
            return _invalid("the request changes a quota of the entity more than once")
        known = OF_ADDRESSES if entity[0][0] == IP else OF_CLIENTS
        for op in ops:
            if op.remove:
                quotas.pop(op.key, None)
                continue
            reason = _value_refused(op.key, op.value, known)
            if reason is not None:
                return _invalid(reason)
            if self._space.is_low:
                return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, NO_FREE_SPACE)
            quotas[op.key] = op.value
        return None


def _invalid(reason: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, reason)


def _entity_refused(entity: QuotaEntity) -> Refusal | None:
    names = dict(entity)
    if not names:
        return _invalid("a quota is for a user, a client-id, both, or an ip")
    for kind, name in entity:
        if kind not in TYPES:
            return _invalid(f"there is no entity of type {kind[:100]!r}")
        if name == "":
            return _invalid(f"the {kind} is empty; the default has no name")
    if IP not in names:
        return None
    if len(names) > 1:
        return _invalid("a quota of an ip is for the ip alone")
    return None if _is_address(names[IP]) else _invalid(f"not an IP address: {names[IP]!r:.100}")


def _is_address(name: str | None) -> bool:
    try:
        return name is None or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _value_refused(key: str, value: float, known: Mapping[str, float | None]) -> str | None:
    if key not in known:
        return f"there is no quota {key[:100]!r} of this entity; there is {', '.join(known)}"
    if not (math.isfinite(value) and value > 0):
        return f"{key} must be a number above 0, not {value}"
    largest = known[key]
    if largest is not None and value > largest:
        return f"{key} can be at most {largest}, not {value}"
    if largest is not None and value % 1 > FRACTION_MAX:
        return f"{key} must be a whole number, not {value}"
    return None


def _component_refused(component: Any, before: Mapping[str, Any]) -> Refusal | None:
    kind, match_type = component.entity_type, component.match_type
    if not kind:
        return _invalid("a component of the filter has no entity type")
    if kind in before:
        return _invalid(f"the filter names the entity type {kind[:100]!r} more than once")
    if kind not in TYPES:
        text = f"there is no entity of type {kind[:100]!r}"
        return Refusal(ErrorCode.UNSUPPORTED_VERSION, text)
    if match_type not in (EXACT, DEFAULT, SPECIFIED):
        return _invalid(f"there is no match type {match_type}")
    if (component.match is None) is (match_type == EXACT):
        return _invalid("only an exact match has a name, and it needs one")
    return None


def _matches(names: Mapping[str, str | None], wanted: Mapping[str, Any], *, strict: bool) -> bool:
    if strict and len(names) != len(wanted):
        return False
    return all(
        kind in names and (each.match_type == SPECIFIED or names[kind] == each.match)
        for kind, each in wanted.items()
    )
