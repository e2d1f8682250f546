"""The commit of a batch write: all rows or none, without a checkpoint that remembers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from txnlog_kafka.operations.admin import delete_group
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.metadata import require_cluster
from txnlog_kafka.operations.producer import StagedChunk
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.micro_batch import commit_batch
from txnlog_spark.commit.output import (
    Output,
    app_progress_group,
    app_transactional_id,
    readable_app_progress_group,
)
from txnlog_spark.commit.plan import Batch, CommitOptions, CommitOutcome, CommitPlan, Committer
from txnlog_spark.commit.progress import fetch_progress
from txnlog_spark.errors import CommitStateUnknown, TxnLogError

ANY_TOPIC = "*"
"""Stands for the topic if each row names its own topic; no Kafka topic can have this name."""


@dataclass(frozen=True, slots=True)
class BatchWrite:
    """Batch write. `app_id` and `version` are its txnAppId and txnVersion, None and 0 without.

    `source_offsets` are committed for the options' group. As in Delta Lake, an application's
    versions count separately for each target: for each topic, and for writes with a topic column.
    """

    write_id: str
    options: CommitOptions
    staged: Sequence[StagedChunk]
    app_id: str | None = None
    version: int = 0
    source_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


def commit_write(session: Session, write: BatchWrite) -> Operation[CommitOutcome]:
    """Commit the write as one transaction.

    With a txnAppId, a write is skipped if its version is at or below the last committed version.
    Raises the brokers' refusals, and CommitStateUnknown only if asking again did not help.
    """
    yield from require_cluster(session)
    plan = yield from _plan(session, write)
    outcome = yield from _commit(session, plan, write.app_id)
    if write.app_id is not None:
        if outcome.skipped:
            topic, last = write.options.topic, outcome.progress.next_batch_id - 1
            session.notice(
                f"the write with txnAppId={write.app_id} and txnVersion={write.version} to "
                f"{f'topic {topic}' if topic else 'the topics of its rows'} was skipped: version "
                f"{last} is committed"
            )
        return outcome
    try:
        yield from delete_group(session, plan.committer.progress_group_id, missing_ok=True)
    except TxnLogError as error:
        # An error here would say that the write failed, and running it again would double it.
        session.notice(
            f"the write is committed; only its group {plan.committer.progress_group_id} could not "
            f"be deleted, and expires by itself (offsets.retention.minutes): {error}"
        )
    return outcome


def _plan(session: Session, write: BatchWrite) -> Operation[CommitPlan]:
    options, app_id = write.options, write.app_id
    target = options.topic or ""
    if app_id is None:
        name = write.write_id
        transactional_id = options.transactional_id_of_write(write.write_id)
        progress_group_id = options.progress_group_of(write.write_id)
    else:
        name = f"txnAppId:{app_id}"
        made = app_transactional_id(app_id, target or ANY_TOPIC)
        transactional_id = options.transactional_id or made
        progress_group_id = yield from _app_progress_group(session, write, app_id, name)
    committer = Committer(
        output=Output(name, target=target, cluster_id=session.cluster.cluster_id or ""),
        run_id=write.write_id,
        transactional_id=transactional_id,
        progress_group_id=progress_group_id,
        options=options,
    )
    version = 0 if app_id is None else write.version
    return CommitPlan(committer, Batch(version, write.staged, write.source_offsets))


def _app_progress_group(
    session: Session, write: BatchWrite, app_id: str, name: str
) -> Operation[str]:
    """Return the group of the application's progress: version 0.1.0's name if progress is there."""
    topic, target = write.options.topic, write.options.topic or ANY_TOPIC
    made = app_progress_group(app_id, target)
    former = readable_app_progress_group(app_id, target)
    if made == former:
        return made
    # The progress may lie on any of these, even for a write that is undecided (`place_progress`).
    places = [*write.source_offsets, *([TopicPartition(topic, 0)] if topic else [])]
    found = yield from fetch_progress(session, former, name, partitions=places)
    return made if found is None else former


def _commit(session: Session, plan: CommitPlan, app_id: str | None) -> Operation[CommitOutcome]:
    """Commit the write. Without an answer, ask at once for the outcome: no later job can."""
    try:
        return (yield from commit_batch(session, plan))
    except CommitStateUnknown as error:
        session.notice(f"asking whether the write is committed: {error}")
    try:
        return (yield from commit_batch(session, plan))
    except TxnLogError as error:
        raise CommitStateUnknown(
            f"whether the rows of this batch write are in the output is unknown: EndTxn(commit) of "
            f"transactional id {plan.committer.transactional_id!r} had no answer, and asking again "
            f"failed ({error.text}). {_advice(plan, app_id)}",
            transactional_id=plan.committer.transactional_id,
            batch_id=plan.batch.batch_id,
        ) from error


def _advice(plan: CommitPlan, app_id: str | None) -> str:
    if app_id is not None:
        return (
            f"Run the write again with txnAppId={app_id} and txnVersion={plan.batch.batch_id}: if "
            "its rows are in the output it is skipped"
        )
    committer = plan.committer
    return (
        "When no transaction of that id is open any more (at the latest after its timeout of "
        f"{committer.options.transaction_timeout_ms} ms), look at group "
        f"{committer.progress_group_id!r}: with a committed offset the rows are in the output; "
        "without one they are not, and the write is to be run again"
    )
