"""From what the options ask for to an offset per partition: pure, given the brokers' answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DataLoss, NoCommittedOffsets, OptionError
from txnlog_spark.offsets import EARLIEST_OFFSET, LATEST_OFFSET, SourceOffset, format_offsets
from txnlog_spark.source.selection import COMMITTED, COMMITTED_WORDS, PositionRequest

NO_OFFSET = -1
"""ListOffsets' answer when no record is as late as the timestamp."""
NAMES_SHOWN_MAX = 5
"""A message names this many partitions; a topic may have thousands."""

NameT = TypeVar("NameT")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the brokers say: log start and end per partition, and what else was asked for.

    `latest` is the last stable offset under read_committed. `by_timestamp` holds -1 where no
    record is that late; `committed` lacks partitions that the group has no position in.
    `high_watermark` is given where a position may lie between the last stable offset and it.
    """

    earliest: SourceOffset
    latest: SourceOffset
    by_timestamp: SourceOffset = field(default_factory=dict)
    committed: SourceOffset = field(default_factory=dict)
    high_watermark: SourceOffset = field(default_factory=dict)


def timestamps_wanted(
    request: PositionRequest, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The timestamp (ms) to look up per partition; empty when the request has none."""
    if request.timestamp_ms is not None:
        return dict.fromkeys(partitions, request.timestamp_ms)
    if request.timestamps_ms is None:
        return {}
    _check_all_named(request.timestamps_ms, partitions, f"{request.option}ByTimestamp")
    return dict(request.timestamps_ms)


def resolve_positions(
    request: PositionRequest, partitions: Iterable[TopicPartition], bounds: Bounds
) -> dict[TopicPartition, int]:
    """The offset of every partition.

    A partition that a group has no position in starts at the earliest, as one that is discovered
    later does; where it has none at all, the word says where to start. Raises OptionError when the
    request does not name exactly the partitions that are read, or no record is as late as a
    timestamp.
    """
    names = sorted(partitions)
    wanted = timestamps_wanted(request, names)
    if wanted:
        return {p: _at_timestamp(request, p, wanted[p], bounds) for p in names}
    if request.offsets is not None:
        _check_all_named(request.offsets, names, request.option)
        return {p: _specified(request.offsets[p], p, bounds) for p in names}
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
    """Where a start from a group begins, for the log.

    Raises NoCommittedOffsets when the word `committed` finds no position in any partition: a group
    that is misspelt or has expired would otherwise process everything again, silently.
    """
    names = sorted(partitions)
    new = [p for p in names if p not in committed]
    start = f"startingOffsets={request.word}: group {group_id!r} has"
    if len(new) < len(names):
        known = ", ".join(f"{p} at {committed[p]}" for p in _shown(names) if p in committed)
        without = f", the earliest of {len(new)} partitions that it has none in" if new else ""
        return f"{start} committed offsets, the query starts from them ({known}){without}"
    if request.word != COMMITTED:
        at = COMMITTED_WORDS[present(request.word, "only a word starts from the group")]
        return f"{start} no committed offset, the query starts from the {at}"
    topics = sorted({p.topic for p in names})
    read = ", ".join(map(str, _shown(topics))) or "no topic matches"
    raise NoCommittedOffsets(
        f"{start} no committed offset in any of the {len(names)} partitions that are read "
        f"({read}). Its name is misspelt, or it never committed, or its offsets expired "
        "(offsets.retention.minutes after its last commit, 7 days by default). Nothing was read. "
        "For a first start set startingOffsets=committedOrEarliest or committedOrLatest. After an "
        "expiry compare the output with the input first: the earliest would process again what is "
        "in the output already; startingOffsets can name the offset of each partition instead"
    )


def _shown(names: Sequence[NameT]) -> Sequence[NameT]:
    return names[:NAMES_SHOWN_MAX]


def is_repeatable(request: PositionRequest) -> bool:
    """Whether asking again later gives the same start, as long as no records are deleted.

    Earliest and named offsets are; latest moves with every record, and a timestamp that nothing had
    reached is taken as latest. The committed offsets move with every commit of another driver.
    """
    if starts_from_group(request):
        return False
    if request.timestamp_ms is not None or request.timestamps_ms is not None:
        return not request.latest_if_none
    if request.offsets is not None:
        return LATEST_OFFSET not in request.offsets.values()
    return request.word != "latest"


def starts_from_group(request: PositionRequest) -> bool:
    """Whether the committed offsets decide: a timestamp beside them wins over them."""
    timestamps = request.timestamp_ms is not None or request.timestamps_ms is not None
    return request.word in COMMITTED_WORDS and not timestamps


def check_in_log(
    positions: SourceOffset, bounds: Bounds, *, fail_on_data_loss: bool, option: str
) -> dict[TopicPartition, int]:
    """Positions that lie in the log; one outside it is an error, or is moved to the nearest end.

    The log ends at the high watermark where that is given: a position behind the last stable offset
    (read with read_uncommitted before) waits there for the transactions to be decided.
    Raises DataLoss naming the first such partition when `fail_on_data_loss`.
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


def _specified(position: int, partition: TopicPartition, bounds: Bounds) -> int:
    special = {EARLIEST_OFFSET: bounds.earliest, LATEST_OFFSET: bounds.latest}.get(position)
    return position if special is None else special[partition]


def _at_timestamp(
    request: PositionRequest, partition: TopicPartition, timestamp_ms: int, bounds: Bounds
) -> int:
    position = bounds.by_timestamp.get(partition, NO_OFFSET)
    if position != NO_OFFSET:
        return min(position, bounds.latest[partition])
    if request.latest_if_none:
        return bounds.latest[partition]
    raise OptionError(
        "startingTimestamp" if request.timestamp_ms is not None else f"{request.option}ByTimestamp",
        timestamp_ms,
        f"no record of {partition} is as late: name an earlier time, or set "
        "startingOffsetsByTimestampStrategy=latest",
    )


def _check_all_named(
    named: Mapping[TopicPartition, int],
    partitions: Iterable[TopicPartition],
    option: str,
) -> None:
    expected = set(partitions)
    if set(named) == expected:
        return
    missing = ", ".join(str(p) for p in sorted(expected - set(named)))
    unknown = ", ".join(str(p) for p in sorted(set(named) - expected))
    problem = "; ".join(
        part
        for part in (missing and f"name also {missing}", unknown and f"leave out {unknown}")
        if part
    )
    raise OptionError(
        option,
        format_offsets(named),
        f"it must name exactly the partitions that are read, -1 for latest, -2 for earliest: "
        f"{problem}",
    )
