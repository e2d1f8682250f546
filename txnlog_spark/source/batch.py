"""Spark's batch source: tasks are planned once for each `load()`, offsets found when they run.

Spark asks for partitions once for each `load()`, and runs them in every action on its rows: a view,
or the batch side of a join with a stream, for as long as the application lives. So a task gets
windows, and asks where its partitions start and end now. A second try may end later than the first,
as with Spark's own connector: one that has failed leaves no rows. Rows of a stage that is computed
again after its end are Spark's to compare (`spark.sql.shuffle.orderIndependentChecksum`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.client_cache import resolve_bootstrap
from txnlog_spark.errors import UnknownTopic
from txnlog_spark.source.brokers import Brokers, Partitions
from txnlog_spark.source.host import ask
from txnlog_spark.source.partition import RangePartition, read_ranges, task_client
from txnlog_spark.source.planning import OffsetRange, plan_ranges, plan_tasks, plan_windows, within
from txnlog_spark.source.positions import NO_OFFSET, check_order, named_ends, starts_from_group
from txnlog_spark.source.pushdown import Pushed, push
from txnlog_spark.source.selection import PositionRequest
from txnlog_spark.source.settings import SourceSettings
from txnlog_spark.spark_errors import readable_errors


@dataclass(frozen=True, slots=True)
class BatchShare(InputPartition):
    """One task's windows on its partitions."""

    windows: tuple[OffsetRange, ...]
    bootstrap_servers: str
    others: frozenset[TopicPartition] | None = None
    """In the last task, the partitions of all others: it reads those that were added since."""


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
            tasks = plan_tasks(
                ranges,
                min_partitions=settings.min_partitions,
                max_records_per_partition=settings.max_records_per_partition,
            )
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
            ranges = client.run(self._ranges_now(Brokers(client.session, self._settings), share))
            yield from read_ranges(self._settings, RangePartition(ranges, share.bootstrap_servers))

    def _plan(self, brokers: Brokers) -> Operation[tuple[Partitions, list[OffsetRange]]]:
        existing = yield from brokers.discover()
        requests = self._settings.starting, self._settings.ending
        return existing, (yield from self._ranges(brokers, existing, *requests))

    def _ranges_now(
        self, brokers: Brokers, share: BatchShare
    ) -> Operation[tuple[OffsetRange, ...]]:
        """Find what the windows show now. Partitions that are gone are left out as in a plan."""
        partitions = {p for p, _, _ in self._pushed.clip(share.windows)}
        if share.others is not None:
            partitions |= set((yield from brokers.discover())) - share.others
        starting = self._settings.starting.narrowed(partitions)
        ending = self._settings.ending.narrowed(partitions)
        try:
            found = yield from self._ranges(brokers, tuple(partitions), starting, ending)
        except UnknownTopic:
            left = partitions.intersection((yield from brokers.discover()))
            found = yield from self._ranges(brokers, tuple(left), starting, ending)
        return within(share.windows, found)

    def _ranges(
        self,
        brokers: Brokers,
        partitions: Partitions,
        starting: PositionRequest,
        ending: PositionRequest,
    ) -> Operation[list[OffsetRange]]:
        """Find the ranges without what the filters exclude."""
        start, _ = yield from brokers.find_positions(starting, partitions)
        end, _ = yield from brokers.find_positions(ending, partitions)
        if not starts_from_group(starting):
            check_order(start, named_ends(ending, end), starting.option)
        ranges = self._pushed.clip(plan_ranges(start, end))
        if (timestamp_ms := self._pushed.timestamp_ms_min) is None:
            return ranges
        # Looked up last: a record that comes meanwhile lies behind the ends.
        first = yield from brokers.offsets_at({p: timestamp_ms for p, _, _ in ranges})
        later = [
            OffsetRange(p, max(low, first[p]), high)
            for p, low, high in ranges
            if first[p] != NO_OFFSET
        ]
        return [each for each in later if each.offset_count > 0]


class FilteringBatchReader(TxnLogBatchReader):
    """Batch read that leaves out what filters exclude, as far as offsets say it.

    A class of its own: Spark refuses a reader that takes filters, unless its configuration
    `spark.sql.python.filterPushdown.enabled` is set.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters, and return those that Spark has to apply all the same."""
        self._pushed, left = push(filters)
        return left
