"""Spark's streaming source: the host of `plan_batch`, and the tasks' reads.

Spark keeps one reader per query run, in a worker of its own. `read` runs in the tasks on a copy.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from txnlog_kafka.operations.cluster_view import parse_topic_id
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.wire.invariants import check
from txnlog_spark.client_cache import resolve_bootstrap
from txnlog_spark.console import SourceRun
from txnlog_spark.errors import TxnLogError
from txnlog_spark.offsets import noted_topic_ids
from txnlog_spark.source.available import JsonOffset, SourceState, freeze_end
from txnlog_spark.source.host import ask
from txnlog_spark.source.log_queries import LogQueries
from txnlog_spark.source.partition import RangePartition, read_ranges
from txnlog_spark.source.plan_batch import batch_tasks, initial_offset, latest_offset
from txnlog_spark.source.settings import SourceSettings
from txnlog_spark.spark_errors import readable_errors

ALL_ROWS = 2**63 - 1
"""A number of rows that limits nothing, for a trigger that asks again."""

T = TypeVar("T")


class TxnLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Source of one query. Holds plain values only: copies of it are pickled to the tasks."""

    def __init__(self, settings: SourceSettings | TxnLogError) -> None:
        """Keep an error in place of settings until Spark first asks for something: without a
        reader, PySpark's worker (4.3) fails again when it stops it, and shows that error."""
        self._given = settings
        self._state = SourceState(source_id=secrets.token_hex(4))
        self._run = SourceRun()

    @property
    def _settings(self) -> SourceSettings:
        if isinstance(self._given, TxnLogError):
            with readable_errors():
                raise self._given
        return self._given

    def initialOffset(self) -> JsonOffset:
        offset, self._state = self._ask(lambda brokers: initial_offset(brokers, self._state))
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return maxOffsetsPerTrigger, as rows.

        With a group or minOffsetsPerTrigger the limit is never "all available", which tells
        `latestOffset` that a trigger asks once. (A Python source cannot give a minimum besides.)
        """
        settings = self._settings
        if settings.max_offsets_per_trigger is not None:
            return ReadMaxRows(settings.max_offsets_per_trigger)
        if settings.group_id is None and settings.min_offsets_per_trigger is None:
            return ReadAllAvailable()
        return ReadMaxRows(ALL_ROWS)

    def prepareForTriggerAvailableNow(self) -> None:
        self._state = self._ask(lambda brokers: freeze_end(brokers, self._state))

    def latestOffset(self, start: JsonOffset, limit: ReadLimit) -> JsonOffset:
        rows_max = None
        if not isinstance(limit, ReadAllAvailable):
            check(isinstance(limit, ReadMaxRows), "a read limit that was asked for", limit=limit)
            rows_max = limit.max_rows  # type: ignore[attr-defined]
        end, self._state = self._ask(lambda b: latest_offset(b, self._state, start, rows_max))
        self._run.look(start, self._state.target, self._state.latest)
        return end

    def reportLatestOffset(self) -> JsonOffset | None:
        """Return the log's end at the last `latestOffset`, for the query's progress report."""
        return self._state.latest

    def partitions(self, start: JsonOffset, end: JsonOffset) -> Sequence[InputPartition]:
        tasks = self._ask(lambda brokers: batch_tasks(brokers, self._state, start, end))
        bootstrap_servers = resolve_bootstrap(self._settings.connection)
        topic_ids = {t: parse_topic_id(text) for t, text in noted_topic_ids(end).items()}
        return [RangePartition(ranges, bootstrap_servers, topic_ids) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        check(isinstance(partition, RangePartition), "a partition of another source")
        with readable_errors():
            yield from read_ranges(self._settings, partition)  # type: ignore[arg-type]

    def commit(self, end: JsonOffset) -> None:
        """Do nothing: the sink commits the group's offsets, with the output."""

    def _ask(self, operation: Callable[[LogQueries], Operation[T]]) -> T:
        with readable_errors():
            return ask(self._settings, operation)
