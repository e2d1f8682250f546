"""Changes of the users that log in by SCRAM (source: Kafka's `ScramControlManager`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from broker_sim.core.controller import Metadata
from broker_sim.core.controller.credentials import ScramCredential, ScramMechanism
from broker_sim.core.controller.image import MetadataRecord
from broker_sim.core.controller.metadata_records import scram_record, scram_removed_record
from broker_sim.core.effects import Effects
from broker_sim.core.free_space import NO_FREE_SPACE, FreeSpace
from txnlog_kafka.wire.error_codes import ErrorCode

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
CHANGES_MAX = 10_000
"""Changes of users or of ACLs in a request (Kafka's `MAX_RECORDS_PER_USER_OP`)."""
_MECHANISMS = frozenset(map(int, ScramMechanism))


class Refusal(NamedTuple):
    """Why a user was not changed."""

    error: ErrorCode
    message: str


TOO_MANY = Refusal(ErrorCode.POLICY_VIOLATION, f"over {CHANGES_MAX} changes in one request")


class ScramAdmin:
    """Adds, changes and removes credentials."""

    def __init__(self, metadata: Metadata, space: FreeSpace) -> None:
        self._metadata = metadata
        self._space = space

    def alter(
        self, deletions: Sequence[Any], upsertions: Sequence[Any], effects: Effects
    ) -> dict[str, Refusal | None]:
        """Each user on its own, and only once: by name, why it was not changed, or None."""
        results: dict[str, Refusal | None] = {}
        planned: dict[str, MetadataRecord] = {}
        changes = [(each, False) for each in deletions] + [(each, True) for each in upsertions]
        for change, adds in changes:
            name = change.name
            if name in results:
                if results[name] is None:
                    text = "the request changes the user more than once"
                    results[name] = Refusal(ErrorCode.DUPLICATE_RESOURCE, text)
                    del planned[name]
                continue
            results[name] = self._refused(change, adds=adds)
            if results[name] is None:
                planned[name] = _record(change, adds=adds)
        if len(planned) > CHANGES_MAX:
            return dict.fromkeys(results, TOO_MANY)
        if planned:
            self._metadata.commit(list(planned.values()), effects)
        return results

    def describe(self, users: Sequence[str]) -> dict[str, dict[ScramMechanism, int]]:
        """Iterations by mechanism of each of these users, of all for no names."""
        found: dict[str, dict[ScramMechanism, int]] = {name: {} for name in users}
        for (name, mechanism), credential in self._metadata.image.scram_credentials.items():
            if not users or name in found:
                found.setdefault(name, {})[mechanism] = credential.iterations
        return found

    def _refused(self, change: Any, *, adds: bool) -> Refusal | None:
        if not change.name:
            return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "a user has a name")
        if change.mechanism not in _MECHANISMS:
            text = f"there is no SCRAM mechanism {change.mechanism}"
            return Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, text)
        if not adds:
            known = self._metadata.image.scram_credentials
            if (change.name, ScramMechanism(change.mechanism)) in known:
                return None
            return Refusal(ErrorCode.RESOURCE_NOT_FOUND, "the user has no such credential")
        if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
            text = f"iterations must be between {ITERATIONS_MIN} and {ITERATIONS_MAX}"
            return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
        if self._space.is_low:
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, NO_FREE_SPACE)
        return None


def _record(change: Any, *, adds: bool) -> Mapping[str, Any]:
    mechanism = ScramMechanism(change.mechanism)
    if not adds:
        return scram_removed_record(change.name, mechanism)
    credential = ScramCredential.of_salted_password(
        mechanism, bytes(change.salted_password), bytes(change.salt), change.iterations
    )
    return scram_record(change.name, mechanism, credential)
