"""Bugs planted in a query's commit: baseline, takeover, transactional ids, judgement.

Each is what a plausible slip in `txnlog_spark.commit` would be.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from txnlog_spark.commit import confirmation, micro_batch, query, takeover
from txnlog_spark.commit.attempt import CommitAttempt
from txnlog_spark.commit.facts import facts_about, visible_progress
from txnlog_spark.commit.journal import RecordedIdentity
from txnlog_spark.commit.judgement import Facts, judge
from txnlog_spark.commit.placement import place_progress
from txnlog_spark.commit.plan import CommitPlan, Progress
from txnlog_spark.commit.progress import baseline_of, progress_offset
from txnlog_spark.commit.takeover import commit_baseline, fence_other_ids, initialise
from txnlog_spark.commit.transactional_ids import record_ids
from txnlog_spark.protocol import fetch
from txnlog_spark.protocol.effects import Operation
from txnlog_spark.protocol.offsets import commit_offsets, fetch_committed
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.transaction import init_producer_id
from txnlog_spark.protocol.values import Bytes, ProducerIdentity, StagedPiece
from txnlog_spark.wire.topics import TopicPartition

Plant = Callable[[Any], contextlib.AbstractContextManager[None]]
"""Breaks one run's world (a `World`) or, for its length, one function of the product."""


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
    """What a batch was judged by is not read again: that would show the bug, or heal it."""
    with (
        replaced(micro_batch, "confirm", _nothing_asked),
        replaced(confirmation, "confirm", _nothing_asked),
    ):
        yield


def _baseline_not_transactional(_: Any) -> contextlib.AbstractContextManager[None]:
    """The baseline is a plain OffsetCommit, which a driver that was overtaken can do as well."""

    def plain(
        session: Session, attempt: CommitAttempt, identity: ProducerIdentity
    ) -> Operation[ProducerIdentity]:
        plan = attempt.plan
        progress = {plan.progress_partition: progress_offset(baseline_of(plan))}
        yield from commit_offsets(session, plan.progress_group_id, progress)
        return identity

    return replaced(micro_batch, "commit_baseline", plain)


def _resumed_although_fenced(_: Any) -> contextlib.AbstractContextManager[None]:
    """A worker goes on from whatever identity.json says, also when another run wrote it."""

    def any_run(held: Any, run: Any) -> ProducerIdentity | None:
        del held
        recorded: RecordedIdentity | None = run.recorded
        if recorded is None or recorded.transactional_id != run.transactional_id:
            return None
        return recorded.identity()

    return replaced(query, "_identity_of_run", any_run)


def _id_changed_without_fencing(_: Any) -> contextlib.AbstractContextManager[None]:
    """The holders of the query's other transactional ids are left alone."""
    return replaced(takeover, "fence_other_ids", _nothing_asked)


@contextlib.contextmanager
def _others_fenced_before_the_own(_: Any) -> Iterator[None]:
    """The later one of two drivers may have listed before the first had anything to fence; and
    nobody reads the progress again, which would show what the other one has committed."""

    def fence_first(
        session: Session, plan: CommitPlan, current: ProducerIdentity | None
    ) -> Operation[ProducerIdentity]:
        if current is not None or plan.journal is None:
            return (yield from initialise(session, plan, current))
        yield from record_ids(plan.journal.folder, plan)
        yield from fence_other_ids(session, plan, plan.journal.folder)
        name, timeout_ms = plan.transactional_id, plan.transaction_timeout_ms
        return (yield from init_producer_id(session, name, timeout_ms))

    with replaced(micro_batch, "initialise", fence_first), unread():
        yield


def _epoch_of_a_failed_try(_: Any) -> contextlib.AbstractContextManager[None]:
    """A run that tries a batch again, or goes on after it, goes on with the recorded epoch: nobody
    looks which attempt there was last."""
    original = query._identity_of_run

    def careless(held: Any, run: Any) -> ProducerIdentity | None:
        attempt, recorded = run.attempt, run.recorded
        if attempt is not None and recorded is not None:
            changed = {"run_id": run.run_id, "batch_id": recorded.next_batch_id - 1}
            run = dataclasses.replace(run, attempt=dataclasses.replace(attempt, **changed))
        return original(held, run)

    return replaced(query, "_identity_of_run", careless)


@contextlib.contextmanager
def _epoch_of_another_worker(_: Any) -> Iterator[None]:
    """The answer to InitProducerId with an epoch is taken for one that nobody has had."""

    def ask_once(
        session: Session, plan: CommitPlan, current: ProducerIdentity | None
    ) -> Operation[ProducerIdentity]:
        if current is None or current.initialised:
            return (yield from initialise(session, plan, current))
        name, timeout_ms = plan.transactional_id, plan.transaction_timeout_ms
        return (yield from init_producer_id(session, name, timeout_ms, current=current))

    with replaced(micro_batch, "initialise", ask_once):
        yield


@contextlib.contextmanager
def _id_recorded_too_late(_: Any) -> Iterator[None]:
    """Drivers record their ids when they have looked for others: two may miss each other; and
    nobody reads again what the other one may have committed."""

    def record_last(
        session: Session, plan: CommitPlan, current: ProducerIdentity | None
    ) -> Operation[ProducerIdentity]:
        if current is not None or plan.journal is None:
            return (yield from initialise(session, plan, current))
        name, timeout_ms = plan.transactional_id, plan.transaction_timeout_ms
        identity = yield from init_producer_id(session, name, timeout_ms)
        yield from fence_other_ids(session, plan, plan.journal.folder)
        yield from record_ids(plan.journal.folder, plan)
        return identity

    with replaced(micro_batch, "initialise", record_last), unread():
        yield


def _only_the_last_id_fenced(_: Any) -> contextlib.AbstractContextManager[None]:
    """The last attempt's id is fenced; one that has begun no batch yet is not thought of."""

    def last_only(session: Session, plan: CommitPlan, folder: str) -> Operation[None]:
        del folder
        name, timeout_ms = plan.previous_transactional_id, plan.transaction_timeout_ms
        if name is not None:
            yield from init_producer_id(session, name, timeout_ms)

    return replaced(takeover, "fence_other_ids", last_only)


def _without_questions(**without: Any) -> contextlib.AbstractContextManager[None]:
    original = facts_about

    def facts(session: Session, plan: CommitPlan, found: Progress | None) -> Operation[Facts]:
        return original(session, dataclasses.replace(plan, **without), found)

    return replaced(micro_batch, "facts_about", facts)


@contextlib.contextmanager
def _group_not_compared(_: Any) -> Iterator[None]:
    """After a takeover nobody looks whether the group still is where the batch before left it."""
    original = judge

    def careless(plan: CommitPlan, facts: Facts) -> Any:
        return original(dataclasses.replace(plan, previous_offsets={}), facts)

    with (
        _without_questions(previous_offsets={}),
        replaced(micro_batch, "judge", careless),
        replaced(confirmation, "judge", careless),
    ):
        yield


@contextlib.contextmanager
def _start_compared_before_fencing(_: Any) -> Iterator[None]:
    """What the query starts from is compared while an old driver can still move it; and nobody
    reads it again."""
    early: dict[int, list[Any]] = {}
    """By session: several drivers are at work."""
    facts_of = facts_about

    def compare_first(
        session: Session, plan: CommitPlan, current: ProducerIdentity | None
    ) -> Operation[ProducerIdentity]:
        early[id(session)] = []
        for expected in plan.expected:
            found = yield from fetch_committed(session, expected.group_id, require_stable=False)
            early[id(session)].append({p: c.committed_offset for p, c in found.items()})
        return (yield from initialise(session, plan, current))

    def facts(session: Session, plan: CommitPlan, found: Progress | None) -> Operation[Facts]:
        known = yield from facts_of(session, plan, found)
        compared = tuple(early.get(id(session), ()))
        is_whole = len(known.expected) == len(compared)
        return dataclasses.replace(known, expected=compared) if is_whole else known

    with (
        replaced(micro_batch, "initialise", compare_first),
        replaced(micro_batch, "facts_about", facts),
        unread(),
    ):
        yield


def _progress_on_a_second_partition(_: Any) -> contextlib.AbstractContextManager[None]:
    """Each batch commits its progress where it likes."""
    original = place_progress

    def place(session: Session, **known: Any) -> Operation[Any]:
        found = yield from original(session, **known)
        partitions = sorted(known["sources"])
        return partitions[session.monotonic_ms() % len(partitions)] if partitions else found

    return replaced(query, "place_progress", place)


@contextlib.contextmanager
def _judged_by_an_unstable_read(_: Any) -> Iterator[None]:
    """The progress that was visible before the fence decides; what was undecided then is missed,
    and nobody reads it again."""
    visible = visible_progress
    last: dict[int, Progress | None] = {}

    def remember(session: Session, plan: CommitPlan) -> Operation[Progress | None]:
        last[id(session)] = yield from visible(session, plan)
        return last[id(session)]

    def remembered(session: Session, plan: CommitPlan) -> Operation[Progress | None]:
        if id(session) not in last:
            last[id(session)] = yield from visible(session, plan)
        return last[id(session)]

    with (
        replaced(micro_batch, "visible_progress", remember),
        replaced(micro_batch, "stable_progress", remembered),
        unread(),
    ):
        yield


def _recorded_before_the_baseline(_: Any) -> contextlib.AbstractContextManager[None]:
    """The checkpoint says that the batch was begun, and its progress does not exist yet."""

    def late(
        session: Session, attempt: CommitAttempt, identity: ProducerIdentity
    ) -> Operation[ProducerIdentity]:
        if attempt.plan.journal is not None:
            yield from attempt.plan.journal.begin(attempt.plan)
        return (yield from commit_baseline(session, attempt, identity))

    return replaced(micro_batch, "commit_baseline", late)


def _staged_bytes_not_compared(_: Any) -> contextlib.AbstractContextManager[None]:
    """Bytes of the staged size are taken for what was staged, if they are record batches."""

    def size_only(piece: StagedPiece, data: Bytes) -> None:
        if len(data) != piece.size_bytes:
            raise ValueError("another size")

    return replaced(StagedPiece, "check", size_only)


def _former_coordinator_believed(_: Any) -> contextlib.AbstractContextManager[None]:
    """What was read of a coordinator that may be a former one is not read again before EndTxn."""
    return unread()


COMMIT_PLANTS: dict[str, Plant] = {
    "baseline-not-transactional": _baseline_not_transactional,
    "resumed-although-fenced": _resumed_although_fenced,
    "epoch-of-another-worker": _epoch_of_another_worker,
    "epoch-of-a-failed-try": _epoch_of_a_failed_try,
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
}
"""By name; the canary test runs each until it is caught."""


def _former_leader_believed(_: Any) -> contextlib.AbstractContextManager[None]:
    """Where a log ends is what one broker says of it."""

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
"""They need a scenario with several brokers."""
