"""Partitions that exist, with their starts and ends at the time of planning a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DataLoss, UnknownTopic
from txnlog_spark.source import data_loss, hanging_transactions
from txnlog_spark.source.log_queries import LogQueries, Offsets, Partitions, Positions
from txnlog_spark.source.planning import OffsetRange, plan_ranges

DISCOVERY_MS = 1_000
"""Time between two searches for new partitions. An idle query asks for its end far more often.

With a pattern, only the topics that matched it are asked for so often. Listing all topics takes
seconds on a large cluster. It is done once in `kafka.metadata.max.age.ms`, as in Kafka's consumer,
and when a matched topic is gone. `partition.metadata.cache.ttl.ms` replaces both times.
"""
HIGH_WATERMARK_MS = 1_000
"""Time between two requests for the high watermarks."""

JsonOffset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SourceState:
    """A run's memory from one question of Spark to the next: plain values, times in ms."""

    source_id: str = ""
    """The name of a new query's source; the offsets of an older query have its name."""
    initial: Positions | None = None
    """The run's start, once it was asked for."""
    target: Offsets | None = None
    """The run's end with the trigger availableNow."""
    latest: JsonOffset | None = None
    """The log's end when the last batch was asked for; None before the first batch. Records behind
    an open transaction count: a query that waits for one is not up to date."""
    high: Offsets = field(default_factory=dict)
    """High watermarks, which were asked for at `high_at_ms`."""
    high_at_ms: float = -math.inf
    hanging: hanging_transactions.Since = field(default_factory=dict)
    partitions: Partitions | None = None
    found_at_ms: float = -math.inf
    """Time when a batch last looked for partitions."""
    listed_at_ms: float = -math.inf
    """Time when all topics were last listed."""
    fired_at_ms: float = -math.inf
    """Time when the last batch was planned."""


T = TypeVar("T")
Learnt = Operation[tuple[T, SourceState]]
"""An operation that gives an answer, and the run's state after it."""


def list_partitions(brokers: LogQueries, state: SourceState) -> Learnt[Partitions]:
    """List the existing partitions; some may be missing, as no position is known yet."""
    found = yield from brokers.discover()
    return found, replace(state, partitions=found, listed_at_ms=brokers.session.monotonic_ms())


def freeze_end(brokers: LogQueries, state: SourceState) -> Operation[SourceState]:
    """End the query at the present end of the log, and log which records that leaves out."""
    partitions, state = yield from list_partitions(brokers, state)
    target = yield from _ask_existing(brokers, brokers.latest, partitions)
    held_up, target, state = yield from _held_up(brokers, state, target)
    _warn(brokers, "with availableNow this query ends before an open transaction in", held_up)
    return replace(state, target=target)


def find_ends(brokers: LogQueries, state: SourceState, begin: Offsets) -> Learnt[Offsets]:
    """Return the present end of every partition, or the target of AvailableNow."""
    ends = state.target
    if ends is None:
        return (yield from _ends_now(brokers, state, begin))
    if lost := [p for p in begin if p not in ends]:
        # The target was frozen before it was known what the query reads. Some of these partitions
        # may exist after all when they are asked for by name.
        found, state = yield from _ends_now(brokers, state, begin)
        ends = ends | {p: found[p] for p in lost if p in found}
        state = replace(state, target=ends)
    return ends, state


def clip_target(
    brokers: LogQueries, state: SourceState, ends: Offsets, recreated: Collection[str]
) -> Learnt[Offsets]:
    """Return the ends; a target is cut to the present logs of topics that were recreated since."""
    if state.target is None:
        return ends, state
    again = [p for p in ends if p.topic in recreated]
    now = yield from _ask_existing(brokers, brokers.latest, again, again)
    ends = {p: min(at, now.get(p, at)) for p, at in ends.items() if p in now or p not in again}
    return ends, replace(state, target=ends)


def find_bounds(
    brokers: LogQueries, begin: Offsets, ends: Offsets
) -> Operation[tuple[Offsets, Offsets]]:
    """Return where every partition starts and ends. Raises DataLoss."""
    report(brokers, data_loss.find_deleted(begin, ends, brokers.settings.selection.reads))
    if suspects := [loss.topic_partition for loss in data_loss.find_rewound(begin, ends)]:
        ends = yield from _after_rewind(brokers, begin, ends, suspects)
    added = [p for p in ends if p not in begin]
    starts = begin | (yield from starts_of_added(brokers, added))
    if added:
        brokers.session.notice(f"new partitions: {', '.join(map(str, added))}")
    return starts, {p: end for p, end in ends.items() if p in starts}


def starts_of_added(brokers: LogQueries, added: list[TopicPartition]) -> Operation[Offsets]:
    """Return the starts of newly discovered partitions, without deleted ones. Raises DataLoss.

    A replayed batch asks again, as Spark does not keep them: records deleted meanwhile are lost.
    """
    earliest = yield from _ask_existing(brokers, brokers.earliest, added, added)
    report(brokers, data_loss.find_late_additions(earliest))
    return earliest


def report(brokers: LogQueries, losses: list[data_loss.Loss]) -> None:
    """Raise DataLoss for losses; with failOnDataLoss=false log them."""
    text = "; ".join(map(str, losses))
    if losses and brokers.settings.fail_on_data_loss:
        raise DataLoss(
            f"{text}: set failOnDataLoss=false to go on with what is left, and with a recreated "
            "topic from its beginning"
        )
    if losses:
        brokers.session.notice(f"records are gone, going on with what is left: {text}")


def _ends_now(brokers: LogQueries, state: SourceState, begin: Offsets) -> Learnt[Offsets]:
    partitions, state = yield from _existing(brokers, state, begin)
    ends = yield from _ask_existing(brokers, brokers.latest, partitions, begin)
    now_ms = brokers.session.monotonic_ms()
    if now_ms >= state.high_at_ms + HIGH_WATERMARK_MS:
        held_up, ends, state = yield from _held_up(brokers, state, ends, begin)
        lasting, hanging = hanging_transactions.find_lasting(state.hanging, held_up, now_ms)
        state = replace(state, high_at_ms=now_ms, hanging=hanging)
        _warn(brokers, "for a minute nothing could be read behind an open transaction in", lasting)
    if len(ends) < len(partitions):
        state = replace(state, partitions=None)
    return ends, state


def _ask_existing(
    brokers: LogQueries,
    ask: Callable[[list[TopicPartition]], Operation[Offsets]],
    partitions: Iterable[TopicPartition],
    begun: Iterable[TopicPartition] = (),
) -> Operation[Offsets]:
    """Ask for offsets of partitions that exist. Raises DataLoss if one of `begun` was deleted."""
    left = list(partitions)
    while True:
        try:
            return (yield from ask(left))
        except UnknownTopic as error:
            gone = _deleted(brokers, left, error, begun)
            left = [p for p in left if p.topic not in gone]


def _held_up(
    brokers: LogQueries, state: SourceState, ends: Offsets, begin: Iterable[TopicPartition] = ()
) -> Operation[tuple[list[OffsetRange], Offsets, SourceState]]:
    """Find the offsets after these last stable offsets; leave out partitions that are gone."""
    if not brokers.settings.read_committed:
        return [], ends, state
    high = yield from _ask_existing(brokers, brokers.high_watermarks, ends, begin)
    ends = {p: ends[p] for p in high}
    return plan_ranges(ends, high), ends, replace(state, high=high)


def _warn(brokers: LogQueries, problem: str, found: list[OffsetRange]) -> None:
    if found:
        where = hanging_transactions.explain(found, brokers.session.bootstrap_servers)
        brokers.session.notice(f"{problem} {where}")


def _existing(brokers: LogQueries, state: SourceState, begin: Offsets) -> Learnt[Partitions]:
    """Return the partitions that exist; a deleted topic is left out, not an error yet."""
    now_ms, cache_ms = brokers.session.monotonic_ms(), brokers.settings.partition_cache_ms
    found, matching = state.partitions, None
    if found is not None:
        if now_ms < state.found_at_ms + (cache_ms if cache_ms > 0 else DISCOVERY_MS):
            return found, state
        # Ask only for the topics that the pattern matched, unless all are to be listed again.
        if cache_ms <= 0 and now_ms < state.listed_at_ms + brokers.settings.metadata_max_age_ms:
            matching = frozenset(p.topic for p in found)
    without: frozenset[str] = frozenset()
    while True:
        try:
            found = yield from brokers.discover(known=begin, without=without, matching=matching)
            break
        except UnknownTopic as error:
            begun = [p for p in begin if p.topic not in without]
            without |= _deleted(brokers, begun, error, begun)
    now_ms = brokers.session.monotonic_ms()
    state = replace(state, partitions=found, found_at_ms=now_ms)
    return found, state if matching is not None else replace(state, listed_at_ms=now_ms)


def _after_rewind(
    brokers: LogQueries, begin: Offsets, ends: Offsets, suspects: list[TopicPartition]
) -> Operation[Offsets]:
    """Return the ends, after looking again at partitions that seem to have lost their tail.

    The last stable offset lies before the position also when the query read uncommitted records
    before: the position then holds until the transactions there are decided.
    """
    latest = yield from brokers.high_watermarks(suspects)
    if short := {p: begin[p] for p in suspects if latest[p] < begin[p]}:
        latest |= yield from brokers.confirm_log_ends(short, latest)
    report(brokers, data_loss.find_rewound(begin, latest))
    return ends | {p: begin[p] if latest[p] >= begin[p] else ends[p] for p in suspects}


def _deleted(
    brokers: LogQueries,
    asked: Collection[TopicPartition],
    error: UnknownTopic,
    begun: Iterable[TopicPartition],
) -> frozenset[str]:
    """Report topics that were deleted, if they are `begun`. Raises `error` if none was `asked`."""
    topics = frozenset(error.topics)
    if not topics or not topics <= {p.topic for p in asked}:
        raise error
    lost = [data_loss.Loss(p, "its topic was deleted") for p in begun if p.topic in topics]
    report(brokers, lost)
    return topics
