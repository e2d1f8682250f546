"""Setting a query's progress: one transaction without records, under the query's own id.

A person says that all batches up to the plan's are in the output. The progress is committed as a
batch of that id would commit it, and never decreases.
"""

from __future__ import annotations

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.metadata import require_cluster, require_leaders
from txnlog_kafka.operations.session import Session
from txnlog_kafka.operations.transaction import (
    abort_transaction,
    commit_transaction,
    transaction_version,
)
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.attempt import (
    TransactionTry,
    add_groups,
    begin_transaction,
    commit_batch_offsets,
    initialise,
)
from txnlog_spark.commit.facts import stable_progress, visible_progress
from txnlog_spark.commit.plan import CommitPlan, Progress
from txnlog_spark.errors import ProgressError, TxnLogError


def set_progress(
    session: Session, planned: CommitPlan, place: TopicPartition
) -> Operation[frozenset[TopicPartition]]:
    """Commit progress at `place`, and the group's offsets, as after the plan's batch.

    Partitions that no longer exist are left out and returned. Raises ProgressError if the brokers
    have later progress, and the errors of a commit.
    """
    yield from require_cluster(session)
    version = yield from transaction_version(session, planned.committer.transactional_id)
    plan = planned.located(place, version)
    attempt = TransactionTry(plan)
    identity = yield from initialise(session, plan)
    check_forward(plan, (yield from stable_progress(session, plan)))
    yield from require_leaders(session, [plan.place])
    transaction = begin_transaction(session, attempt, identity)
    try:
        yield from add_groups(session, attempt, transaction)
        yield from commit_batch_offsets(session, attempt, transaction)
        # Ask the broker that has just answered: the one asked before may coordinate no longer.
        check_forward(plan, (yield from visible_progress(session, plan)))
    except TxnLogError:
        yield from abort_transaction(session, transaction)
        raise
    yield from commit_transaction(session, transaction, batch_id=plan.batch.batch_id)
    return attempt.missing_sources


def check_forward(plan: CommitPlan, found: Progress | None) -> None:
    """Raise ProgressError if the query's progress is beyond the new value."""
    wanted = plan.batch.batch_id + 1
    if found is not None and found.next_batch_id > wanted:
        raise ProgressError(
            f"the next batch of {plan.query} is {found.next_batch_id} by its progress in group "
            f"{plan.committer.progress_group_id!r}. Set to {wanted}, the query would write batches "
            "again that are in the output. Nothing was changed. Start the query as it is: it skips "
            "committed batches"
        )
