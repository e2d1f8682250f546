"""Bugs of consumer groups (KIP-848), planted in one broker (see `one_planted`)."""

from __future__ import annotations

import dataclasses
from typing import Any

from broker_sim.core.group import consumer_changes, offset_refusals, offset_requests
from broker_sim.core.group.consumer_group import ConsumerGroup
from broker_sim.core.group.consumer_records import ConsumerGroupRecord, RecordKind
from broker_sim.core.group.consumer_sessions import ConsumerSessions
from planted.one_planted import Broken, in_one_broker
from simulation.world import Plant
from txnlog_kafka.wire.error_codes import ErrorCode


def _no_error(_: Broken, *__: object, **___: object) -> ErrorCode:
    """Take every commit."""
    return ErrorCode.NONE


def _always_free(_: Broken, *__: object) -> bool:
    """A partition goes to its next member before the former one has given it up."""
    return True


def _never_missed(_: Broken, *__: object) -> None:
    """A member whose session is over stays."""


def _one_partition_forgotten(assign: Broken, change: Any, *args: Any) -> Any:
    """The target of the first member lacks a partition."""
    before = len(change.records)
    found = assign(change, *args)
    for record in change.records[before:]:
        value = record.value
        if record.kind is RecordKind.TARGET and value is not None and value.partitions:
            topic_id = min(value.partitions)
            less = frozenset(sorted(value.partitions[topic_id])[1:])
            partitions = {**value.partitions, topic_id: less}
            change.add(record.kind, record.name, dataclasses.replace(value, partitions=partitions))
            break
    return found


def _target_of_another(give: Broken, current: Any, goal: Any) -> Any:
    """A member is given partition 0 of its topics, too, whatever its target says."""
    partitions = {topic_id: goal.partitions[topic_id] | {0} for topic_id in goal.partitions}
    return give(current, dataclasses.replace(goal, partitions=partitions, is_free=_any))


def _any(*_: object) -> bool:
    return True


def _assignments_forgotten(apply: Broken, group: ConsumerGroup, record: ConsumerGroupRecord) -> Any:
    """A record of a current assignment has no effect."""
    return None if record.kind is RecordKind.CURRENT else apply(group, record)


def _stays(_: Broken, *__: object, **___: object) -> None:
    """A member that leaves, or is missed, is removed when the next coordinator loads the group."""


GROUP_PLANTS: dict[str, Plant] = {
    "member-epochs-ignored-by-commits": in_one_broker(
        (offset_refusals, "_refuse_epoch", _no_error)
    ),
    "partition-given-before-it-is-free": in_one_broker((ConsumerGroup, "is_free", _always_free)),
    "members-never-missed": in_one_broker((ConsumerSessions, "_expire", _never_missed)),
    "target-lacks-a-partition": in_one_broker(
        (consumer_changes, "_update_target", _one_partition_forgotten)
    ),
    "partition-0-given-to-all": in_one_broker((consumer_changes, "reconcile", _target_of_another)),
    "assignments-not-replayed": in_one_broker((ConsumerGroup, "apply", _assignments_forgotten)),
    "member-epochs-ignored-by-transactions": in_one_broker(
        (offset_requests, "refuse_txn_commit", _no_error)
    ),
    "sessions-not-started-at-load": in_one_broker((ConsumerSessions, "start", _never_missed)),
    "members-never-removed": in_one_broker((ConsumerSessions, "remove", _stays)),
}
"""Plants by name, for scenarios with such a group."""
