"""Spark's batch source: a bounded snapshot, fixed when the query is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from txnlog_kafka.operations.effects import Operation
from txnlog_spark.client_cache import resolve_bootstrap
from txnlog_spark.source.brokers import Brokers
from txnlog_spark.source.host import ask
from txnlog_spark.source.partition import RangePartition, read_ranges
from txnlog_spark.source.planning import OffsetRange, plan_ranges, plan_tasks
from txnlog_spark.source.positions import NO_OFFSET, check_order, named_ends, starts_from_group
from txnlog_spark.source.pushdown import Pushed, push
from txnlog_spark.source.settings import SourceSettings
from txnlog_spark.spark_errors import readable_errors


class TxnLogBatchReader(DataSourceReader):
    """Batch read, which under read_committed ends at the last stable offsets."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks. Raises OptionError, UnknownTopic, DataLoss."""
        with readable_errors():
            settings = self._settings
            tasks = plan_tasks(
                ask(settings, self._ranges),
                min_partitions=settings.min_partitions,
                max_records_per_partition=settings.max_records_per_partition,
            )
            bootstrap_servers = resolve_bootstrap(settings.connection)
            return [RangePartition(ranges, bootstrap_servers) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one task's records as Arrow batches; Spark's empty partition has none."""
        with readable_errors():
            if isinstance(partition, RangePartition):
                yield from read_ranges(self._settings, partition)

    def _ranges(self, brokers: Brokers) -> Operation[list[OffsetRange]]:
        """Find the ranges without what the filters exclude."""
        starting, ending = self._settings.starting, self._settings.ending
        existing = yield from brokers.discover()
        start, _ = yield from brokers.find_positions(starting, existing)
        end, _ = yield from brokers.find_positions(ending, existing)
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
