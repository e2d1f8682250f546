"""Partitions that exist, and where they start and end when a batch is planned."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DataLoss, UnknownTopic
from txnlog_spark.source import data_loss, hanging_transactions
from txnlog_spark.source.brokers import Brokers, Offsets, Partitions, Positions
from txnlog_spark.source.hanging_transactions import HangingTransaction

DISCOVERY_MS = 1_000
"""An idle query asks for its end a hundred times a second; for new partitions once a second.

With a pattern only the topics that it matched are asked for so often. Listing all topics is seconds
of work on a large cluster: it is done once in `kafka.metadata.max.age.ms`, as in Kafka's consumer,
and when a matched topic is gone. `partition.metadata.cache.ttl.ms` replaces both times.
"""
HIGH_WATERMARK_MS = 1_000
"""Time between two requests for the high watermarks."""

JsonOffset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SourceState:
    """A run's memory from one question of Spark to the next; plain values."""

    source_id: str = ""
    """The name of a new query's source; the offsets of an older query have its name."""
    initial: Positions | None = None
    """The run's start, once it was asked for."""
    target: Offsets | None = None
    """The run's end with the trigger availableNow."""
    latest: JsonOffset | None = None
    """The log's end when the last batch was asked for, records behind an open transaction
    included, as a query that waits for one is not up to date; None before the first batch."""
    high: Offsets = field(default_factory=dict)
    high_at_ms: float = -math.inf
    """When these were asked for."""
    hanging: hanging_transactions.Since = field(default_factory=dict)
    partitions: Partitions | None = None
    found_at_ms: float = -math.inf
    """When these were found."""
    listed_at_ms: float = -math.inf
    """When all topics were last listed."""
    fired_at_ms: float = -math.inf
    """When a batch was planned."""


T = TypeVar("T")
Learnt = Operation[tuple[T, SourceState]]
"""An operation that gives an answer, and the run's state after it."""


def list_partitions(brokers: Brokers, state: SourceState) -> Learnt[Partitions]:
    """List what exists before it is known which partitions are read; not yet the last word."""
    found = yield from brokers.discover()
    return found, replace(state, partitions=found, listed_at_ms=brokers.session.monotonic_ms())


def freeze_end(brokers: Brokers, state: SourceState) -> Operation[SourceState]:
    """End the query at what is in the log now, and log which records that leaves out."""
    partitions, state = yield from list_partitions(brokers, state)
    target = yield from _ends_of(brokers, partitions)
    held_up, target, state = yield from _held_up(brokers, state, target)
    _warn(brokers, "with availableNow this query ends before an open transaction in", held_up)
    return replace(state, target=target)


def find_ends(brokers: Brokers, state: SourceState, begin: Offsets) -> Learnt[Offsets]:
    """Return where every partition ends now, or the target of AvailableNow."""
    ends = state.target
    if ends is None:
        return (yield from _ends_now(brokers, state, begin))
    if lost := [p for p in begin if p not in ends]:
        # Frozen before it was known what the query reads; asked for by name some may be there.
        found, state = yield from _ends_now(brokers, state, begin)
        ends = ends | {p: found[p] for p in lost if p in found}
        state = replace(state, target=ends)
    return ends, state


def clip_target(
    brokers: Brokers, state: SourceState, ends: Offsets, recreated: Collection[str]
) -> Learnt[Offsets]:
    """Return the ends, a target's within the logs of topics that were recreated after it."""
    if state.target is None:
        return ends, state
    again = [p for p in ends if p.topic in recreated]
    now = yield from _ends_of(brokers, again, again)
    ends = {p: min(at, now.get(p, at)) for p, at in ends.items() if p in now or p not in again}
    return ends, replace(state, target=ends)


def find_bounds(
    brokers: Brokers, begin: Offsets, ends: Offsets
) -> Operation[tuple[Offsets, Offsets]]:
    """Return where every partition starts and ends. Raises DataLoss."""
    report(brokers, data_loss.find_deleted(begin, ends, brokers.settings.selection.reads))
    if suspects := data_loss.find_rewound(begin, ends):
        names = [loss.topic_partition for loss in suspects]
        ends = yield from _after_rewind(brokers, begin, ends, names)
    starts = begin
    if added := [p for p in ends if p not in begin]:
        starts = begin | (yield from starts_of_added(brokers, added))
        brokers.session.notice(f"new partitions: {', '.join(map(str, added))}")
    return starts, {p: end for p, end in ends.items() if p in starts}


def starts_of_added(brokers: Brokers, added: list[TopicPartition]) -> Operation[Offsets]:
    """Return where newly discovered partitions start, without deleted ones. Raises DataLoss.

    Asked again when the batch is replayed, as Spark does not keep these starts: records that were
    deleted in between are lost.
    """
    try:
        earliest = yield from brokers.earliest(added)
    except UnknownTopic as error:
        deleted = _deleted(brokers, added, error, added)
        return (yield from starts_of_added(brokers, [p for p in added if p.topic not in deleted]))
    report(brokers, data_loss.find_late_additions(earliest))
    return earliest


def report(brokers: Brokers, losses: list[data_loss.Loss]) -> None:
    """Raise DataLoss for losses; with failOnDataLoss=false log them."""
    text = "; ".join(map(str, losses))
    if losses and brokers.settings.fail_on_data_loss:
        raise DataLoss(
            f"{text}: set failOnDataLoss=false to go on with what is left, a recreated topic from "
            "its beginning, or start a new checkpoint"
        )
    if losses:
        brokers.session.notice(f"records are gone, going on with what is left: {text}")


def _ends_now(brokers: Brokers, state: SourceState, begin: Offsets) -> Learnt[Offsets]:
    partitions, state = yield from _existing(brokers, state, begin)
    ends = yield from _ends_of(brokers, partitions, begin)
    now_ms = brokers.session.monotonic_ms()
    if now_ms >= state.high_at_ms + HIGH_WATERMARK_MS:
        held_up, ends, state = yield from _held_up(brokers, state, ends, begin)
        lasting, hanging = hanging_transactions.find_lasting(state.hanging, held_up, now_ms)
        state = replace(state, high_at_ms=now_ms, hanging=hanging)
        _warn(brokers, "for a minute nothing could be read behind an open transaction in", lasting)
    if len(ends) < len(partitions):
        state = replace(state, partitions=None)
    return ends, state


def _ends_of(
    brokers: Brokers,
    partitions: Iterable[TopicPartition],
    begin: Iterable[TopicPartition] = (),
    *,
    read_committed: bool | None = None,
) -> Operation[Offsets]:
    """Return the ends of the partitions whose topics were not deleted since they were found.

    Raises DataLoss for a deleted one of `begin`.
    """
    left = list(partitions)
    while True:
        try:
            return (yield from brokers.latest(left, read_committed=read_committed))
        except UnknownTopic as error:
            gone = _deleted(brokers, left, error, begin)
            left = [p for p in left if p.topic not in gone]


def _held_up(
    brokers: Brokers, state: SourceState, ends: Offsets, begin: Iterable[TopicPartition] = ()
) -> Operation[tuple[list[HangingTransaction], Offsets, SourceState]]:
    """Find partitions with records after these last stable offsets, and which are still there."""
    if not brokers.settings.read_committed:
        return [], ends, state
    high = yield from _ends_of(brokers, ends, begin, read_committed=False)
    ends = {p: ends[p] for p in high}
    found = [HangingTransaction(p, at, high[p]) for p, at in sorted(ends.items()) if high[p] > at]
    return found, ends, replace(state, high=high)


def _warn(brokers: Brokers, problem: str, found: list[HangingTransaction]) -> None:
    if found:
        where = hanging_transactions.explain(found, brokers.session.bootstrap_servers)
        brokers.session.notice(f"{problem} {where}")


def _existing(brokers: Brokers, state: SourceState, begin: Offsets) -> Learnt[Partitions]:
    """Return the partitions that exist; a deleted topic is left out, not an error yet."""
    now_ms, cache_ms = brokers.session.monotonic_ms(), brokers.settings.partition_cache_ms
    found, matching = state.partitions, None
    if found is not None:
        if now_ms < state.found_at_ms + (cache_ms if cache_ms > 0 else DISCOVERY_MS):
            return found, state
        # The topics that a pattern matched, unless all are to be listed again.
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
    brokers: Brokers, begin: Offsets, ends: Offsets, suspects: list[TopicPartition]
) -> Operation[Offsets]:
    """Return the ends, after looking again at partitions that seem to have lost their tail.

    The last stable offset lies before the position also when the query read uncommitted records
    before: the position then holds until the transactions there are decided.
    """
    latest = yield from brokers.latest(suspects, read_committed=False)
    if short := {p: begin[p] for p in suspects if latest[p] < begin[p]}:
        latest |= yield from brokers.confirm_log_ends(short, latest)
    report(brokers, data_loss.find_rewound(begin, latest))
    return ends | {p: begin[p] if latest[p] >= begin[p] else ends[p] for p in suspects}


def _deleted(
    brokers: Brokers,
    asked: Collection[TopicPartition],
    error: UnknownTopic,
    begun: Iterable[TopicPartition],
) -> frozenset[str]:
    """Report topics that were deleted, if they are `begun`. Raises `error` if none was `asked`."""
    topics = frozenset(error.topics)
    if not topics or not topics <= {p.topic for p in asked}:
        raise error
    report(
        brokers, [data_loss.Loss(p, "its topic was deleted") for p in begun if p.topic in topics]
    )
    return topics
