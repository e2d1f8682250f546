"""Taking a query over: a new epoch, another transactional id, and the baseline of its progress."""

from __future__ import annotations

from dataclasses import replace

from txnlog_spark.commit.attempt import CommitAttempt, add_progress, begin_transaction
from txnlog_spark.commit.judgement import progress_topic_deleted
from txnlog_spark.commit.plan import CommitPlan
from txnlog_spark.commit.progress import baseline_of
from txnlog_spark.errors import UnknownTopic
from txnlog_spark.protocol.effects import Operation, Reached
from txnlog_spark.protocol.metadata import confirm_missing, require_leaders
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.transaction import commit_transaction, init_producer_id
from txnlog_spark.protocol.values import ProducerIdentity
from txnlog_spark.wire.invariants import present


def initialise(
    session: Session, plan: CommitPlan, current: ProducerIdentity | None
) -> Operation[ProducerIdentity]:
    """S2: the identity as it is while it is good, else a new epoch, which fences all others.

    Raises ProducerFenced when the query or, with `current`, the transactional id has been taken
    over by another driver.
    """
    if current is not None and current.initialised:
        return current
    yield Reached("S2", "before", plan.batch_id)
    if plan.previous_transactional_ids:
        yield from leave_previous_ids(session, plan)
    identity = yield from init_producer_id(
        session, plan.transactional_id, plan.transaction_timeout_ms, current=current
    )
    yield Reached("S2", "after", plan.batch_id)
    if plan.journal is not None:
        yield from plan.journal.confirm_holder(plan)
    return identity


def leave_previous_ids(session: Session, plan: CommitPlan) -> Operation[None]:
    """The query's option or group was changed: nobody may commit under an old id any more.

    InitProducerId with the new id does not fence a driver that holds the old one. Fence the old id,
    record the new one, fence again: the second fence stops a driver that initialised the old id
    between the two; later ones see the record (`Journal.confirm_holder`). The record names the old
    id until the second fence is done: who goes on after a crash in between does it.
    """
    journal = present(plan.journal, "the ids that a query left are known from its journal")
    left, timeout_ms = plan.previous_transactional_ids, plan.transaction_timeout_ms
    for name in left:
        yield from init_producer_id(session, name, timeout_ms)
    yield from journal.take_over(plan, left)
    for name in left:
        yield from init_producer_id(session, name, timeout_ms)
    yield from journal.take_over(plan, ())
    session.notice(
        f"query {plan.query_id} goes on with transactional id {plan.transactional_id}; "
        f"{', '.join(left)} was fenced"
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
