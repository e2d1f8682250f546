"""Setting a query's progress: one transaction without records, under the query's own id.

Theory of operation. What the brokers know of a query may be less than what is in its output:
another sink wrote batches in between, or the progress expired. A person who knows says so here: all
batches up to the plan's are in the output. It is committed as a batch of that id would be, so that
the next start finds what it would have found then: InitProducerId fences a driver that lives, and
progress and group offsets are committed together. It never goes back: batches that the brokers know
to be in the output would be written again.
"""

from __future__ import annotations

from txnlog_spark.errors import ProgressError, TxnLogError
from txnlog_spark.protocol.calls import TRANSACTION, find_coordinator
from txnlog_spark.protocol.effects import Operation
from txnlog_spark.protocol.metadata import refresh_metadata, require_leaders, transaction_version
from txnlog_spark.protocol.offsets import CommittedOffset
from txnlog_spark.protocol.progress import fetch_progress, progress_after, progress_offset
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.transaction import (
    Transaction,
    abort_transaction,
    add_offsets,
    commit_group_offsets,
    commit_source_offsets,
    commit_transaction,
    init_producer_id,
)
from txnlog_spark.protocol.values import CommitPlan, Partition, Progress


def set_progress(session: Session, plan: CommitPlan) -> Operation[frozenset[Partition]]:
    """Commit progress and group offsets as after the plan's batch; what no longer exists is left.

    Raises ProgressError when the brokers have more, and what a commit raises.
    """
    if not session.cluster.nodes:
        yield from refresh_metadata(session, ())
    identity = yield from init_producer_id(
        session, plan.transactional_id, plan.transaction_timeout_ms
    )
    found = yield from fetch_progress(
        session, plan.progress_group_id, plan.query_id, partitions=[plan.progress_partition]
    )
    check_forward(plan, found)
    yield from require_leaders(session, [plan.progress_partition])
    deadline = session.deadline()
    key = plan.transactional_id
    node = yield from find_coordinator(session, TRANSACTION, key, deadline=deadline)
    version = yield from transaction_version(session, node, deadline=deadline)
    transaction = Transaction(key, identity.producer_id, identity.producer_epoch, version)
    try:
        missing = yield from _write(session, transaction, plan)
    except TxnLogError:
        yield from abort_transaction(session, transaction)
        raise
    yield from commit_transaction(session, transaction, batch_id=plan.batch_id)
    return missing


def check_forward(plan: CommitPlan, found: Progress | None) -> None:
    """Raise ProgressError when the query's progress is beyond what it is to be set to."""
    wanted = plan.batch_id + 1
    if found is not None and found.next_batch_id > wanted:
        raise ProgressError(
            f"the next batch of query {plan.query_id} is {found.next_batch_id} by its progress in "
            f"group {plan.progress_group_id!r}: set to {wanted}, it would write again what is in "
            "the output. Nothing was changed. Start the query as it is: it skips what is committed"
        )


def _write(
    session: Session, transaction: Transaction, plan: CommitPlan
) -> Operation[frozenset[Partition]]:
    missing: frozenset[Partition] = frozenset()
    if plan.group_id is not None and plan.source_offsets:
        if transaction.version < 2:
            yield from add_offsets(session, transaction, plan.group_id)
        ends = {p: CommittedOffset(end, "") for p, end in plan.source_offsets.items()}
        missing = yield from commit_source_offsets(session, transaction, plan.group_id, ends)
    if transaction.version < 2:
        yield from add_offsets(session, transaction, plan.progress_group_id)
    progress = {plan.progress_partition: progress_offset(progress_after(plan))}
    yield from commit_group_offsets(session, transaction, plan.progress_group_id, progress)
    return missing
