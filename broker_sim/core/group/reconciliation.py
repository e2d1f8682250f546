"""Reconciliation of one member: revoke first, then assign what other members have given up.

Rules for this file: pure functions. Source: Kafka's `CurrentAssignmentBuilder`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from broker_sim.core.group.consumer_records import Current, EpochPartitions, MemberState, Partitions

_S = MemberState


@dataclass(frozen=True, slots=True)
class Goal:
    """The member's target, and what the coordinator knows besides.

    `is_free` tells if no member owns a partition. `owned` are the partitions that the member's
    heartbeat reports; None if it reports none. `subscribed` are the topics that the member reads.
    """

    epoch: int
    partitions: Partitions
    is_free: Callable[[uuid.UUID, int], bool]
    owned: Partitions | None
    subscribed: Collection[uuid.UUID]
    subscription_changed: bool = False


def is_reconciled(current: Current, target_epoch: int) -> bool:
    """True if the member has all of the target assignment of this epoch."""
    return current.state is _S.STABLE and current.epoch == target_epoch


def reconcile(current: Current, goal: Goal) -> Current:
    """Return the member's next state; `current` itself if it must wait."""
    if current.state is _S.STABLE and current.epoch == goal.epoch:
        return _drop_unsubscribed(current, goal) if goal.subscription_changed else current
    if current.state is _S.UNREVOKED and _owns_any(goal.owned, current.pending_revocation):
        return _drop_unsubscribed(current, goal) if goal.subscription_changed else current
    if current.state is _S.UNKNOWN:
        # The member abandons all partitions when it is fenced, and joins again.
        return _advance_assignment(replace(current, epoch=goal.epoch), goal)
    return _advance_assignment(current, goal)


def _owns_any(owned: Partitions | None, asked: EpochPartitions) -> bool:
    """True if the member still owns some partition, or does not say what it owns."""
    if owned is None:
        return True
    return any(owned[topic_id] & asked.get(topic_id, {}).keys() for topic_id in owned)


def _drop_unsubscribed(current: Current, goal: Goal) -> Current:
    """Take away partitions of topics that the member no longer reads, and nothing else."""
    dropped = {each for each in current.assigned if each not in goal.subscribed}
    if not dropped:
        return current
    assigned = {key: value for key, value in current.assigned.items() if key not in dropped}
    pending: dict[uuid.UUID, Mapping[int, int]] = dict(current.pending_revocation)
    for topic_id in dropped:
        pending[topic_id] = {**pending.get(topic_id, {}), **current.assigned[topic_id]}
    following = replace(current, previous_epoch=current.epoch, assigned=assigned)
    if _owns_any(goal.owned, pending):
        return replace(following, state=_S.UNREVOKED, pending_revocation=pending)
    return following


def _advance_assignment(current: Current, goal: Goal) -> Current:
    """Compute assigned, pending and unreleased partitions again from the target."""
    assigned: dict[uuid.UUID, dict[int, int]] = {}
    revoked: dict[uuid.UUID, dict[int, int]] = {}
    arriving: dict[uuid.UUID, set[int]] = {}
    has_unreleased = False
    for topic_id in sorted({*goal.partitions, *current.assigned}):
        wanted = goal.partitions.get(topic_id, frozenset())
        if topic_id not in goal.subscribed:
            wanted = frozenset()
        present = current.assigned.get(topic_id, {})
        _put(assigned, topic_id, {each: present[each] for each in present if each in wanted})
        _put(revoked, topic_id, {each: present[each] for each in present if each not in wanted})
        # The member itself may own a partition that it was asked to revoke.
        own = current.pending_revocation.get(topic_id, {})
        missing = wanted - present.keys()
        free = {each for each in missing if each in own or goal.is_free(topic_id, each)}
        has_unreleased = has_unreleased or free != missing
        if free:
            arriving[topic_id] = free
    if revoked and _owns_any(goal.owned, revoked):
        return Current(current.epoch, current.epoch, _S.UNREVOKED, assigned, revoked)
    for topic_id, free in arriving.items():
        assigned[topic_id] = assigned.get(topic_id, {}) | dict.fromkeys(sorted(free), goal.epoch)
    state = _S.UNRELEASED if has_unreleased else _S.STABLE
    return Current(goal.epoch, current.epoch, state, assigned, {})


def _put(
    found: dict[uuid.UUID, dict[int, int]], topic_id: uuid.UUID, partitions: dict[int, int]
) -> None:
    if partitions:
        found[topic_id] = partitions
