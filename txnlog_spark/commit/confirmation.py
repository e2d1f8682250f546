"""Whether the offsets that a batch is judged by are those that are committed.

Theory of operation. A group coordinator that was paused, or that other brokers cannot reach,
answers OffsetFetch from its memory until it learns that there is another one: a read needs no
quorum. What it says may be behind. TxnOffsetCommit is answered when it is replicated: who answers
it is the coordinator, and has all that was committed before. So what a judgement rests on is read
again after TxnOffsetCommit, not stable, which leaves out the transaction's own offsets; when it is
not the same, the transaction is aborted and the batch is judged again, by what the coordinator
says.

A batch that is to be done has its TxnOffsetCommit, and is confirmed before EndTxn. A batch that is
refused has none: a person would be asked to look for what never happened. So its transaction is
begun and aborted, without records.

Where a batch is skipped nothing is confirmed: progress that is visible is committed.
"""

from __future__ import annotations

from txnlog_spark.commit.attempt import (
    TransactionTry,
    add_groups,
    begin_transaction,
    commit_batch_offsets,
)
from txnlog_spark.commit.facts import committed_offsets, visible_progress
from txnlog_spark.commit.judgement import Facts, Verdict, judge
from txnlog_spark.commit.plan import CommitPlan, Progress
from txnlog_spark.errors import AbortableError, ProgressError
from txnlog_spark.protocol.effects import Operation
from txnlog_spark.protocol.metadata import confirm_missing
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.together import side_by_side
from txnlog_spark.protocol.values import ProducerIdentity
from txnlog_spark.wire.errors import ErrorCode


def confirm(session: Session, plan: CommitPlan, judged: Facts) -> Operation[None]:
    """After TxnOffsetCommit: progress and offsets are what the batch was judged by.

    Raises AbortableError: the batch has to be judged again.
    """
    asked = judged.asked
    kinds = [(plan.group_id, asked.group, judged.group)] if asked.group else []
    for expected, committed in zip(asked.expected, judged.expected, strict=True):
        kinds.append((expected.group_id, frozenset(expected.committed), committed))
    found, *groups = yield from side_by_side(
        session.monotonic_ms,
        visible_progress(session, plan),
        *(
            committed_offsets(session, group_id, partitions, require_stable=False)
            for group_id, partitions, _ in kinds
        ),
    )
    if found != judged.progress:
        raise _of_a_former_coordinator(
            f"the progress in group {plan.who.progress_group_id} is {_shown(found)}, and was "
            f"{_shown(judged.progress)} when {plan.name} was begun"
        )
    for (group_id, partitions, before), now in zip(kinds, groups, strict=True):
        if any(now.get(p) != before.get(p) for p in partitions):
            raise _of_a_former_coordinator(
                f"the offsets of group {group_id} are not those that {plan.name} was judged by"
            )


def _of_a_former_coordinator(text: str) -> AbortableError:
    return AbortableError(
        ErrorCode.NOT_COORDINATOR, f"{text}: a former coordinator of the group has answered"
    )


def _shown(progress: Progress | None) -> str:
    return "nothing" if progress is None else f"batch {progress.next_batch_id - 1}"


def judge_for_certain(
    session: Session, attempt: TransactionTry, facts: Facts, identity: ProducerIdentity
) -> Operation[Verdict]:
    """What was asked one after the other may contradict itself when another driver took over, or a
    former coordinator has answered.

    Then the truth is ProducerFenced, or AbortableError, and not that a person has to look
    (ProgressError).
    """
    plan = attempt.plan
    try:
        return judge(plan, facts)
    except ProgressError:
        if (yield from confirm_missing(session, [plan.who.place])):
            raise  # nothing can be committed for it
        transaction = begin_transaction(session, attempt, identity)
        yield from add_groups(session, attempt, transaction)
        yield from commit_batch_offsets(session, attempt, transaction)
        yield from confirm(session, plan, facts)
        raise
