"""The commit of a batch write: all of it or nothing, and no checkpoint to remember it by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from txnlog_spark.commit.micro_batch import commit_micro_batch
from txnlog_spark.commit.placement import choose_partition
from txnlog_spark.commit.plan import CommitOptions, CommitOutcome, CommitPlan
from txnlog_spark.errors import CommitStateUnknown, TxnLogError
from txnlog_spark.protocol.admin import delete_group
from txnlog_spark.protocol.effects import Operation
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.values import StagedPartition
from txnlog_spark.wire.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class BatchWrite:
    """One batch write; `app_id` and `version` are its txnAppId and txnVersion, None and 0 without.

    `source_offsets` are committed for the options' group.
    """

    write_id: str
    options: CommitOptions
    staged: Sequence[StagedPartition]
    app_id: str | None = None
    version: int = 0
    source_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


def commit_write(session: Session, write: BatchWrite) -> Operation[CommitOutcome]:
    """Commit the write as one transaction.

    With a txnAppId a write whose version is at or below the last committed one of the application
    is skipped, so that it can be run again. Without one, running the job again writes the rows
    again, and the progress that tells what became of it goes at the end. Raises what the brokers
    refuse; CommitStateUnknown only when asking again did not help.
    """
    plan = yield from _plan(session, write)
    outcome = yield from _commit(session, plan, write.app_id)
    if write.app_id is not None:
        if outcome.skipped:
            session.notice(
                f"the write with txnAppId={write.app_id} and txnVersion={plan.batch_id} was "
                f"skipped: version {outcome.progress.next_batch_id - 1} is committed"
            )
        return outcome
    try:
        yield from delete_group(session, plan.progress_group_id, missing_ok=True)
    except TxnLogError as error:
        # An error here would say that the write failed, and running it again would double it.
        session.notice(
            f"the write is committed; only its group {plan.progress_group_id} could not be "
            f"deleted, and expires by itself (offsets.retention.minutes): {error}"
        )
    return outcome


def _plan(session: Session, write: BatchWrite) -> Operation[CommitPlan]:
    options, app_id, offsets = write.options, write.app_id, write.source_offsets
    place = yield from choose_partition(session, offsets, write.staged, options.topic)
    if app_id is None:
        name, named = write.write_id, write.write_id
        progress_group_id = options.progress_group_of(write.write_id)
    else:
        name, named = f"txnAppId:{app_id}", f"app-{app_id}"
        progress_group_id = f"{app_id}.progress"
    return CommitPlan(
        query_id=name,
        run_id=write.write_id,
        batch_id=write.version if app_id is not None else 0,
        transactional_id=options.transactional_id_of_write(named),
        progress_group_id=progress_group_id,
        progress_partition=place,
        staged=write.staged,
        group_id=options.group_id,
        source_offsets=offsets,
        must_exist=False,
        is_stream=False,
        transaction_timeout_ms=options.transaction_timeout_ms,
        produce_request_bytes=options.produce_request_bytes,
    )


def _commit(session: Session, plan: CommitPlan, app_id: str | None) -> Operation[CommitOutcome]:
    """Commit, and find out at once what became of a commit without an answer.

    A later job could not: the progress that tells lies under the write's own name, which ends here.
    """
    try:
        return (yield from commit_micro_batch(session, None, plan))
    except CommitStateUnknown as error:
        session.notice(f"asking whether the write is committed: {error}")
    try:
        return (yield from commit_micro_batch(session, None, plan))
    except TxnLogError as error:
        raise CommitStateUnknown(
            f"whether the rows of this batch write are in the output is unknown: EndTxn(commit) of "
            f"transactional id {plan.transactional_id!r} had no answer, and asking again failed "
            f"({error}). {_advice(plan, app_id)}",
            transactional_id=plan.transactional_id,
            batch_id=plan.batch_id,
        ) from error


def _advice(plan: CommitPlan, app_id: str | None) -> str:
    """How a person finds out; an application's group has the offset of an earlier write, too."""
    if app_id is not None:
        return (
            f"Run the write again with txnAppId={app_id} and txnVersion={plan.batch_id}: if its "
            "rows are in the output it is skipped"
        )
    return (
        "When no transaction of that id is open any more (at the latest after its timeout of "
        f"{plan.transaction_timeout_ms} ms), look at group {plan.progress_group_id!r}: with a "
        "committed offset the rows are in the output; without one they are not, and the write is "
        "to be run again"
    )
