"""Bugs planted on purpose: each must be caught, or the checkers are blind.

A plant is a function that breaks one run's world or, for its length, one function of the product.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from broker_sim.core.group.offsets import OffsetStore
from broker_sim.core.log import producer_state
from broker_sim.core.log.partition_log import PartitionLog
from broker_sim.core.transaction.coordinator import TransactionCoordinator
from broker_sim.core.transaction.markers import MarkerManager
from planted.checkpoint_plants import CHECKPOINT_PLANTS
from planted.commit_plants import COMMIT_PLANTS, replaced
from planted.output_plants import OUTPUT_PLANTS
from planted.source_plants import SOURCE_PLANTS
from simulation.hosts import spark_driver
from simulation.hosts.checkpoint import Checkpoint
from simulation.hosts.spark_driver import Driver
from simulation.world import Plant
from txnlog_kafka.operations.effects import Operation
from txnlog_spark.commit import attempt, judgement
from txnlog_spark.commit.judgement import Decision
from txnlog_spark.commit.plan import CommitOutcome, Progress
from txnlog_spark.commit.query import commit_query_batch
from txnlog_spark.errors import ProducerFenced


@contextlib.contextmanager
def _flush_skipped(world: Any) -> Iterator[None]:
    world.host.disk.flush_works = False
    yield


@contextlib.contextmanager
def _answer_before_storage(world: Any) -> Iterator[None]:
    world.host.answers_first = True
    yield


def _lso_is_high_watermark(world: Any) -> contextlib.AbstractContextManager[None]:
    del world
    return replaced(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))


@contextlib.contextmanager
def _progress_outside(world: Any) -> Iterator[None]:
    """The driver relies on its commit log alone: a batch that comes again is written again."""
    del world
    with (
        replaced(judgement, "is_committed", lambda *_: False),
        replaced(attempt, "judge", lambda *_: Decision.DO),
        replaced(judgement, "check_output", _nothing),
    ):
        yield


def _nothing(*_: object) -> None:
    """Do nothing, in place of a check that refuses."""


@contextlib.contextmanager
def _commit_log_first(world: Any) -> Iterator[None]:
    """Spark's commit log is written before the transaction is committed."""
    del world
    stage, create = Driver._stage, Checkpoint.create

    def hasty(self: Driver, batch_id: int, *, is_again: bool) -> Any:
        create_once(self.checkpoint, "commits", batch_id, b"v1")
        return stage(self, batch_id, is_again=is_again)

    def create_once(self: Checkpoint, log: str, batch_id: int, data: bytes) -> None:
        if log != "commits" or self.entry(log, batch_id) is None:
            create(self, log, batch_id, data)

    with replaced(Driver, "_stage", hasty), replaced(Checkpoint, "create", create_once):
        yield


@contextlib.contextmanager
def _sequences_not_checked(world: Any) -> Iterator[None]:
    """Notice no duplicate and no gap: a batch that is sent again is there twice."""
    del world
    with (
        replaced(producer_state, "_check_sequence", _nothing),
        replaced(producer_state.ProducerStateEntry, "duplicate_of", _nothing),
    ):
        yield


def _aborted_list_missing(world: Any) -> contextlib.AbstractContextManager[None]:
    """Fetch answers without the aborted transactions."""
    del world
    original = PartitionLog.read

    def read(self: PartitionLog, *args: Any, **options: Any) -> Any:
        return dataclasses.replace(original(self, *args, **options), aborted=())

    return replaced(PartitionLog, "read", read)


def _prepared_forgotten(world: Any) -> contextlib.AbstractContextManager[None]:
    """A coordinator that loads does not finish what was decided."""
    del world
    original = TransactionCoordinator.load

    def load(self: TransactionCoordinator, *args: Any, **more: Any) -> None:
        with replaced(MarkerManager, "begin", _nothing):
            original(self, *args, **more)

    return replaced(TransactionCoordinator, "load", load)


def _aborted_offsets_kept(world: Any) -> contextlib.AbstractContextManager[None]:
    """An ABORT marker makes pending offsets visible, as COMMIT does."""
    del world
    original = OffsetStore.replay_marker

    def replay_marker(self: OffsetStore, producer_id: int, committed: bool) -> int:
        del committed
        return original(self, producer_id, True)

    return replaced(OffsetStore, "replay_marker", replay_marker)


def _torn_not_aborted(world: Any) -> contextlib.AbstractContextManager[None]:
    """After a loss of power, transactions that lost records go on."""
    world.host.knows_boots = False
    return contextlib.nullcontext()


def _fenced_is_success(world: Any) -> contextlib.AbstractContextManager[None]:
    """The connector takes ProducerFenced for "somebody else has done it" (Flink's committer)."""
    del world
    original = commit_query_batch

    def commit(session: Any, batch: Any) -> Operation[CommitOutcome]:
        try:
            return (yield from original(session, batch))
        except ProducerFenced:
            return CommitOutcome(False, Progress(str(batch.query_id), batch.batch_id + 1))

    return replaced(spark_driver, "commit_query_batch", commit)


ONE_BROKER_PLANTS: dict[str, Plant] = {
    "flush-skipped": _flush_skipped,
    "answer-before-storage": _answer_before_storage,
    "lso-is-high-watermark": _lso_is_high_watermark,
    "progress-not-kept": _progress_outside,
    "commit-log-first": _commit_log_first,
    "sequences-not-checked": _sequences_not_checked,
    "aborted-list-missing": _aborted_list_missing,
    "prepared-forgotten": _prepared_forgotten,
    "aborted-offsets-kept": _aborted_offsets_kept,
    "torn-not-aborted": _torn_not_aborted,
    "fenced-is-success": _fenced_is_success,
    **COMMIT_PLANTS,
    **CHECKPOINT_PLANTS,
    **OUTPUT_PLANTS,
    **SOURCE_PLANTS,
}
"""Plants by name; the canary test runs each of them until it is caught."""
