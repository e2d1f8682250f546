"""Whether the offsets that a batch is judged by are those that are committed.

A group coordinator that was paused answers OffsetFetch from its memory, TxnOffsetCommit only when
it does coordinate the group. So what a judgement rests on is read again behind it, not stable,
which leaves out the transaction's own offsets ("A former group coordinator" in
docs/internals/commit-protocol.md). A batch that is refused has no TxnOffsetCommit, so its
transaction is begun and aborted, without records. Where a batch is skipped nothing is confirmed:
progress that is visible is committed.
"""

from __future__ import annotations

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.metadata import confirm_missing
from txnlog_kafka.operations.offsets import fetch_committed
from txnlog_kafka.operations.operation_group import side_by_side
from txnlog_kafka.operations.producer import ProducerIdentity
from txnlog_kafka.operations.session import Session
from txnlog_kafka.operations.transaction import OffsetsCommitted
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_spark.commit.attempt import (
    TransactionTry,
    add_groups,
    begin_transaction,
    commit_batch_offsets,
)
from txnlog_spark.commit.judgement import Decision, judge
from txnlog_spark.commit.plan import CommitPlan, Evidence, Progress
from txnlog_spark.commit.progress import newest_progress
from txnlog_spark.errors import AbortableError, ProgressError


def confirm(
    session: Session, plan: CommitPlan, judged: Evidence, done: OffsetsCommitted
) -> Operation[None]:
    """After TxnOffsetCommit: progress and offsets are what the batch was judged by.

    Raises AbortableError: the batch has to be judged again.
    """
    progress_group_id, group_id = plan.committer.progress_group_id, plan.group_id
    names = [progress_group_id]
    if group_id is not None and plan.committer.is_query:
        names.append(group_id)
    unread = [name for name in names if name not in done.behind]
    read = yield from side_by_side(
        session.monotonic_ms,
        *(fetch_committed(session, name, require_stable=False) for name in unread),
    )
    groups = {**done.behind, **dict(zip(unread, read, strict=True))}
    found = newest_progress(plan.committer.output.query_id, groups[progress_group_id].values())
    if found != judged.progress:
        raise _of_a_former_coordinator(
            f"the progress in group {progress_group_id} is {_shown(found)}, and was "
            f"{_shown(judged.progress)} when {plan.name} was begun"
        )
    for name in names[1:]:
        now = {p: each.committed_offset for p, each in groups[name].items()}
        if any(now.get(p) != judged.group.get(p) for p in plan.batch.source_offsets):
            raise _of_a_former_coordinator(
                f"the offsets of group {name} are not those that {plan.name} was judged by"
            )


def _of_a_former_coordinator(text: str) -> AbortableError:
    return AbortableError(
        ErrorCode.NOT_COORDINATOR, f"{text}: a former coordinator of the group has answered"
    )


def _shown(progress: Progress | None) -> str:
    return "nothing" if progress is None else f"batch {progress.next_batch_id - 1}"


def judge_for_certain(
    session: Session, attempt: TransactionTry, facts: Evidence, identity: ProducerIdentity
) -> Operation[Decision]:
    """What was asked one after the other may contradict itself when another driver took over, or a
    former coordinator has answered.

    Then the truth is ProducerFenced, or AbortableError, and not that a person has to look
    (ProgressError).
    """
    plan = attempt.plan
    try:
        return judge(plan, facts)
    except ProgressError:
        if (yield from confirm_missing(session, [plan.place])):
            raise  # nothing can be committed for it
        transaction = begin_transaction(session, attempt, identity)
        yield from add_groups(session, attempt, transaction)
        done = yield from commit_batch_offsets(session, attempt, transaction)
        yield from confirm(session, plan, facts, done)
        raise
