"""InitProducerId of the query's transactional id and of those it had before, and the baseline."""

from __future__ import annotations

from txnlog_kafka.operations.effects import Milestone, Operation
from txnlog_kafka.operations.metadata import confirm_missing, require_leaders
from txnlog_kafka.operations.producer import ProducerIdentity
from txnlog_kafka.operations.session import Session
from txnlog_kafka.operations.transaction import commit_transaction, init_producer_id
from txnlog_spark.commit.attempt import TransactionTry, add_progress, begin_transaction
from txnlog_spark.commit.journal import other_ids, record_output
from txnlog_spark.commit.plan import CommitPlan, LocatedPlan
from txnlog_spark.commit.progress import baseline_of
from txnlog_spark.commit.refusals import missing
from txnlog_spark.errors import FatalError, UnknownTopic


def initialise(session: Session, plan: CommitPlan) -> Operation[ProducerIdentity]:
    """A new epoch, which fences all former producers of the transactional id and of the query's
    others."""
    committer, batch_id = plan.committer, plan.batch.batch_id
    yield Milestone("init_producer_id", "before", batch_id)
    if committer.is_query and not _is_recorded(plan):
        yield from record_output(committer)
    timeout_ms = committer.options.transaction_timeout_ms
    identity = yield from init_producer_id(session, committer.transactional_id, timeout_ms)
    if committer.is_query:
        yield from fence_other_ids(session, plan)
    yield Milestone("init_producer_id", "after", batch_id)
    return identity


def _is_recorded(plan: CommitPlan) -> bool:
    """Whether this run has recorded its output: that comes before its first batch."""
    begun, own = plan.begun, plan.committer
    return begun is not None and (begun.run_id, begun.output) == (own.run_id, own.output)


def fence_other_ids(session: Session, plan: CommitPlan) -> Operation[None]:
    """Nobody may commit under another id of the query any more. Raises FatalError when the user may
    not write with one of them."""
    committer = plan.committer
    others = yield from other_ids(committer)
    for name, paths in others.items():
        try:
            yield from init_producer_id(session, name, committer.options.transaction_timeout_ms)
        except FatalError as error:
            raise error.with_advice(
                f"Query {committer.output.query_id} had transactional id {name!r} before "
                f"{committer.transactional_id!r}, and a driver with it has to be fenced. If none "
                f"can be running any more, delete {' and '.join(paths)} and start the query again"
            ) from None
    before = None if plan.begun is None else plan.begun.output.transactional_id
    if before in others:
        session.notice(
            f"query {committer.output.query_id} goes on with transactional id "
            f"{committer.transactional_id}; {before} was fenced"
        )


def commit_baseline(
    session: Session, attempt: TransactionTry, identity: ProducerIdentity
) -> Operation[ProducerIdentity]:
    """Make the query's progress exist: all batches before this one, which Spark says are done.

    In a transaction of its own, so that a driver which was overtaken cannot set progress back.
    Returns the identity for the batch.
    """
    plan = attempt.plan
    yield from require_progress_topic(session, plan)
    transaction = begin_transaction(session, attempt, identity)
    yield from add_progress(session, plan, transaction, baseline_of(plan))
    attempt.commit_sent = True
    yield from commit_transaction(session, transaction, batch_id=plan.batch.batch_id - 1)
    attempt.transaction, attempt.commit_sent = None, False
    return (yield from initialise(session, plan))


def require_progress_topic(session: Session, plan: LocatedPlan) -> Operation[None]:
    """Creates it for a query's first transaction only: in a new one there is no progress.

    Raises ProgressMissing when it was deleted.
    """
    place = [plan.place]
    is_new = plan.begun is None
    try:
        yield from require_leaders(session, place, allow_auto_create=is_new)
    except UnknownTopic:
        if not is_new and (yield from confirm_missing(session, place)):
            raise missing(plan, topic_is_gone=True) from None
        raise
