"""Taking a query over: a new epoch, another transactional id, and the baseline of its progress."""

from __future__ import annotations

from dataclasses import replace

from txnlog_spark.commit.attempt import CommitAttempt, add_progress, begin_transaction
from txnlog_spark.commit.judgement import progress_topic_deleted
from txnlog_spark.commit.plan import CommitPlan
from txnlog_spark.commit.progress import baseline_of
from txnlog_spark.commit.transactional_ids import other_ids, record_ids, record_path
from txnlog_spark.errors import FatalError, UnknownTopic
from txnlog_spark.protocol.effects import Operation, Reached
from txnlog_spark.protocol.metadata import confirm_missing, require_leaders
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.transaction import commit_transaction, init_producer_id
from txnlog_spark.protocol.values import ProducerIdentity


def initialise(
    session: Session, plan: CommitPlan, current: ProducerIdentity | None
) -> Operation[ProducerIdentity]:
    """S2: the identity as it is while it is good, else a new epoch, which fences all others.

    Without `current` the query is taken over, from whatever transactional id it had. Raises
    ProducerFenced when, with `current`, another driver has taken it over since (KIP-360; the rule
    for a retry is TransactionMetadata.prepareIncrementProducerEpoch).
    """
    if current is not None and current.initialised:
        return current
    yield Reached("S2", "before", plan.batch_id)
    taken_over = plan.journal if current is None else None
    if taken_over is not None:
        yield from record_ids(taken_over.folder, plan)
    name, timeout_ms = plan.transactional_id, plan.transaction_timeout_ms
    identity = yield from init_producer_id(session, name, timeout_ms, current=current)
    if current is not None:
        # The answer for the epoch before the present one is the present one, as for a retry: then
        # another worker of this run has raised it, and may have written with it. Sequences begin
        # at 0 again, and what has those of another batch is taken for a duplicate of it. For the
        # present epoch the answer is one that nobody has had, unless another worker asked between
        # the two. A run has one commit at a time: that one did this batch, and this is skipped.
        identity = yield from init_producer_id(session, name, timeout_ms, current=identity)
    if taken_over is not None:
        yield from fence_other_ids(session, plan, taken_over.folder)
    yield Reached("S2", "after", plan.batch_id)
    return identity


def fence_other_ids(session: Session, plan: CommitPlan, folder: str) -> Operation[None]:
    """Nobody may commit under another id of the query any more (`transactional_ids` says why).

    Raises FatalError when the user may not write with one of them.
    """
    others = yield from other_ids(folder, plan.transactional_id)
    for name in others:
        try:
            yield from init_producer_id(session, name, plan.transaction_timeout_ms)
        except FatalError as error:
            error.args = (f"{error}. {_why_fenced(plan, folder, name)}",)
            raise
    if plan.previous_transactional_id in others:
        session.notice(
            f"query {plan.query_id} goes on with transactional id {plan.transactional_id}; "
            f"{plan.previous_transactional_id} was fenced"
        )


def _why_fenced(plan: CommitPlan, folder: str, name: str) -> str:
    return (
        f"Query {plan.query_id} had transactional id {name!r} before {plan.transactional_id!r}, "
        "and a driver with it has to be fenced. If none can be running any more, delete "
        f"{record_path(folder, name)} and start the query again"
    )


def commit_baseline(
    session: Session, attempt: CommitAttempt, identity: ProducerIdentity
) -> Operation[ProducerIdentity]:
    """Make the query's progress exist: all batches before this one, which Spark says are done.

    In a transaction of its own, so that a driver which was overtaken cannot set progress back.
    Returns the identity for the batch itself.
    """
    plan = attempt.plan
    transaction = yield from begin_transaction(session, attempt, identity)
    yield from require_progress_topic(session, plan)
    yield from add_progress(session, plan, transaction, baseline_of(plan))
    attempt.commit_sent = True
    following = yield from commit_transaction(session, transaction, batch_id=plan.batch_id - 1)
    attempt.transaction, attempt.commit_sent = None, False
    if not following.initialised:
        following = yield from init_producer_id(
            session, plan.transactional_id, plan.transaction_timeout_ms, current=following
        )
    return replace(following, transaction_version=transaction.version)


def require_progress_topic(session: Session, plan: CommitPlan) -> Operation[None]:
    """Creates it for a query's first transaction only: in a new one there is no progress.

    Raises ProgressMissing when it was deleted.
    """
    try:
        yield from require_leaders(
            session, [plan.progress_partition], allow_auto_create=not plan.must_exist
        )
    except UnknownTopic:
        if (yield from confirm_missing(session, [plan.progress_partition])):
            raise progress_topic_deleted(plan) from None
        raise
