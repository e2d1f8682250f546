"""Bugs planted on purpose: each must be caught, or the checkers are blind.

A plant is a function that breaks one run's world or, for its length, one function of the product.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from broker_sim.core.log.partition_log import PartitionLog
from broker_sim.sim import driver

if TYPE_CHECKING:
    from broker_sim.sim.world import World

Plant = Callable[["World"], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
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


PLANTS: dict[str, Plant] = {
    "flush-skipped": _flush_skipped,
    "answer-before-storage": _answer_before_storage,
    "lso-is-high-watermark": _lso_is_high_watermark,
    "progress-not-kept": _progress_outside,
    "commit-log-first": _commit_log_first,
}
"""By name; the canary test runs each until it is caught."""
