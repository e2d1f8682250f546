"""The batch source: a bounded snapshot, fixed when the query is planned.

Filters are pushed down to a class of its own: Spark refuses a reader that takes filters while its
configuration `spark.sql.python.filterPushdown.enabled` is false, as it is by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from txnlog_kafka.operations.effects import Operation
from txnlog_spark.client_cache import resolve_bootstrap
from txnlog_spark.source.brokers import Brokers
from txnlog_spark.source.host import ask
from txnlog_spark.source.partition import RangePartition, read_ranges
from txnlog_spark.source.planning import OffsetRange, plan_ranges, plan_tasks
from txnlog_spark.source.positions import NO_OFFSET
from txnlog_spark.source.pushdown import Pushed, push
from txnlog_spark.source.settings import SourceSettings
from txnlog_spark.spark_errors import readable_errors


class TxnLogBatchReader(DataSourceReader):
    """One batch read. Under read_committed it ends at the last stable offsets."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Raises OptionError, UnknownTopic, DataLoss."""
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
        """The records of one task as Arrow batches; Spark's empty partition has none."""
        with readable_errors():
            if isinstance(partition, RangePartition):
                yield from read_ranges(self._settings, partition)

    def _ranges(self, brokers: Brokers) -> Operation[list[OffsetRange]]:
        """What is read, without what the filters exclude.

        Their time is looked up last: a record that comes meanwhile lies behind the ends.
        """
        existing = yield from brokers.discover()
        start, _ = yield from brokers.positions(self._settings.starting, existing)
        end, _ = yield from brokers.positions(self._settings.ending, existing)
        ranges = self._pushed.clip(plan_ranges(start, end))
        timestamp_ms = self._pushed.timestamp_ms_min
        if timestamp_ms is None:
            return ranges
        specs = {each.topic_partition: timestamp_ms for each in ranges}
        first = yield from brokers.offsets_at(specs)
        later = (
            replace(r, start_offset=max(r.start_offset, first[r.topic_partition]))
            for r in ranges
            if first[r.topic_partition] != NO_OFFSET
        )
        return [each for each in later if each.offset_count > 0]


class FilteringBatchReader(TxnLogBatchReader):
    """One batch read that leaves out what filters exclude, as far as offsets say it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters; those that Spark has to apply all the same."""
        self._pushed, left = push(filters)
        return left
