"""What Spark asks of a source on the driver, once per micro-batch, as operations without I/O.

Spark asks in this order: for a new query for the initial offset (also when batch 0 is replayed),
then per micro-batch for the latest offset (the answer goes to `<checkpoint>/offsets/<batchId>`) and
for the batch's tasks. Each operation gets what the run remembers (`SourceState`), and gives it back
with what it has learnt; the next run of the query begins with nothing.

Every offset carries a `SourceNote`, the cluster and the topics that it is a position in: one from a
checkpoint of another cluster is refused, and of a topic that was deleted and created again since
what was to be read is lost: with failOnDataLoss=false that one is read from its beginning, as a
topic that is added. Four rules keep batches repeatable:

- A start that asking again could change (latest, committed, a timestamp after the last record) is
  made batch 0's *end*: batch 0 is then empty, and its log entry is the start that holds. Spark does
  not keep a Python source's initial offset, so this is where it is kept.
- A start from a group's committed offsets is logged with their digest beside it, also when
  the group had none. The sink commits this empty batch only if the group is still there, after it
  has fenced an older driver that might have moved it (`commit.judgement.check_start`): so what
  such a driver holds pending is not waited for here.
- Replayed batch 0 may start after its logged end for that reason: it is then empty, not rewound.
- With a group, the first batch of a run ends where the group stands, if that is ahead
  (`planning.cap_at_committed`): a committed batch that the checkpoint lost is found again, however
  many batches ago, and no limit splits it. A start that this run took from the group is not capped:
  there is no batch to be found.

The rows of a committed batch are read again only where somebody needs them: the state of a stateful
query, and whatever else a function of foreachBatch does with them. The committer says so beside the
group's offsets (`GroupNote`). If this very source was read by a sink that needs none, a batch that
ends at or before the group's offsets has no tasks: its input may be gone, and nothing is staged to
be skipped. One that is planned again says so in its offset, as a start from the group does, so that
another source of the query may go on in the same batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DataLoss, UnknownTopic, WrongCluster
from txnlog_spark.offsets import (
    SourceNote,
    from_json_value,
    noted_topic_ids,
    plain_offset,
    positions_digest,
    source_note_of,
    to_json_value,
    with_source_note,
)
from txnlog_spark.source.brokers import Brokers, Offsets, Partitions, Positions
from txnlog_spark.source.data_loss import (
    REMEDY,
    Loss,
    find_deleted,
    find_late_additions,
    find_recreated,
    find_rewound,
)
from txnlog_spark.source.hanging_transactions import (
    HangingTransaction,
    Since,
    explain,
    find_hanging,
    find_lasting,
)
from txnlog_spark.source.planning import (
    OffsetRange,
    cap_at_committed,
    count_waiting,
    limit_offsets,
    plan_ranges,
    plan_tasks,
)
from txnlog_spark.source.positions import is_repeatable, starts_from_group

DISCOVERY_MS = 1_000
"""An idle query asks for its end a hundred times a second; for new partitions once a second.

Of a pattern only the topics that it matched are asked for so often. For others all topics have to
be listed with all their partitions, seconds of work on a large cluster, and that is done once in
`kafka.metadata.max.age.ms`, as in Kafka's own consumer, and when one of the matched is gone.
Where `partition.metadata.cache.ttl.ms` is set, it says both, as in Spark's own source.
"""
HIGH_WATERMARK_MS = 1_000
"""And no more often for the high watermarks."""

JsonOffset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SourceState:
    """What a run of the source remembers from one question to the next; plain values."""

    source_id: str = ""
    """The name of this source if the query is new; the offsets of an older one say its name."""
    initial: Positions | None = None
    """Where the run starts, if that was asked."""
    target: Offsets | None = None
    """Where it ends with the trigger availableNow."""
    latest: JsonOffset | None = None
    """How far the log went when the last batch was asked for; None before the first.

    Records behind an open transaction are counted, though no batch can have them yet: a query that
    waits for one is not up to date.
    """
    high: Offsets = field(default_factory=dict)
    high_at_ms: float = -math.inf
    """When high watermarks were asked for."""
    hanging: Since = field(default_factory=dict)
    partitions: Partitions | None = None
    found_at_ms: float = -math.inf
    """When these were asked for with those that are read."""
    listed_at_ms: float = -math.inf
    """When all topics were listed for them."""
    fired_at_ms: float = -math.inf
    """When a batch was planned."""


T = TypeVar("T")
Learnt = Operation[tuple[T, SourceState]]
"""Gives an answer, and what the run remembers after it."""


def initial_offset(brokers: Brokers, state: SourceState) -> Learnt[JsonOffset]:
    """Where a new query starts; the same for the whole run. Raises UnknownTopic."""
    initial = state.initial
    if initial is None:
        partitions, state = yield from _listed(brokers, state)
        starting = brokers.settings.starting
        initial = yield from brokers.positions(starting, partitions, sink_compares=True)
        state = replace(state, initial=initial)
    value = _noted(brokers, to_json_value(initial.offsets), {}, source_id=state.source_id)
    return value, state


def freeze_end(brokers: Brokers, state: SourceState) -> Operation[SourceState]:
    """The query ends at what is in the log now, and says which records it leaves out."""
    partitions, state = yield from _listed(brokers, state)
    target = yield from brokers.latest(partitions)
    held_up, state = yield from _held_up(brokers, state, target)
    left_out = "this query reads what is there now, and ends before an open transaction in"
    _warn(brokers, left_out, held_up)
    return replace(state, target=target)


def latest_offset(
    brokers: Brokers, state: SourceState, start: JsonOffset, rows_max: int | None
) -> Learnt[JsonOffset]:
    """The end of the next batch: what is available, within `rows_max` and the rules above.

    Without a limit the trigger asks once, or may do so: nothing is waited for.
    """
    _check_cluster(brokers, start)
    begin, is_first = from_json_value(start), state.latest is None
    ends, state = yield from _ends(brokers, state, begin)
    topic_ids = noted_topic_ids(start)
    recreated = yield from brokers.recreated(topic_ids)
    if recreated:
        _report(brokers, find_recreated(begin, recreated))
        begin, topic_ids = _without(begin, recreated), topic_ids | recreated
    starts, available = yield from _available(brokers, begin, ends)
    latest = {p: max(end, state.high.get(p, end)) for p, end in available.items()}
    state = replace(state, latest=_follow(brokers, start, latest, topic_ids))
    if is_first:
        kept = yield from _kept_start(brokers, state, start, topic_ids)
        if kept is not None:
            return kept, state
        committed = yield from brokers.committed(available)
        capped = cap_at_committed(begin, available, committed)
        if capped is not None:
            again = _follow(brokers, start, capped, topic_ids)
            if (yield from _needs_no_rows(brokers, again, begin, capped)):
                at = positions_digest({p: at for p, at in committed.items() if p in capped})
                again = _follow(brokers, start, capped, topic_ids, group_start=at)
            return again, state
    end = available
    if rows_max is not None:
        if not recreated and _waits(brokers, state, begin, available):
            return start, state
        end = limit_offsets(starts, available, rows_max)
    state = replace(state, fired_at_ms=brokers.session.monotonic_ms())
    return _follow(brokers, start, end, topic_ids), state


def batch_tasks(
    brokers: Brokers, state: SourceState, start: JsonOffset, end: JsonOffset
) -> Operation[list[tuple[OffsetRange, ...]]]:
    """The ranges of each task of a batch."""
    _check_cluster(brokers, start, end)
    if _group_start(end) != _group_start(start):
        return []  # it goes to where the group is, and has no rows
    begin, until = from_json_value(start), from_json_value(end)
    if state.latest is None and (yield from _needs_no_rows(brokers, end, begin, until)):
        return []
    before, topic_ids = noted_topic_ids(start), noted_topic_ids(end)
    begin = _without(begin, {t for t, each in before.items() if topic_ids.get(t, each) != each})
    if recreated := (yield from brokers.recreated(topic_ids)):
        _report(brokers, find_recreated(until, recreated))
        until = _without(until, recreated)
    is_replayed_start = state.latest is None and _is_initial(state, start)
    if not is_replayed_start:
        _report(brokers, find_rewound(begin, until))
    begin |= yield from _starts_of_added(brokers, sorted(set(until) - set(begin)))
    return plan_tasks(
        plan_ranges(begin, until),
        min_partitions=brokers.settings.min_partitions,
        max_records_per_partition=brokers.settings.max_records_per_partition,
    )


# ------------------------------------------------------------------ the rules


def _is_initial(state: SourceState, start: JsonOffset) -> bool:
    return state.initial is not None and from_json_value(start) == state.initial.offsets


def _kept_start(
    brokers: Brokers, state: SourceState, start: JsonOffset, topic_ids: Mapping[str, str]
) -> Operation[JsonOffset | None]:
    """Return the end of a new query's empty first batch, which keeps where the query starts.

    None where asking again gives the same start. With a group a start that names offsets is kept as
    well, and noted as one from the group if it is where the group is.
    """
    starting, initial = brokers.settings.starting, state.initial
    group_id = brokers.settings.group_id
    is_new = _is_initial(state, start) and not _group_start(start)
    is_kept = not is_repeatable(starting) or (group_id is not None and starting.offsets is not None)
    if initial is None or not is_new or not is_kept:
        return None
    committed = initial.committed
    if not starts_from_group(starting):
        visible, _ = yield from brokers.visible_group()
        committed = {p: at for p, at in visible.items() if p in initial.offsets}
        if not committed or any(initial.offsets[p] != at for p, at in committed.items()):
            return _follow(brokers, start, initial.offsets, topic_ids)
    value, group_start = to_json_value(initial.offsets), positions_digest(committed)
    source_id = state.source_id
    return _noted(brokers, value, topic_ids, source_id=source_id, group_start=group_start)


def _group_start(offset: JsonOffset) -> str:
    note = source_note_of(offset)
    return "" if note is None else note.group_start


def _needs_no_rows(
    brokers: Brokers, end: JsonOffset, begin: Offsets, until: Offsets
) -> Operation[bool]:
    """True if a sink has committed the batch for this very source, and needs no rows to skip it.

    Without waiting for a transaction that is undecided: what is visible is committed.
    """
    note = source_note_of(end)
    if note is None or not note.source_id:
        return False
    committed, notes = yield from brokers.visible_group()
    positions = positions_digest({p: at for p, at in committed.items() if p in until})
    if not any(n.source_id == note.source_id and n.positions == positions for n in notes):
        return False
    read = {p: at for p, at in until.items() if at != begin.get(p)}
    return all(at <= committed.get(p, -1) for p, at in read.items())


def _waits(brokers: Brokers, state: SourceState, begin: Offsets, available: Offsets) -> bool:
    """Whether the batch waits for minOffsetsPerTrigger, as Spark's Kafka source decides it.

    The first of a run does not wait, and none longer than maxTriggerDelay after the one before. Nor
    does any under AvailableNow: what is waited for would not come, and the query would end without
    the rest.
    """
    wanted = brokers.settings.min_offsets_per_trigger
    if wanted is None or state.target is not None:
        return False
    waited_ms = brokers.session.monotonic_ms() - state.fired_at_ms
    is_late = waited_ms >= brokers.settings.trigger_delay_ms_max
    return not is_late and count_waiting(begin, available) < wanted


def _follow(
    brokers: Brokers,
    before: JsonOffset,
    offsets: Offsets,
    topic_ids: Mapping[str, str],
    group_start: str = "",
) -> JsonOffset:
    """Return the JSON of a later offset of the same source, which inherits its names; unless it
    goes to where the group is, `group_start`."""
    note = source_note_of(before)
    value = to_json_value(offsets)
    if note is None:
        return _noted(brokers, value, topic_ids)
    group_start = group_start or note.group_start
    source_id = note.source_id
    return _noted(brokers, value, topic_ids, source_id=source_id, group_start=group_start)


def _noted(
    brokers: Brokers,
    value: JsonOffset,
    topic_ids: Mapping[str, str],
    *,
    source_id: str = "",
    group_start: str = "",
) -> JsonOffset:
    """Return the offset with its cluster, topics and group: a number does not say of which log.

    `topic_ids` are those that are known already. The same cluster and topics give the same text:
    Spark compares texts, and two for one offset would be a batch.
    """
    cluster_id, group_id = brokers.session.cluster.cluster_id, brokers.settings.group_id
    if cluster_id is None:
        return value
    ids = {t: each for t, each in topic_ids.items() if t in value}
    ids |= brokers.topic_ids(plain_offset(value).keys() - ids.keys())
    topics = tuple(sorted(ids.items()))
    name = "" if group_id is None else source_id
    return with_source_note(value, SourceNote(cluster_id, group_id, topics, name, group_start))


def _without(offsets: Offsets, topics: Iterable[str]) -> Offsets:
    left_out = set(topics)
    return {p: at for p, at in offsets.items() if p.topic not in left_out}


def _check_cluster(brokers: Brokers, *offsets: JsonOffset) -> None:
    """Raise WrongCluster for a checkpoint's offset that another cluster gave."""
    cluster_id = brokers.session.cluster.cluster_id
    for note in map(source_note_of, offsets):
        if note is not None and cluster_id is not None and note.cluster_id != cluster_id:
            raise WrongCluster(
                f"the checkpoint's offsets are positions in the log of cluster "
                f"{note.cluster_id!r}, but the cluster that is connected to is {cluster_id!r}, "
                "where the same numbers are other records. Nothing was read. Set "
                "kafka.bootstrap.servers to the cluster of the checkpoint, or start a new "
                "checkpoint for this one"
            )


# ------------------------------------------------------------------ what is available


def _ends(brokers: Brokers, state: SourceState, begin: Offsets) -> Learnt[Offsets]:
    """Where every partition ends now, or the target of AvailableNow."""
    ends = state.target
    if ends is None:
        ends, state = yield from _ends_now(brokers, state, begin)
    elif lost := [p for p in begin if p not in ends]:
        # Frozen before it was known what the query reads; asked for by name some may be there.
        found, state = yield from _ends_now(brokers, state, begin)
        ends = ends | {p: found[p] for p in lost if p in found}
        state = replace(state, target=ends)
    return ends, state


def _available(
    brokers: Brokers, begin: Offsets, ends: Offsets
) -> Operation[tuple[Offsets, Offsets]]:
    """Where every partition starts and ends."""
    _report(brokers, find_deleted(begin, ends, brokers.settings.selection.reads))
    if suspects := find_rewound(begin, ends):
        ends = yield from _after_rewind(brokers, begin, ends, suspects)
    starts = begin
    if added := [p for p in ends if p not in begin]:
        starts = begin | (yield from _starts_of_added(brokers, added))
        brokers.session.notice(f"new partitions: {', '.join(map(str, added))}")
    return starts, {p: end for p, end in ends.items() if p in starts}


def _ends_now(brokers: Brokers, state: SourceState, begin: Offsets) -> Learnt[Offsets]:
    try:
        return (yield from _ask_ends(brokers, state, begin))
    except UnknownTopic:
        # Deleted since it was discovered: to be found missing, as any other deleted topic is.
        return (yield from _ask_ends(brokers, replace(state, partitions=None), begin))


def _ask_ends(brokers: Brokers, state: SourceState, begin: Offsets) -> Learnt[Offsets]:
    partitions, state = yield from _existing(brokers, state, begin)
    ends = yield from brokers.latest(partitions)
    now_ms = brokers.session.monotonic_ms()
    if now_ms >= state.high_at_ms + HIGH_WATERMARK_MS:
        found, state = yield from _held_up(brokers, state, ends)
        lasting, hanging = find_lasting(state.hanging, found, now_ms)
        state = replace(state, high_at_ms=now_ms, hanging=hanging)
        _warn(brokers, "for a minute nothing could be read behind an open transaction in", lasting)
    return ends, state


def _held_up(
    brokers: Brokers, state: SourceState, ends: Offsets
) -> Learnt[list[HangingTransaction]]:
    """Where there are records after these last stable offsets."""
    if not brokers.settings.read_committed:
        return [], state
    high = yield from brokers.high_watermarks(ends)
    return find_hanging(ends, high), replace(state, high=high)


def _warn(brokers: Brokers, what: str, found: list[HangingTransaction]) -> None:
    if found:
        brokers.session.notice(f"{what} {explain(found, brokers.session.bootstrap_servers)}")


def _existing(brokers: Brokers, state: SourceState, begin: Offsets) -> Learnt[Partitions]:
    """The partitions that exist; a topic that was deleted is left out, not an error yet."""
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
            without |= _deleted(brokers, [p for p in begin if p.topic not in without], error)
    now_ms = brokers.session.monotonic_ms()
    state = replace(state, partitions=found, found_at_ms=now_ms)
    return found, state if matching is not None else replace(state, listed_at_ms=now_ms)


def _listed(brokers: Brokers, state: SourceState) -> Learnt[Partitions]:
    """The partitions that exist, before it is known which are read; not yet the last word."""
    found = yield from brokers.discover()
    return found, replace(state, partitions=found, listed_at_ms=brokers.session.monotonic_ms())


def _after_rewind(
    brokers: Brokers, begin: Offsets, ends: Offsets, suspects: list[Loss]
) -> Operation[Offsets]:
    """Ends for partitions that seem to have lost their tail.

    The last stable offset lies before the position also when the query read uncommitted records
    before: the position then holds until the transactions there are decided.
    """
    names = [loss.topic_partition for loss in suspects]
    latest = yield from brokers.high_watermarks(names)
    if short := {p: begin[p] for p in names if latest[p] < begin[p]}:
        latest |= yield from brokers.confirm_log_ends(short, latest)
    _report(brokers, find_rewound(begin, latest))
    return ends | {p: begin[p] if latest[p] >= begin[p] else ends[p] for p in names}


def _starts_of_added(brokers: Brokers, added: list[TopicPartition]) -> Operation[Offsets]:
    """Where partitions start that a batch discovers; those that were deleted are left out.

    Asked when the batch is planned and, since Spark does not keep it, when it is replayed: what was
    deleted in between is as much a loss as in any other partition.
    """
    while True:
        try:
            earliest = yield from brokers.earliest(added)
            break
        except UnknownTopic as error:
            deleted = _deleted(brokers, added, error)
            added = [p for p in added if p.topic not in deleted]
    _report(brokers, find_late_additions(earliest))
    return earliest


def _deleted(
    brokers: Brokers, read: Iterable[TopicPartition], error: UnknownTopic
) -> frozenset[str]:
    """The topics that were deleted while they are read, reported. Raises `error` for others."""
    topics = frozenset(error.topics)
    if not topics or not topics <= {p.topic for p in read}:
        raise error
    _report(brokers, [Loss(p, "its topic was deleted") for p in read if p.topic in topics])
    return topics


def _report(brokers: Brokers, losses: list[Loss]) -> None:
    text = "; ".join(map(str, losses))
    if losses and brokers.settings.fail_on_data_loss:
        raise DataLoss(f"{text}: {REMEDY}")
    if losses:
        brokers.session.notice(f"records are gone, going on with what is left: {text}")
