"""Refusals of offset commits: by the group, the member and its generation or epoch.

The checks are in Kafka's order (`ClassicGroup.validateOffsetCommit`, `ConsumerGroup.validate-
OffsetCommit`): a client gets the first error of several.
"""

from __future__ import annotations

from broker_sim.core.group.classic_group import ClassicGroup
from broker_sim.core.group.consumer_group import ConsumerGroup
from broker_sim.core.group.requests import OffsetCommit, TxnOffsetCommit
from broker_sim.core.group.shard import AnyGroup
from broker_sim.core.group.states import GroupState
from txnlog_kafka.wire.error_codes import ErrorCode

_S = GroupState
_E = ErrorCode


def refuse_commit(group: AnyGroup | None, request: OffsetCommit) -> ErrorCode:
    """Return the error that refuses a plain commit, NONE if it may be made."""
    if isinstance(group, ConsumerGroup):
        return _refuse_epoch(group, request, is_transactional=False)
    if group is None:
        return _refuse_unknown_group(request)
    if request.generation_id < 0 and group.is_in(_S.EMPTY):
        return _E.NONE
    if _names_member(request):
        error = _refuse_member(group, request)
        if error is not _E.NONE:
            return error
    elif not group.is_in(_S.EMPTY):
        # A committer that is not a member must not write over a living group's offsets.
        return _E.UNKNOWN_MEMBER_ID
    if group.is_in(_S.COMPLETING_REBALANCE):
        return _E.REBALANCE_IN_PROGRESS
    return _E.NONE


def refuse_txn_commit(group: AnyGroup | None, request: TxnOffsetCommit) -> ErrorCode:
    """Return the error that refuses a transactional commit. Old versions without a member pass."""
    if isinstance(group, ConsumerGroup):
        error = _refuse_epoch(group, request, is_transactional=True)
        if error is _E.STALE_MEMBER_EPOCH and not request.knows_group_id_not_found:
            return _E.ILLEGAL_GENERATION  # versions before 6 do not know the other error
        return error
    if group is None:
        return _refuse_unknown_group(request)
    if request.generation_id < 0 and group.is_in(_S.EMPTY):
        return _E.NONE
    return _refuse_member(group, request) if _names_member(request) else _E.NONE


def _refuse_unknown_group(request: OffsetCommit | TxnOffsetCommit) -> ErrorCode:
    if request.generation_id < 0:
        return _E.NONE
    return _E.GROUP_ID_NOT_FOUND if request.knows_group_id_not_found else _E.ILLEGAL_GENERATION


def _refuse_epoch(
    group: ConsumerGroup, request: OffsetCommit | TxnOffsetCommit, *, is_transactional: bool
) -> ErrorCode:
    """Compare the member's epoch; an older epoch passes for partitions that it had then."""
    member_id, epoch = request.member_id, request.generation_id
    if epoch < 0 and group.is_empty:
        return _E.NONE
    if is_transactional and not _names_member(request):
        return _E.NONE
    member = group.members.get(member_id)
    if member is None:
        return _E.UNKNOWN_MEMBER_ID
    is_old = isinstance(request, OffsetCommit) and not request.knows_group_id_not_found
    if is_old and not member.is_classic:
        return _E.UNSUPPORTED_VERSION
    return group.refuse_commit(
        member_id, epoch, [(each.topic_id, each.partition) for each in request.offsets]
    )


def _names_member(request: OffsetCommit | TxnOffsetCommit) -> bool:
    return (
        request.generation_id >= 0
        or bool(request.member_id)
        or request.group_instance_id is not None
    )


def _refuse_member(group: ClassicGroup, request: OffsetCommit | TxnOffsetCommit) -> ErrorCode:
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is _E.NONE and request.generation_id != group.generation_id:
        return _E.ILLEGAL_GENERATION
    return error
