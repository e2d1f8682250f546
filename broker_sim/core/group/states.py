"""The states of a classic group: one table (source: Kafka's `ClassicGroupState`)."""

from __future__ import annotations

import enum


class GroupState(enum.Enum):
    """The value is Kafka's name, as DescribeGroups and ListGroups show it.

    EMPTY: no member; there may be committed offsets.
      a JoinGroup -> PREPARING_REBALANCE (with the initial delay); its last offset expires or it
      is deleted -> gone.
    PREPARING_REBALANCE: JoinGroup is delayed until all members are back or the rebalance timeout;
      heartbeats are answered REBALANCE_IN_PROGRESS, commits of the old generation are accepted.
      all joined -> COMPLETING_REBALANCE; nobody left -> EMPTY.
    COMPLETING_REBALANCE: a generation exists and waits for the leader's assignment; SyncGroup is
      delayed, commits are answered REBALANCE_IN_PROGRESS.
      the assignment is stored -> STABLE; a member joins again, leaves or fails ->
      PREPARING_REBALANCE.
    STABLE: every member has its assignment.
      a member joins with a change, leaves or fails -> PREPARING_REBALANCE.
    DEAD: removed from this coordinator. Shown for groups that do not exist.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_S = GroupState

VALID_PREVIOUS_GROUP_STATES: dict[GroupState, frozenset[GroupState]] = {
    _S.EMPTY: frozenset({_S.PREPARING_REBALANCE}),
    _S.PREPARING_REBALANCE: frozenset({_S.STABLE, _S.COMPLETING_REBALANCE, _S.EMPTY}),
    _S.COMPLETING_REBALANCE: frozenset({_S.PREPARING_REBALANCE}),
    _S.STABLE: frozenset({_S.COMPLETING_REBALANCE}),
    _S.DEAD: frozenset(
        {_S.STABLE, _S.PREPARING_REBALANCE, _S.COMPLETING_REBALANCE, _S.EMPTY, _S.DEAD}
    ),
}
