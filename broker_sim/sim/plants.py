"""Bugs planted on purpose: each must be caught, or the checkers are blind.

A plant is a function that breaks one run's world or, for its length, one function of the product.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from broker_sim.core.group.offsets import OffsetStore
from broker_sim.core.log import producer_state
from broker_sim.core.log.partition_log import PartitionLog
from broker_sim.core.transaction.coordinator import TransactionCoordinator
from broker_sim.core.transaction.markers import MarkerManager
from broker_sim.sim import driver
from txnlog_spark.errors import ProducerFenced
from txnlog_spark.protocol.commit import commit_micro_batch
from txnlog_spark.protocol.effects import Operation
from txnlog_spark.protocol.values import CommitOutcome, ProducerIdentity, Progress

if TYPE_CHECKING:
    from broker_sim.sim.world import World

Plant = Callable[["World"], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    if isinstance(owner, type):  # an inherited name is replaced where it is defined
        owner = next(each for each in owner.__mro__ if name in vars(each))
    original = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _flush_skipped(world: World) -> Iterator[None]:
    world.host.disk.flush_works = False
    yield


@contextlib.contextmanager
def _answer_before_storage(world: World) -> Iterator[None]:
    world.host.answers_first = True
    yield


def _lso_is_high_watermark(world: World) -> contextlib.AbstractContextManager[None]:
    del world
    return _replaced(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))


def _progress_outside(world: World) -> contextlib.AbstractContextManager[None]:
    """The driver trusts its commit log alone: a batch that comes again is written again."""
    del world
    original = driver.Driver._commit_plan

    def forgetful(self: driver.Driver, batch_id: int, ends: dict[int, int]) -> Any:
        plan = original(self, batch_id, ends)
        query_id = f"{plan.query_id}/{self.run_id}"
        return dataclasses.replace(plan, query_id=query_id, must_exist=False)

    return _replaced(driver.Driver, "_commit_plan", forgetful)


def _no_write(*_: object) -> None:
    """In place of a write."""


@contextlib.contextmanager
def _commit_log_first(world: World) -> Iterator[None]:
    """Spark's commit log is written before the transaction is committed."""
    del world
    original = driver.Driver._commit_plan

    def hasty(self: driver.Driver, batch_id: int, ends: dict[int, int]) -> Any:
        self.checkpoint.commits.add(batch_id)
        return original(self, batch_id, ends)

    with (
        _replaced(driver.Driver, "_commit_plan", hasty),
        _replaced(driver.Checkpoint, "write_commit", _no_write),
    ):
        yield


def _nothing(*_: object) -> None:
    """In place of a check: never refuses."""


@contextlib.contextmanager
def _sequences_not_checked(world: World) -> Iterator[None]:
    """No duplicate and no gap is noticed: a produce that is sent again is there twice."""
    del world
    with (
        _replaced(producer_state, "_check_sequence", _nothing),
        _replaced(producer_state.ProducerStateEntry, "duplicate_of", _nothing),
    ):
        yield


def _aborted_list_missing(world: World) -> contextlib.AbstractContextManager[None]:
    """Fetch answers without the aborted transactions."""
    del world
    original = PartitionLog.read

    def read(self: PartitionLog, *args: Any, **options: Any) -> Any:
        return dataclasses.replace(original(self, *args, **options), aborted=())

    return _replaced(PartitionLog, "read", read)


def _prepared_forgotten(world: World) -> contextlib.AbstractContextManager[None]:
    """A coordinator that loads does not finish what was decided."""
    del world
    original = TransactionCoordinator.load

    def load(self: TransactionCoordinator, *args: Any) -> None:
        with _replaced(MarkerManager, "begin", _nothing):
            original(self, *args)

    return _replaced(TransactionCoordinator, "load", load)


def _aborted_offsets_kept(world: World) -> contextlib.AbstractContextManager[None]:
    """An ABORT marker makes pending offsets visible, as COMMIT does."""
    del world
    original = OffsetStore.replay_marker

    def replay_marker(self: OffsetStore, producer_id: int, committed: bool) -> int:
        del committed
        return original(self, producer_id, True)

    return _replaced(OffsetStore, "replay_marker", replay_marker)


def _torn_not_aborted(world: World) -> contextlib.AbstractContextManager[None]:
    """After a loss of power, transactions that lost records go on."""
    world.host.knows_boots = False
    return contextlib.nullcontext()


def _fenced_is_success(world: World) -> contextlib.AbstractContextManager[None]:
    """The connector takes ProducerFenced for "somebody else has done it" (Flink's committer)."""
    del world
    original = commit_micro_batch

    def commit(session: Any, identity: Any, plan: Any) -> Operation[CommitOutcome]:
        try:
            return (yield from original(session, identity, plan))
        except ProducerFenced:
            nobody = ProducerIdentity(plan.transactional_id, -1, -1)
            return CommitOutcome(nobody, False, Progress(plan.query_id, plan.batch_id + 1))

    return _replaced(driver, "commit_micro_batch", commit)


PLANTS: dict[str, Plant] = {
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
}
"""By name; the canary test runs each until it is caught."""
