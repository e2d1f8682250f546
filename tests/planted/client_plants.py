"""Bugs planted where the connector repeats something: tasks, transactions, record batches.

Numbers are those of the planted bugs in `docs/internals/faults.md`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from planted.commit_plants import replaced, unread
from simulation.hosts.spark_tasks import Executors, Job
from simulation.world import Plant
from txnlog_kafka.operations.batches import PartitionQueue, StampedBatch
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.produce import _Window
from txnlog_kafka.operations.producer import ProducerIdentity
from txnlog_kafka.operations.session import Session
from txnlog_kafka.operations.transaction import (
    Transaction,
    commit_transaction,
    init_producer_id,
)
from txnlog_kafka.operations.transaction_offsets import (
    OffsetsCommitted,
    commit_all_offsets,
)
from txnlog_kafka.wire.records import refresh_crc
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit import attempt as attempt_module
from txnlog_spark.commit import facts as facts_module
from txnlog_spark.commit import micro_batch
from txnlog_spark.commit.attempt import (
    TransactionTry,
    add_progress,
    begin_transaction,
    commit_batch_offsets,
    initialise,
)
from txnlog_spark.commit.facts import stable_progress
from txnlog_spark.commit.plan import CommitPlan, LocatedPlan, Progress
from txnlog_spark.commit.progress import progress_after
from txnlog_spark.staging.staged_output import StagedOutput

_BASE_TIMESTAMP_AT = 27
"""Position of the base timestamp in a record batch, version 2."""


@contextlib.contextmanager
def _no_abort_before_a_retry(_: Any) -> Iterator[None]:
    """24: who does a batch again that has failed goes on in the transaction of the first time."""
    left: dict[str, ProducerIdentity] = {}
    """Identities by transactional id."""

    def leave_open(session: Session, transaction: Transaction) -> Operation[bool]:
        del session
        yield from ()
        name = transaction.transactional_id
        left[name] = ProducerIdentity(name, transaction.producer_id, transaction.producer_epoch)
        return True

    def go_on(session: Session, plan: CommitPlan) -> Operation[ProducerIdentity]:
        found = left.pop(plan.committer.transactional_id, None)
        return found or (yield from initialise(session, plan))

    with (
        replaced(micro_batch, "abort_transaction", leave_open),
        replaced(micro_batch, "initialise", go_on),
    ):
        yield


@contextlib.contextmanager
def _progress_in_a_second_transaction(_: Any) -> Iterator[None]:
    """25: a batch's progress is committed behind it, in a transaction of its own."""
    attempts: dict[int, TransactionTry] = {}
    """Tries by transaction."""

    def remember(
        session: Session, attempt: TransactionTry, transaction: Transaction, **more: Any
    ) -> Operation[OffsetsCommitted]:
        attempts[id(transaction)] = attempt
        return commit_batch_offsets(session, attempt, transaction, **more)

    def sources_only(
        session: Session, transaction: Transaction, groups: Any, **more: Any
    ) -> Operation[OffsetsCommitted]:
        if more["may_be_gone"] in groups:
            groups = {more["may_be_gone"]: groups[more["may_be_gone"]]}
        return commit_all_offsets(session, transaction, groups, **more)

    def commit_twice(
        session: Session, transaction: Transaction, *, batch_id: int
    ) -> Operation[None]:
        yield from commit_transaction(session, transaction, batch_id=batch_id)
        attempt = attempts.pop(id(transaction))
        committer = attempt.plan.committer
        name, timeout_ms = committer.transactional_id, committer.options.transaction_timeout_ms
        identity = yield from init_producer_id(session, name, timeout_ms)
        second = begin_transaction(session, attempt, identity)
        yield from add_progress(session, attempt.plan, second, progress_after(attempt.plan))
        yield from commit_transaction(session, second, batch_id=batch_id)

    with (
        replaced(micro_batch, "commit_batch_offsets", remember),
        replaced(attempt_module, "commit_all_offsets", sources_only),
        replaced(micro_batch, "commit_transaction", commit_twice),
    ):
        yield


@contextlib.contextmanager
def _judged_before_initialising(_: Any) -> Iterator[None]:
    """(26) Read the stable progress while an older driver may still commit, and never read it
    again."""
    early: dict[int, Progress | None] = {}
    """Progress by session."""

    def read_first(session: Session, plan: LocatedPlan) -> Operation[ProducerIdentity]:
        early[id(session)] = yield from stable_progress(session, plan)
        return (yield from initialise(session, plan))

    def read_already(session: Session, plan: LocatedPlan) -> Operation[Progress | None]:
        del plan
        yield from ()
        return early[id(session)]

    with (
        replaced(micro_batch, "initialise", read_first),
        replaced(facts_module, "stable_progress", read_already),
        unread(),
    ):
        yield


def _sequences_reset_without_a_leader(_: Any) -> contextlib.AbstractContextManager[None]:
    """28: a partition that the metadata does not have, while its leader is looked up, is new."""
    recover = _Window._recover_partitions

    def forgetful(
        self: _Window, partitions: list[TopicPartition], failures: Any, node: int | None = None
    ) -> Operation[None]:
        for partition in failures.moved:
            self._transaction.sequences.pop(partition, None)
        return recover(self, partitions, failures, node)

    return replaced(_Window, "_recover_partitions", forgetful)


def _batches_built_again(_: Any) -> contextlib.AbstractContextManager[None]:
    """29: what is sent again has the time of now."""
    put_back = PartitionQueue.put_back

    def rebuild(self: PartitionQueue, batches: Sequence[StampedBatch]) -> None:
        for batch in batches:
            batch.data[_BASE_TIMESTAMP_AT + 7] ^= 1
            refresh_crc(batch.data, 0, len(batch.data))
        put_back(self, batches)

    return replaced(PartitionQueue, "put_back", rebuild)


@contextlib.contextmanager
def _both_attempts_taken(_: Any) -> Iterator[None]:
    """The driver commits what every attempt of a task has staged, not what one has."""
    staged: dict[tuple[str, int], list[StagedOutput]] = {}
    """Staged output by run and batch."""
    put, run = Executors._put, Executors.run

    def remember(self: Executors, message: StagedOutput, *data: bytes) -> StagedOutput | None:
        kept = put(self, message, *data)
        if kept is not None:
            staged.setdefault((kept.run_id, kept.batch_id), []).append(kept)
        return kept

    def take_all(self: Executors, job: Job) -> Operation[list[StagedOutput]]:
        yield from run(self, job)
        return staged.get((job.run_id, job.batch_id), [])

    with replaced(Executors, "_put", remember), replaced(Executors, "run", take_all):
        yield


CLIENT_PLANTS: dict[str, Plant] = {
    "no-abort-before-a-retry": _no_abort_before_a_retry,
    "progress-in-a-second-transaction": _progress_in_a_second_transaction,
    "judged-before-initialising": _judged_before_initialising,
    "sequences-reset-without-a-leader": _sequences_reset_without_a_leader,
    "batches-built-again": _batches_built_again,
    "both-attempts-taken": _both_attempts_taken,
}
"""Plants by name; the canary test runs each of them until it is caught."""
