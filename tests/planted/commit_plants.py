"""Bugs planted in a query's commit: baseline, takeover, transactional ids, judgement.

Each is what a plausible slip in `txnlog_spark.commit` would be.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simulation.hosts import spark_driver
from simulation.world import Plant
from txnlog_kafka.operations import fetch
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.offsets import commit_offsets, fetch_committed
from txnlog_kafka.operations.producer import Bytes, ProducerIdentity, StagedChunk
from txnlog_kafka.operations.session import Session
from txnlog_kafka.operations.transaction import init_producer_id
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit import attempt, journal, judgement, micro_batch
from txnlog_spark.commit import facts as facts_module
from txnlog_spark.commit.attempt import TransactionTry, commit_baseline, fence_other_ids, initialise
from txnlog_spark.commit.facts import stable_facts, visible_progress
from txnlog_spark.commit.journal import begin, record_output, write_begun
from txnlog_spark.commit.plan import Begun, CommitPlan, Evidence, LocatedPlan, Progress
from txnlog_spark.commit.progress import baseline_of, place_progress, progress_offset
from txnlog_spark.commit.query import QueryBatch
from txnlog_spark.errors import TxnLogError


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` meanwhile."""
    if isinstance(owner, type):  # an inherited name is replaced where it is defined
        owner = next(each for each in owner.__mro__ if name in vars(each))
    original = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _nothing_asked(*_: object) -> Operation[None]:
    yield from ()


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """Skip the second read of the facts that a batch was judged by: it would show the bug, or heal
    it."""
    with (
        replaced(micro_batch, "confirm", _nothing_asked),
        replaced(attempt, "confirm", _nothing_asked),
    ):
        yield


def _baseline_not_transactional(_: Any) -> contextlib.AbstractContextManager[None]:
    """The baseline is a plain OffsetCommit, which a driver that was overtaken can do as well."""

    def plain(
        session: Session, attempt: TransactionTry, identity: ProducerIdentity
    ) -> Operation[ProducerIdentity]:
        plan = attempt.plan
        progress = {plan.place: progress_offset(baseline_of(plan))}
        yield from commit_offsets(session, plan.committer.progress_group_id, progress)
        return identity

    return replaced(micro_batch, "commit_baseline", plain)


def _id_changed_without_fencing(_: Any) -> contextlib.AbstractContextManager[None]:
    """The holders of the query's other transactional ids are left alone."""
    return replaced(attempt, "fence_other_ids", _nothing_asked)


def _own_id(session: Session, plan: CommitPlan) -> Operation[ProducerIdentity]:
    timeout_ms = plan.committer.options.transaction_timeout_ms
    return init_producer_id(session, plan.committer.transactional_id, timeout_ms)


@contextlib.contextmanager
def _initialised_by(
    initialise: Callable[[Session, CommitPlan], Operation[ProducerIdentity]],
) -> Iterator[None]:
    """Replace `initialise`, and skip the second read, which would show another driver's commit."""
    with (
        replaced(micro_batch, "initialise", initialise),
        replaced(attempt, "initialise", initialise),
        unread(),
    ):
        yield


def _others_fenced_before_the_own(_: Any) -> contextlib.AbstractContextManager[None]:
    """The later one of two drivers may have listed before the first had anything to fence."""

    def fence_first(session: Session, plan: CommitPlan) -> Operation[ProducerIdentity]:
        yield from record_output(plan.committer)
        yield from fence_other_ids(session, plan)
        return (yield from _own_id(session, plan))

    return _initialised_by(fence_first)


def _id_recorded_too_late(_: Any) -> contextlib.AbstractContextManager[None]:
    """Drivers record their ids when they have looked for others: two may miss each other."""

    def record_last(session: Session, plan: CommitPlan) -> Operation[ProducerIdentity]:
        identity = yield from _own_id(session, plan)
        yield from fence_other_ids(session, plan)
        yield from record_output(plan.committer)
        return identity

    return _initialised_by(record_last)


def _only_the_last_id_fenced(_: Any) -> contextlib.AbstractContextManager[None]:
    """The last attempt's id is fenced; one that has begun no batch yet is not thought of."""

    def last_only(session: Session, plan: CommitPlan) -> Operation[None]:
        committer = plan.committer
        last = None if plan.begun is None else plan.begun.output.transactional_id
        if last is not None and last != committer.transactional_id:
            yield from init_producer_id(session, last, committer.options.transaction_timeout_ms)

    return replaced(attempt, "fence_other_ids", last_only)


def _nothing(*_: object) -> None:
    """Do nothing, in place of a check that refuses."""


def _group_not_compared(_: Any) -> contextlib.AbstractContextManager[None]:
    """Skip the check that the group still is where the batch before left it."""
    return replaced(judgement, "check_previous", _nothing)


@contextlib.contextmanager
def _start_compared_before_fencing(_: Any) -> Iterator[None]:
    """Compare the group's start while an old driver can still move it, and never read it again."""
    early: dict[int, dict[TopicPartition, int]] = {}
    """Offsets by session, because several drivers work."""

    def compare_first(session: Session, plan: CommitPlan) -> Operation[ProducerIdentity]:
        early.pop(id(session), None)
        starts = any(source.group_start for source in plan.batch.sources)
        if plan.is_first and starts and plan.group_id is not None:
            found = yield from fetch_committed(session, plan.group_id, require_stable=False)
            early[id(session)] = {p: c.committed_offset for p, c in found.items()}
        return (yield from initialise(session, plan))

    def facts(session: Session, plan: LocatedPlan) -> Operation[Evidence]:
        known = yield from stable_facts(session, plan)
        group = early.get(id(session), known.group)
        return dataclasses.replace(known, group=group)

    with (
        replaced(micro_batch, "initialise", compare_first),
        replaced(micro_batch, "stable_facts", facts),
        unread(),
    ):
        yield


def _progress_on_a_second_partition(_: Any) -> contextlib.AbstractContextManager[None]:
    """Commit the progress of a batch on any partition of its source offsets."""

    def place(session: Session, plan: CommitPlan, *before: Any) -> Operation[Any]:
        found = yield from place_progress(session, plan, *before)
        partitions = sorted(plan.batch.source_offsets)
        return partitions[session.monotonic_ms() % len(partitions)] if partitions else found

    return replaced(micro_batch, "place_progress", place)


@contextlib.contextmanager
def _judged_by_an_unstable_read(_: Any) -> Iterator[None]:
    """Judge by the progress that was visible before the fence: a transaction that was undecided
    then is missed, and the progress is never read again."""
    last: dict[int, Progress | None] = {}

    def remember(session: Session, plan: CommitPlan) -> Operation[Progress | None]:
        last[id(session)] = yield from visible_progress(session, plan)
        return last[id(session)]

    def remembered(session: Session, plan: CommitPlan) -> Operation[Progress | None]:
        del plan
        yield from ()
        return last[id(session)]

    with (
        replaced(micro_batch, "visible_progress", remember),
        replaced(facts_module, "stable_progress", remembered),
        unread(),
    ):
        yield


def _recorded_before_the_baseline(_: Any) -> contextlib.AbstractContextManager[None]:
    """The checkpoint says that the batch was begun, and its progress does not exist yet."""

    def late(
        session: Session, attempt: TransactionTry, identity: ProducerIdentity
    ) -> Operation[ProducerIdentity]:
        yield from begin(attempt.plan)
        return (yield from commit_baseline(session, attempt, identity))

    return replaced(micro_batch, "commit_baseline", late)


def _newer_run_not_noticed(_: Any) -> contextlib.AbstractContextManager[None]:
    """A driver that finds itself overtaken goes on, and fences who has overtaken it."""
    return replaced(journal, "check_not_overtaken", _nothing_asked)


def _ended_runs_forgotten(_: Any) -> contextlib.AbstractContextManager[None]:
    """The record names the run before alone: one before that does not find itself there."""

    def forgetful(folder: str, begun: Begun) -> Operation[None]:
        return write_begun(folder, dataclasses.replace(begun, ended_runs=begun.ended_runs[-1:]))

    return replaced(journal, "write_begun", forgetful)


def _one_run_id_for_all(_: Any) -> contextlib.AbstractContextManager[None]:
    """Give all runs of a query one id, as the job group is: no run knows that it was overtaken."""

    def batch_of(**fields: Any) -> QueryBatch:
        return QueryBatch(**fields | {"run_id": "job group"})

    return replaced(spark_driver, "QueryBatch", batch_of)


def _failed_produce_ignored(_: Any) -> contextlib.AbstractContextManager[None]:
    """TxnOffsetCommit is answered, Produce has failed, and EndTxn(commit) is sent all the same."""
    produce = micro_batch._produce

    def careless(*given: Any) -> Operation[None]:
        with contextlib.suppress(TxnLogError):
            yield from produce(*given)

    return replaced(micro_batch, "_produce", careless)


def _staged_bytes_not_compared(_: Any) -> contextlib.AbstractContextManager[None]:
    """Bytes of the staged size are taken for what was staged, if they are record batches."""

    def size_only(piece: StagedChunk, data: Bytes) -> None:
        if len(data) != piece.size_bytes:
            raise ValueError("another size")

    return replaced(StagedChunk, "check", size_only)


def _former_coordinator_believed(_: Any) -> contextlib.AbstractContextManager[None]:
    """Believe a coordinator that may be a former one: do not read its facts again before EndTxn."""
    return unread()


COMMIT_PLANTS: dict[str, Plant] = {
    "baseline-not-transactional": _baseline_not_transactional,
    "id-changed-without-fencing": _id_changed_without_fencing,
    "others-fenced-before-the-own": _others_fenced_before_the_own,
    "id-recorded-too-late": _id_recorded_too_late,
    "only-the-last-id-fenced": _only_the_last_id_fenced,
    "group-not-compared": _group_not_compared,
    "start-compared-before-fencing": _start_compared_before_fencing,
    "progress-on-a-second-partition": _progress_on_a_second_partition,
    "judged-by-an-unstable-read": _judged_by_an_unstable_read,
    "recorded-before-the-baseline": _recorded_before_the_baseline,
    "staged-bytes-not-compared": _staged_bytes_not_compared,
    "newer-run-not-noticed": _newer_run_not_noticed,
    "ended-runs-forgotten": _ended_runs_forgotten,
    "one-run-id-for-all": _one_run_id_for_all,
    "failed-produce-ignored": _failed_produce_ignored,
}
"""Plants by name; the canary test runs each of them until it is caught."""


def _former_leader_believed(_: Any) -> contextlib.AbstractContextManager[None]:
    """Believe one broker about the end of a log."""

    def believed(
        session: Session,
        positions: Mapping[TopicPartition, int],
        said: Mapping[TopicPartition, int],
    ) -> Operation[dict[TopicPartition, int]]:
        del session, positions
        yield from ()
        return dict(said)

    return replaced(fetch, "confirm_log_ends", believed)


CONNECTOR_PLANTS_OF_CLUSTERS: dict[str, Plant] = {
    "former-coordinator-believed": _former_coordinator_believed,
    "former-leader-believed": _former_leader_believed,
}
"""Plants that need a scenario with several brokers."""
