"""Bugs planted in a source's planning: each breaks one of the four rules of commit-protocol.md."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from planted.commit_plants import replaced
from simulation.hosts import spark_driver
from simulation.world import Plant
from txnlog_kafka.operations.effects import Operation
from txnlog_spark.offsets import START_NOTE, SourceNote, from_json_value, to_json_value
from txnlog_spark.source import plan_batch, planning
from txnlog_spark.source.available import JsonOffset, SourceState
from txnlog_spark.source.log_queries import LogQueries, Offsets
from txnlog_spark.source.plan_batch import batch_tasks, latest_offset


def _start_not_kept(_: Any) -> contextlib.AbstractContextManager[None]:
    """Batch 0 has rows, from a start that nothing keeps."""
    return replaced(plan_batch, "is_repeatable", lambda _: True)


def _start_kept_with_rows(_: Any) -> contextlib.AbstractContextManager[None]:
    """Batch 0 goes on to what is available, with the start noted beside its end."""
    original = plan_batch._kept_start

    def with_rows(
        brokers: LogQueries, state: SourceState, start: JsonOffset, note: SourceNote
    ) -> Operation[JsonOffset | None]:
        kept = yield from original(brokers, state, start, note)
        return None if kept is None else kept | to_json_value(from_json_value(state.latest))

    return replaced(plan_batch, "_kept_start", with_rows)


def _start_not_noted(_: Any) -> contextlib.AbstractContextManager[None]:
    """The log does not say that batch 0's end is where the group was."""
    original = plan_batch._noted

    def without(brokers: LogQueries, offsets: Offsets, note: SourceNote) -> JsonOffset:
        return original(brokers, offsets, note._replace(group_start=""))

    return replaced(plan_batch, "_noted", without)


def _start_noted_late(_: Any) -> contextlib.AbstractContextManager[None]:
    """Note the group's present offsets beside the start, instead of its offsets at that time."""

    def late(
        brokers: LogQueries, state: SourceState, start: JsonOffset, rows_max: int | None
    ) -> Operation[tuple[JsonOffset, SourceState]]:
        if state.latest is None and state.initial is not None:
            now = yield from brokers.committed(state.initial.offsets)
            state = dataclasses.replace(state, initial=state.initial._replace(committed=now))
        return (yield from latest_offset(brokers, state, start, rows_max))

    return replaced(spark_driver, "latest_offset", late)


def _replayed_start_rewound(_: Any) -> contextlib.AbstractContextManager[None]:
    """A replayed batch 0 that starts after its logged end has lost records, as any other has."""

    def as_any_other(
        brokers: LogQueries, state: SourceState, start: JsonOffset, end: JsonOffset
    ) -> Operation[Any]:
        plain = {k: v for k, v in end.items() if not k.startswith(START_NOTE)}
        forgetful = dataclasses.replace(state, initial=None)
        return batch_tasks(brokers, forgetful, start, plain)

    return replaced(spark_driver, "batch_tasks", as_any_other)


def _lost_batch_not_found(_: Any) -> contextlib.AbstractContextManager[None]:
    """The first batch after a restart ends where it likes."""
    return replaced(planning, "cap_at_committed", lambda *_: None)


SOURCE_PLANTS: dict[str, Plant] = {
    "start-not-kept": _start_not_kept,
    "start-kept-with-rows": _start_kept_with_rows,
    "start-not-noted": _start_not_noted,
    "start-noted-late": _start_noted_late,
    "replayed-start-rewound": _replayed_start_rewound,
    "lost-batch-not-found": _lost_batch_not_found,
}
"""Plants by name; the canary test runs each of them until it is caught."""
