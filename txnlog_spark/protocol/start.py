"""May this query begin where it begins, and commit these offsets for this group?

Checked after a takeover, when nobody else can move the group under the query's transactional id.
"""

from __future__ import annotations

from collections.abc import Mapping

from txnlog_spark.errors import GroupHasOffsets, WrongCluster
from txnlog_spark.protocol.cluster import confirm_missing
from txnlog_spark.protocol.effects import Operation
from txnlog_spark.protocol.offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    fetch_committed,
    list_offsets,
)
from txnlog_spark.protocol.progress import check_expected, group_digest
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.values import CommitPlan, Partition, Progress

_SHOWN_MAX = 5


def check_start(session: Session, plan: CommitPlan, found: Progress | None) -> Operation[None]:
    """Compare what the query starts from with its group, and its offsets with this cluster's logs.

    Raises CommittedOffsetsMoved, GroupHasOffsets, WrongCluster.
    """
    for expected in plan.expected:
        committed = yield from fetch_committed(
            session, expected.group_id, partitions=expected.committed
        )
        check_expected(plan, expected, {p: c.committed_offset for p, c in committed.items()})
    if plan.group_id is None or not plan.is_stream:
        return
    if found is None or found.group_digest != group_digest(plan.group_id):
        for offsets in plan.foreign_sources:
            yield from _check_of_this_cluster(session, plan, offsets)
    is_new = found is None and not plan.must_exist and plan.batch_id == 0
    if is_new and not plan.overwrite_group:
        yield from _check_group_is_unused(session, plan, plan.group_id)


def _check_group_is_unused(session: Session, plan: CommitPlan, group_id: str) -> Operation[None]:
    """Refuse a new query that begins elsewhere than where its group has come to.

    Who has read a topic to its end with a group and starts with `earliest` and an empty checkpoint
    would write all of it again. A committed offset at the log start says that nothing was read, and
    one at the end of an empty batch that the query begins just there.
    """
    checked = [e.committed for e in plan.expected]
    unchecked = [p for p in plan.source_offsets if not any(p in c for c in checked)]
    if not unchecked:
        return
    committed = yield from fetch_committed(session, group_id, partitions=unchecked)
    stand = {p: committed[p].committed_offset for p in unchecked if p in committed}
    if not plan.staged:
        stand = {p: offset for p, offset in stand.items() if offset != plan.source_offsets[p]}
    if not stand:
        return
    specs = dict.fromkeys(stand, EARLIEST_TIMESTAMP)
    starts = yield from list_offsets(session, specs, read_committed=False)
    elsewhere = {p: offset for p, offset in stand.items() if offset != starts[p].offset}
    if elsewhere:
        raise GroupHasOffsets(
            f"query {plan.query_id} is new, and its group {group_id!r} has committed offsets: "
            f"{_shown(elsewhere)}. The query does not begin there, so it may write again what is "
            "in the output already, or leave records out. Nothing was written. To go on from the "
            "committed offsets (such as after a lost checkpoint), start with a new, empty "
            "checkpoint and startingOffsets=committed. To begin elsewhere on purpose, set the "
            "writer's option overwriteGroupOffsets=true, or use another kafka.group.id"
        )


def _check_of_this_cluster(
    session: Session, plan: CommitPlan, offsets: Mapping[Partition, int]
) -> Operation[None]:
    """Refuse offsets that look like Kafka's and cannot be positions in this cluster's logs.

    Spark's own Kafka source does not say which cluster it reads, and other systems' connectors
    write offsets of the same shape (Azure Event Hubs).
    """
    missing = yield from confirm_missing(session, offsets)
    known = [p for p in offsets if p not in missing]
    if offsets and not known:
        raise WrongCluster(_wrong_cluster(plan, f"{_shown(offsets)} do not exist there"))
    specs = dict.fromkeys(known, LATEST_TIMESTAMP)
    ends = yield from list_offsets(session, specs, read_committed=False)
    beyond = {p: offsets[p] for p in known if offsets[p] > ends[p].offset}
    if beyond:
        raise WrongCluster(_wrong_cluster(plan, f"its logs end before {_shown(beyond)}"))


def _wrong_cluster(plan: CommitPlan, reason: str) -> str:
    return (
        f"query {plan.query_id} has kafka.group.id={plan.group_id!r}, but a source's offsets are "
        f"not positions in the cluster that the sink writes to ({reason}). Offsets are committed "
        "for a group on one cluster only, in the transaction of the output. Nothing was written. "
        "Remove kafka.group.id from the writer: the query stays exactly-once by its checkpoint"
    )


def _shown(offsets: Mapping[Partition, int]) -> str:
    shown = [f"{topic}-{number} at {at}" for (topic, number), at in sorted(offsets.items())]
    more = len(shown) - _SHOWN_MAX
    return ", ".join(shown[:_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
