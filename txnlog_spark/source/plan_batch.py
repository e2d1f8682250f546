"""Questions that Spark asks of a source on the driver, as operations without I/O.

Spark asks a new query for its initial offset (again when batch 0 is replayed). Then it asks, for
each micro-batch, for the latest offset (the answer goes to `<checkpoint>/offsets/<batchId>`) and
for the batch's tasks. Each operation gets and returns the run's memory (`SourceState`); the next
run begins without memory. The four rules that keep batches repeatable are in
docs/internals/commit-protocol.md, "How the source plans".
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from txnlog_kafka.operations.effects import Operation
from txnlog_spark.errors import OptionError, UnknownTopic, WrongCluster
from txnlog_spark.offsets import (
    SourceNote,
    from_json_value,
    positions_digest,
    source_note_of,
    to_json_value,
    with_source_note,
)
from txnlog_spark.source import available, data_loss, planning
from txnlog_spark.source.available import JsonOffset, Learnt, SourceState
from txnlog_spark.source.log_queries import LogQueries, Offsets
from txnlog_spark.source.positions import is_repeatable, starts_from_group

UNNAMED = SourceNote("", None)
"""The note of an offset without a note: Spark's own source wrote it, or the query is new."""


def initial_offset(brokers: LogQueries, state: SourceState) -> Learnt[JsonOffset]:
    """Return where a new query starts; the same for the whole run. Raises UnknownTopic."""
    initial, starting = state.initial, brokers.settings.starting
    while initial is None:
        partitions, state = yield from available.list_partitions(brokers, state)
        try:
            initial = yield from brokers.find_positions(starting, partitions, sink_compares=True)
        except UnknownTopic:
            if brokers.settings.selection.pattern is None:
                raise  # with a pattern, the topic was deleted since it was listed: list again
    state = replace(state, initial=initial)
    return _noted(brokers, initial.offsets, UNNAMED._replace(source_id=state.source_id)), state


def latest_offset(
    brokers: LogQueries, state: SourceState, start: JsonOffset, rows_max: int | None
) -> Learnt[JsonOffset]:
    """Return the end of the next batch: the available offsets, within `rows_max` and the rules.

    Without a limit the trigger asks once, or may do so: the batch waits for nothing.
    """
    _check_cluster(brokers, start)
    begin, note, is_first = from_json_value(start), _note_of(start), state.latest is None
    ends, state = yield from available.find_ends(brokers, state, begin)
    recreated = yield from brokers.recreated(dict(note.topic_ids))
    if recreated:
        available.report(brokers, data_loss.find_recreated(begin, recreated))
        begin = _without(begin, recreated)
        note = note._replace(topic_ids=tuple((dict(note.topic_ids) | recreated).items()))
        ends, state = yield from available.clip_target(brokers, state, ends, recreated)
    starts, end = yield from available.find_bounds(brokers, begin, ends)
    latest = {p: max(at, state.high.get(p, at)) for p, at in end.items()}
    state = replace(state, latest=_noted(brokers, latest, note))
    if is_first:
        kept = yield from _kept_start(brokers, state, start, note)
        if kept is not None:
            return kept, state
        committed = yield from brokers.committed(end)
        capped = planning.cap_at_committed(begin, end, committed)
        if capped is not None:
            if (yield from _needs_no_rows(brokers, note.source_id, begin, capped)):
                group = {p: at for p, at in committed.items() if p in capped}
                note = note._replace(group_start=positions_digest(group))
            return _noted(brokers, capped, note), state
    if rows_max is not None:
        if not recreated and _waits(brokers, state, begin, end):
            return start, state
        end = planning.limit_offsets(starts, end, rows_max)
    state = replace(state, fired_at_ms=brokers.session.monotonic_ms())
    return _noted(brokers, end, note), state


def batch_tasks(
    brokers: LogQueries, state: SourceState, start: JsonOffset, end: JsonOffset
) -> Operation[list[tuple[planning.OffsetRange, ...]]]:
    """Return the ranges of each task of a batch. Raises DataLoss."""
    _check_cluster(brokers, start, end)
    before, note = _note_of(start), _note_of(end)
    if note.group_start != before.group_start:
        return []  # it goes to where the group is, and has no rows
    begin, until, is_first = from_json_value(start), from_json_value(end), state.latest is None
    if is_first and (yield from _needs_no_rows(brokers, note.source_id, begin, until)):
        return []
    topic_ids = dict(note.topic_ids)
    begin = _without(begin, {t for t, each in before.topic_ids if topic_ids.get(t, each) != each})
    if recreated := (yield from brokers.recreated(topic_ids)):
        available.report(brokers, data_loss.find_recreated(until, recreated))
        until = _without(until, recreated)
    is_replayed_start, starting = is_first and _is_initial(state, start), brokers.settings.starting
    if is_replayed_start and source_note_of(end) is None and not is_repeatable(starting):
        advice = "batch 0 has another source's start: set the one in the checkpoint's sources/0/0"
        raise OptionError(starting.option, starting.word, advice)
    if not is_replayed_start:
        available.report(brokers, data_loss.find_rewound(begin, until))
    begin |= yield from available.starts_of_added(brokers, sorted(set(until) - set(begin)))
    ranges, settings = planning.plan_ranges(begin, until), brokers.settings
    return planning.plan_tasks(ranges, settings.min_partitions, settings.max_records_per_partition)


def _is_initial(state: SourceState, start: JsonOffset) -> bool:
    return state.initial is not None and from_json_value(start) == state.initial.offsets


def _kept_start(
    brokers: LogQueries, state: SourceState, start: JsonOffset, note: SourceNote
) -> Operation[JsonOffset | None]:
    """Return the end of a new query's empty first batch, or None if the start is repeatable. With
    a group, named offsets are kept too: as a start from the group, if the group is there."""
    starting, initial = brokers.settings.starting, state.initial
    group_id = brokers.settings.group_id
    is_new = _is_initial(state, start) and not note.group_start
    is_kept = not is_repeatable(starting) or (group_id is not None and starting.offsets is not None)
    if initial is None or not is_new or not is_kept:
        return None
    committed = initial.committed
    if not starts_from_group(starting):
        visible, _ = yield from brokers.visible_group()
        committed = {p: at for p, at in visible.items() if p in initial.offsets}
        if not committed or any(initial.offsets[p] != at for p, at in committed.items()):
            return _noted(brokers, initial.offsets, note)
    note = note._replace(source_id=state.source_id, group_start=positions_digest(committed))
    return _noted(brokers, initial.offsets, note)


def _needs_no_rows(
    brokers: LogQueries, source_id: str, begin: Offsets, until: Offsets
) -> Operation[bool]:
    """True if a sink has committed the batch for this very source, and needs no rows to skip it."""
    if not source_id:
        return False
    committed, notes = yield from brokers.visible_group()
    positions = positions_digest({p: at for p, at in committed.items() if p in until})
    if not any(n.source_id == source_id and n.positions == positions for n in notes):
        return False
    return all(at <= committed.get(p, -1) for p, at in until.items() if at != begin.get(p))


def _waits(brokers: LogQueries, state: SourceState, begin: Offsets, end: Offsets) -> bool:
    """True if the batch waits for minOffsetsPerTrigger, as Spark's Kafka source decides it.

    The first batch of a run does not wait. No batch waits longer than maxTriggerDelay after the one
    before. Under AvailableNow no batch waits, or the query would end without the rest.
    """
    wanted = brokers.settings.min_offsets_per_trigger
    if wanted is None or state.target is not None:
        return False
    waited_ms = brokers.session.monotonic_ms() - state.fired_at_ms
    is_late = waited_ms >= brokers.settings.trigger_delay_ms_max
    waiting = sum(at - begin.get(p, 0) for p, at in end.items())
    return waiting < wanted and not is_late


def _without(offsets: Offsets, topics: Collection[str]) -> Offsets:
    return {p: at for p, at in offsets.items() if p.topic not in topics}


def _note_of(offset: JsonOffset) -> SourceNote:
    return source_note_of(offset) or UNNAMED


def _noted(brokers: LogQueries, offsets: Offsets, note: SourceNote) -> JsonOffset:
    """Return the JSON of offsets with `note`, updated to the present cluster and group. Topic ids
    of `note` are kept: Spark compares texts, and a second text would be a new batch."""
    cluster_id, group_id = brokers.session.cluster.cluster_id, brokers.settings.group_id
    value = to_json_value(offsets)
    if cluster_id is None:
        return value
    ids = {t: each for t, each in note.topic_ids if t in value}
    ids |= brokers.session.cluster.topic_ids(value.keys() - ids.keys())
    topics = tuple(sorted(ids.items()))
    name = "" if group_id is None else note.source_id
    return with_source_note(value, SourceNote(cluster_id, group_id, topics, name, note.group_start))


def _check_cluster(brokers: LogQueries, *offsets: JsonOffset) -> None:
    """Raise WrongCluster for a checkpoint's offset that another cluster gave."""
    cluster_id = brokers.session.cluster.cluster_id
    for note in map(source_note_of, offsets):
        if note is not None and cluster_id is not None and note.cluster_id != cluster_id:
            raise WrongCluster(
                f"the checkpoint's offsets are positions in cluster {note.cluster_id!r}, but the "
                f"query is connected to cluster {cluster_id!r}, where the same numbers are other "
                "records. Nothing was read. Set kafka.bootstrap.servers to the cluster of the "
                "checkpoint, or start a new checkpoint for this one"
            )
