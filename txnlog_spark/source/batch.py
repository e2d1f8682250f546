"""Spark's batch source: tasks are planned once for each `load()`, offsets are found when they run.

Spark runs the tasks in every action on the rows: for a view, or the batch side of a join with a
stream, as long as the application lives. So a task gets windows, and asks where its partitions
start and end now. A second try may end later, as with Spark's own connector: a failed try leaves no
rows. Spark compares a stage's rows if it runs again (`spark.sql.shuffle.orderIndependentChecksum`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.client_cache import resolve_bootstrap
from txnlog_spark.errors import UnknownTopic
from txnlog_spark.source.host import ask
from txnlog_spark.source.log_queries import LogQueries, Partitions
from txnlog_spark.source.partition import RangePartition, read_ranges, task_client
from txnlog_spark.source.planning import OffsetRange, plan_ranges, plan_tasks, plan_windows, within
from txnlog_spark.source.positions import NO_OFFSET, check_order, named_ends, starts_from_group
from txnlog_spark.source.pushdown import Pushed, push
from txnlog_spark.source.settings import SourceSettings
from txnlog_spark.spark_errors import readable_errors


@dataclass(frozen=True, slots=True)
class BatchShare(InputPartition):
    """The windows that one task reads of its partitions."""

    windows: tuple[OffsetRange, ...]
    bootstrap_servers: str
    others: frozenset[TopicPartition] | None = None
    """In the last task, the partitions of all other tasks: it also reads partitions added since."""


class TxnLogBatchReader(DataSourceReader):
    """Batch read, which under read_committed ends at the last stable offsets."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks. Raises OptionError, UnknownTopic, DataLoss."""
        with readable_errors():
            settings = self._settings
            existing, ranges = ask(settings, self._plan)
            tasks = plan_tasks(ranges, settings.min_partitions, settings.max_records_per_partition)
            servers = resolve_bootstrap(settings.connection)
            *most, last = plan_windows(tasks, existing)
            others = frozenset(p for windows in most for p, _, _ in windows)
            return [
                *(BatchShare(each, servers) for each in most),
                BatchShare(last, servers, others),
            ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one task's records as Arrow batches. Raises what `partitions` does."""
        share: BatchShare = partition  # type: ignore[assignment]
        with readable_errors():
            client = task_client(self._settings, share.bootstrap_servers)
            ranges = client.run(self._ranges_now(LogQueries(client.session, self._settings), share))
            yield from read_ranges(self._settings, RangePartition(ranges, share.bootstrap_servers))

    def _plan(self, brokers: LogQueries) -> Operation[tuple[Partitions, list[OffsetRange]]]:
        existing = yield from brokers.discover()
        return existing, (yield from self._ranges(brokers, existing, self._settings))

    def _ranges_now(
        self, brokers: LogQueries, share: BatchShare
    ) -> Operation[tuple[OffsetRange, ...]]:
        """Find the present ranges of the windows, without partitions that are gone."""
        partitions = {p for p, _, _ in self._pushed.clip(share.windows)}
        if share.others is not None:
            partitions |= set((yield from brokers.discover())) - share.others
        try:
            found = yield from self._ranges(brokers, tuple(partitions), self._narrowed(partitions))
        except UnknownTopic:
            left = partitions.intersection((yield from brokers.discover()))
            found = yield from self._ranges(brokers, tuple(left), self._narrowed(left))
        return within(share.windows, found)

    def _narrowed(self, partitions: set[TopicPartition]) -> SourceSettings:
        """Return the settings with the positions of these partitions only."""
        starting = self._settings.starting.narrowed(partitions)
        ending = self._settings.ending.narrowed(partitions)
        return replace(self._settings, starting=starting, ending=ending)

    def _ranges(
        self, brokers: LogQueries, partitions: Partitions, settings: SourceSettings
    ) -> Operation[list[OffsetRange]]:
        """Find the ranges without the offsets that the filters exclude."""
        start, _ = yield from brokers.find_positions(settings.starting, partitions)
        end, _ = yield from brokers.find_positions(settings.ending, partitions)
        if not starts_from_group(settings.starting):
            check_order(start, named_ends(settings.ending, end), settings.starting.option)
        ranges = self._pushed.clip(plan_ranges(start, end))
        if (timestamp_ms := self._pushed.timestamp_ms_min) is None:
            return ranges
        # Look this up last: a record that arrives meanwhile lies after the ends.
        first = yield from brokers.offsets_at({p: timestamp_ms for p, _, _ in ranges})
        return [
            OffsetRange(p, max(low, first[p]), high)
            for p, low, high in ranges
            if NO_OFFSET < first[p] < high
        ]


class FilteringBatchReader(TxnLogBatchReader):
    """Batch read that leaves out the offsets that filters exclude. Spark refuses a reader that
    takes filters, unless `spark.sql.python.filterPushdown.enabled` is set."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters, and return those that Spark still has to apply."""
        self._pushed, left = push(filters)
        return left
