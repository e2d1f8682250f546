"""What a read asks the brokers: which partitions there are, and where they start and end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.topics import TopicPartition
from txnlog_spark.client_cache import client_for
from txnlog_spark.errors import DeadlineExceeded, OptionError, RetriableError, UnknownTopic
from txnlog_spark.offsets import SourceOffset
from txnlog_spark.source.positions import (
    NO_OFFSET,
    Bounds,
    check_in_log,
    explain_group_start,
    resolve_positions,
    starts_from_group,
    timestamps_wanted,
)
from txnlog_spark.source.settings import (
    COMMITTED,
    PositionRequest,
    Selection,
    SourceSettings,
)

COMMITTED_WAIT_MS_MIN = 330_000
"""A stable read of a group waits for the transactions that still hold offsets pending: a driver
that died in one is timed out by the coordinator (`kafka.transaction.timeout.ms`, 300 s by default,
looked at every 10 s)."""
DECIDED_WAIT_MS = 3_000
"""How long a stream's start waits for them. A driver that lives decides within a commit, much less
than this; one that died would be waited for until its transaction times out, and only the sink,
which comes after the start, can end that sooner."""

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SPECS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}


def connected_cluster(settings: SourceSettings) -> str | None:
    """The id of the cluster that answers, None from brokers that do not tell it."""
    return client_for(settings.connection).session.cluster.cluster_id


def discover(
    settings: SourceSettings,
    *,
    known: Iterable[TopicPartition] = (),
    without: Set[str] = frozenset(),
    matching: Set[str] | None = None,
) -> tuple[TopicPartition, ...]:
    """The partitions that the options select, sorted; not those of the topics in `without`.

    `known` are being read: one that is not found is asked for by name, again and again for a while,
    before it is given up, since the broker that answered may have just started, or lag behind.
    `matching` are the topics that the pattern is known to match: only these are then asked for, as
    long as they are all there.
    Raises UnknownTopic naming the topics that do not exist, OptionError for an assigned partition
    that its topic does not have. A pattern that matches nothing yet is not an error.
    """
    ask = partial(_discover, settings, frozenset(known), without, matching)
    return _attempted(settings, ask)


def _discover(
    settings: SourceSettings,
    known: Set[TopicPartition],
    without: Set[str],
    matching: Set[str] | None,
) -> tuple[TopicPartition, ...]:
    selection = settings.selection
    client = client_for(settings.connection)
    if selection.assigned:
        return _assigned(client, selection, without)
    if selection.pattern is not None:
        found = _of_pattern(client, selection, matching, without)
    else:
        found = client.topic_partitions(set(selection.topics) - without)
    listed = set(_flattened(found))
    unseen = {p for p in known if selection.selects(p.topic) and p.topic not in without} - listed
    gone = client.confirm_missing(unseen) if unseen else frozenset()
    return tuple(sorted(listed | (unseen - gone)))


def _of_pattern(
    client: Client, selection: Selection, matching: Set[str] | None, without: Set[str]
) -> dict[str, tuple[int, ...]]:
    if matching is not None:
        try:
            return client.topic_partitions(matching - without)
        except UnknownTopic as error:
            logger.warning("listing all topics: %s", error)
    return client.matching_topics(lambda t: selection.selects(t) and t not in without)


def _assigned(
    client: Client, selection: Selection, without: Set[str]
) -> tuple[TopicPartition, ...]:
    assigned = tuple(p for p in selection.assigned if p.topic not in without)
    existing = _flattened(client.topic_partitions({p.topic for p in assigned}))
    unseen = set(assigned) - set(existing)
    gone = client.confirm_missing(unseen) if unseen else frozenset()
    if gone:
        names = ", ".join(f"{topic}-{number}" for topic, number in sorted(gone))
        raise OptionError("assign", names, "partitions that exist: the topic has fewer")
    return assigned


def fetch_offsets(
    settings: SourceSettings,
    partitions: Iterable[TopicPartition],
    which: str,
    *,
    read_committed: bool | None = None,
) -> dict[TopicPartition, int]:
    """The "earliest" or "latest" offset of each partition; latest is the end for this reader."""
    specs = dict.fromkeys(partitions, _SPECS[which])
    return _list_offsets(settings, specs, read_committed=read_committed)


def confirm_log_ends(
    settings: SourceSettings,
    positions: Mapping[TopicPartition, int],
    said: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The high watermarks of logs that one broker says end before these positions."""

    def ask() -> dict[TopicPartition, int]:
        client = client_for(settings.connection)
        known = {p: said[p] for p in positions}
        return client.confirm_log_ends(positions, known)

    return _attempted(settings, ask) if positions else {}


def first_as_late(
    settings: SourceSettings, partitions: Iterable[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """The offset of the first record of this time or later, where there is one."""
    found = _list_offsets(settings, dict.fromkeys(partitions, timestamp_ms))
    return {p: offset for p, offset in found.items() if offset != NO_OFFSET}


def fetch_committed(
    settings: SourceSettings,
    partitions: Iterable[TopicPartition] = (),
    *,
    stable_within_ms: int | None = None,
) -> dict[TopicPartition, int]:
    """The group's stable committed offsets; empty without a group.

    Waits while a transaction holds offsets pending, longer than other requests may take. Kafka
    reports a partition whose first offset ever is pending only when it is among `partitions`.
    Raises DeadlineExceeded.
    """
    if settings.group_id is None:
        return {}
    connection = settings.connection
    if stable_within_ms is None:
        stable_within_ms = max(connection.session.operation_timeout_ms, COMMITTED_WAIT_MS_MIN)
    client = client_for(connection.with_timeouts(stable_within_ms))
    return client.committed_offsets(
        settings.group_id, partitions=list(partitions), require_stable=True
    )


def fetch_decided(
    settings: SourceSettings, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The group's stable committed offsets, or after a moment those that were decided last.

    For a reader that goes by them only if they are still the same when the producer that holds
    newer ones pending is fenced: an offset that is pending is not reported at all.
    """
    try:
        return fetch_committed(settings, partitions, stable_within_ms=DECIDED_WAIT_MS)
    except DeadlineExceeded as error:
        logger.warning("using the last stable offsets, which the sink compares again: %s", error)
    group_id = present(settings.group_id, "offsets are decided for a group")
    client = client_for(settings.connection)
    return client.committed_offsets(group_id, require_stable=False)


def _fetch_start(
    settings: SourceSettings,
    request: PositionRequest,
    partitions: tuple[TopicPartition, ...],
    *,
    sink_compares: bool,
) -> tuple[tuple[TopicPartition, ...], dict[TopicPartition, int]]:
    """The partitions of a start from the group, and what it has committed in them.

    A partition that it has committed in and that the broker asked first did not list is looked for:
    found later it would be a new one, and read again from its start. Raises NoCommittedOffsets.
    """
    if sink_compares:
        committed = fetch_decided(settings, partitions)
    if not sink_compares or (request.word == COMMITTED and not set(partitions) & set(committed)):
        # Without a decided one, whether there is any has to be waited for.
        committed = fetch_committed(settings, partitions)
    unseen = set(filter(settings.selection.reads, committed)) - set(partitions)
    if unseen:
        partitions = discover(settings, known=unseen)
    found = {p: committed[p] for p in partitions if p in committed}
    group_id = present(settings.group_id, "a start from committed offsets has a group")
    logger.warning(explain_group_start(request, group_id, partitions, found))
    return partitions, found


@dataclass(frozen=True, slots=True)
class Positions:
    """An offset per partition, and what the group had committed if that was asked for."""

    offsets: dict[TopicPartition, int]
    committed: dict[TopicPartition, int]


def fetch_positions(
    settings: SourceSettings,
    request: PositionRequest,
    partitions: tuple[TopicPartition, ...],
    *,
    sink_compares: bool = False,
) -> Positions:
    """Where `request` starts or ends in each partition.

    A start may lie between the last stable offset and the high watermark, an end may not: a read
    would wait there. The committed offsets are read first, so that the log's end is not older; with
    `sink_compares` they need not be stable, as the sink refuses a start that the group has left.
    Raises NoCommittedOffsets, OptionError for a request that does not fit the partitions, and
    DataLoss for an offset that is named or committed and lies outside the log (unless
    failOnDataLoss=false).
    """
    from_group = starts_from_group(request)
    named = request.offsets is not None or from_group
    committed: dict[TopicPartition, int] = {}
    if from_group:
        partitions, committed = _fetch_start(
            settings, request, partitions, sink_compares=sink_compares
        )
    bounds = Bounds(
        earliest=fetch_offsets(settings, partitions, "earliest"),
        latest=fetch_offsets(settings, partitions, "latest"),
        by_timestamp=_list_offsets(settings, timestamps_wanted(request, partitions)),
        committed=committed,
        high_watermark=fetch_offsets(settings, partitions, "latest", read_committed=False)
        if named and request is settings.starting
        else {},
    )
    positions = resolve_positions(request, partitions, bounds)
    if named:
        bounds = _confirmed(settings, positions, bounds)
        positions = check_in_log(
            positions,
            bounds,
            fail_on_data_loss=settings.fail_on_data_loss,
            option=request.option,
        )
    return Positions(positions, committed)


def _confirmed(settings: SourceSettings, positions: SourceOffset, bounds: Bounds) -> Bounds:
    """The bounds, in which no log ends before a position because a former leader says so."""
    high = bounds.high_watermark
    beyond = {
        p: at for p, at in positions.items() if at > max(bounds.latest[p], high.get(p, NO_OFFSET))
    }
    if not beyond:
        return bounds
    confirmed = confirm_log_ends(settings, beyond, {**bounds.latest, **high})
    return replace(
        bounds,
        latest={**bounds.latest, **fetch_offsets(settings, beyond, "latest")},
        high_watermark={**high, **{p: end for p, end in confirmed.items() if p in high}},
    )


def _list_offsets(
    settings: SourceSettings,
    specs: Mapping[TopicPartition, int],
    *,
    read_committed: bool | None = None,
) -> dict[TopicPartition, int]:
    if not specs:
        return {}
    isolation = settings.read_committed if read_committed is None else read_committed

    def ask() -> dict[TopicPartition, int]:
        client = client_for(settings.connection)
        answer = client.list_offsets(specs, read_committed=isolation)
        return {partition: found.offset for partition, found in answer.items()}

    return _attempted(settings, ask)


def _attempted(settings: SourceSettings, ask: Callable[[], T]) -> T:
    """`ask` until it is answered, `fetchOffset.numRetries` times at most.

    Each time retries its requests until kafka.default.api.timeout.ms; what cannot pass is raised at
    once.
    """
    for attempt in range(1, settings.offset_attempts):
        try:
            return ask()
        except (DeadlineExceeded, RetriableError) as error:
            logger.warning("attempt %d of %d: %s", attempt, settings.offset_attempts, error)
            time.sleep(settings.offset_retry_ms / 1000)
    return ask()


def _flattened(topics: Mapping[str, Iterable[int]]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(t, n) for t, numbers in topics.items() for n in numbers))
