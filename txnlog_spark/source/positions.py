"""Rules from the options' request to an offset per partition: pure, given the brokers' answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DataLoss, NoCommittedOffsets, OptionError
from txnlog_spark.offsets import EARLIEST_OFFSET, LATEST_OFFSET, SourceOffset, format_offsets
from txnlog_spark.source.selection import COMMITTED, COMMITTED_WORDS, PositionRequest

NO_OFFSET = -1
"""ListOffsets' answer if no record is as late as the timestamp."""
NAMES_SHOWN_MAX = 5
"""Partitions that a message names; a topic may have thousands."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The brokers' answers: log start and end per partition, and the other answers of the request.

    `latest` is the last stable offset under read_committed. `by_timestamp` holds -1 if no record is
    that late. `high_watermark` has partitions whose position may lie after `latest`.
    """

    earliest: SourceOffset
    latest: SourceOffset
    by_timestamp: SourceOffset = field(default_factory=dict)
    committed: SourceOffset = field(default_factory=dict)
    high_watermark: SourceOffset = field(default_factory=dict)


def timestamps_wanted(
    request: PositionRequest, partitions: Iterable[TopicPartition]
) -> SourceOffset:
    """Return the timestamp (ms) to look up per partition; empty if the request has none."""
    times = request.timestamps_ms
    if times is None:
        return {}
    if isinstance(times, int):
        return dict.fromkeys(partitions, times)
    _check_named(times, partitions, f"{request.option}ByTimestamp")
    return times


def resolve_positions(
    request: PositionRequest, partitions: Iterable[TopicPartition], bounds: Bounds
) -> dict[TopicPartition, int]:
    """Return the offset of every partition.

    A partition without a position of the group starts at its earliest offset, like one discovered
    later. If the group has no position at all, the word says where to start. Raises OptionError
    for a request that does not name exactly the partitions, or a timestamp after the last record.
    """
    names = sorted(partitions)
    if request.timestamps_ms is not None:
        wanted = timestamps_wanted(request, names)
        return {p: _at_timestamp(request, p, wanted[p], bounds) for p in names}
    if request.offsets is not None:
        _check_named(request.offsets, names, request.option)
        special = {EARLIEST_OFFSET: bounds.earliest, LATEST_OFFSET: bounds.latest}
        return {p: special.get(request.offsets[p], request.offsets)[p] for p in names}
    word = request.word
    if word in COMMITTED_WORDS:
        if word == COMMITTED or any(p in bounds.committed for p in names):
            return {p: bounds.committed.get(p, bounds.earliest[p]) for p in names}
        word = COMMITTED_WORDS[word]
    source = bounds.earliest if word == "earliest" else bounds.latest
    return {p: source[p] for p in names}


def explain_group_start(
    request: PositionRequest,
    group_id: str,
    partitions: Iterable[TopicPartition],
    committed: SourceOffset,
) -> str:
    """Say where a start from a group begins, for the log.

    Raises NoCommittedOffsets if the word `committed` finds no position in any partition. A group
    that is misspelt or has expired would otherwise process everything again, silently.
    """
    names = sorted(partitions)
    new = [p for p in names if p not in committed]
    start = f"startingOffsets={request.word}: group {group_id!r} has"
    if len(new) < len(names):
        shown = (p for p in names[:NAMES_SHOWN_MAX] if p in committed)
        known = ", ".join(f"{p} at {committed[p]}" for p in shown)
        without = f", the earliest of {len(new)} partitions that it has none in" if new else ""
        return f"{start} committed offsets, the query starts from them ({known}){without}"
    if request.word != COMMITTED:
        at = COMMITTED_WORDS[present(request.word, "only a word starts from the group")]
        return f"{start} no committed offset, the query starts from the {at}"
    topics = sorted({p.topic for p in names})
    read = ", ".join(topics[:NAMES_SHOWN_MAX]) or "no topic matches"
    raise NoCommittedOffsets(
        f"{start} no committed offset in any of the {len(names)} partitions that are read "
        f"({read}): its name is misspelt, it never committed, or its offsets expired (7 days after "
        "its last commit, if offsets.retention.minutes is not set). Nothing was read. For a first "
        "start set startingOffsets=committedOrEarliest or committedOrLatest. After an expiry "
        "compare the output with the input: the earliest would write the same output again; "
        "startingOffsets can name the offset of each partition instead"
    )


def offsets_are_lost(
    request: PositionRequest,
    group_id: str,
    partitions: Iterable[TopicPartition],
    remaining: SourceOffset,
) -> NoCommittedOffsets:
    """Return the error for a group that lacks offsets which its last batch had.

    A start at the earliest offsets of these partitions would write their rows again.
    """
    lost = sorted(set(partitions) - remaining.keys())
    shown = ", ".join(map(str, lost[:NAMES_SHOWN_MAX]))
    return NoCommittedOffsets(
        f"startingOffsets={request.word}: group {group_id!r} has no committed offset in "
        f"{len(lost)} of the {len(lost) + len(remaining)} partitions that are read ({shown}), and "
        "its other offsets differ from its last batch: offsets have expired (each 7 days "
        "after its own last commit, if offsets.retention.minutes is not set), or somebody deleted "
        "or moved them. Nothing was read. The earliest would write the output of these partitions "
        "again. Compare the output with them, and set startingOffsets to the next offset of each "
        "partition, or to -2 where the output has nothing of a partition: "
        f"{format_offsets({**remaining, **dict.fromkeys(lost, EARLIEST_OFFSET)})}"
    )


def is_repeatable(request: PositionRequest) -> bool:
    """True if asking later gives the same start, as long as no records are deleted. Latest moves
    with every record, and committed offsets with each commit of another driver."""
    if request.timestamps_ms is not None:
        return not request.latest_if_none
    if request.offsets is not None:
        return LATEST_OFFSET not in request.offsets.values()
    return request.word != "latest" and not starts_from_group(request)


def starts_from_group(request: PositionRequest) -> bool:
    """True if committed offsets decide: a timestamp in the options takes precedence."""
    return request.word in COMMITTED_WORDS and request.timestamps_ms is None


def check_order(start: SourceOffset, end: SourceOffset, option: str) -> None:
    """Raise OptionError for a partition that ends before it starts; a negative end is a word."""
    for partition, until in sorted(end.items()):
        if start.get(partition, 0) > until >= 0:
            text = f"at most {until}, where the read of {partition} ends"
            raise OptionError(option, start[partition], text)


def named_ends(request: PositionRequest, end: SourceOffset) -> SourceOffset:
    """Return the ends that options name. A start after the latest end waits for transactions."""
    if request.timestamps_ms is not None:
        return end
    return {p: end[p] for p, at in (request.offsets or {}).items() if at != LATEST_OFFSET}


def check_in_log(
    positions: SourceOffset, bounds: Bounds, *, fail_on_data_loss: bool, option: str
) -> dict[TopicPartition, int]:
    """Move positions outside the log to its nearest end. Raises DataLoss if `fail_on_data_loss`.

    The log ends at the high watermark if that is given. A position after the last stable offset
    (read with read_uncommitted before) waits there for the transactions to be decided.
    """
    checked: dict[TopicPartition, int] = {}
    for partition, position in positions.items():
        low, high = bounds.earliest[partition], bounds.latest[partition]
        high = max(high, bounds.high_watermark.get(partition, high))
        if fail_on_data_loss and not low <= position <= high:
            raise DataLoss(
                f"{option} asks for offset {position} of {partition}, the log holds {low} to "
                f"{high} (exclusive): name an offset in the log, or set failOnDataLoss=false"
            )
        checked[partition] = min(max(position, low), high)
    return checked


def _at_timestamp(
    request: PositionRequest, partition: TopicPartition, timestamp_ms: int, bounds: Bounds
) -> int:
    position, latest = bounds.by_timestamp.get(partition, NO_OFFSET), bounds.latest[partition]
    if position != NO_OFFSET:
        return min(position, latest)
    if request.latest_if_none:
        return latest
    is_one = isinstance(request.timestamps_ms, int)
    raise OptionError(
        "startingTimestamp" if is_one else f"{request.option}ByTimestamp",
        timestamp_ms,
        f"no record of {partition} is as late: name an earlier time, or set "
        "startingOffsetsByTimestampStrategy=latest",
    )


def _check_named(named: SourceOffset, partitions: Iterable[TopicPartition], option: str) -> None:
    expected = set(partitions)
    if named.keys() == expected:
        return
    missing = ", ".join(map(str, sorted(expected - named.keys())))
    unknown = ", ".join(map(str, sorted(named.keys() - expected)))
    changes = [missing and f"name also {missing}", unknown and f"leave out {unknown}"]
    raise OptionError(
        option,
        format_offsets(named),
        "it must name exactly the partitions that are read, -1 for latest, -2 for earliest: "
        + "; ".join(filter(None, changes)),
    )
