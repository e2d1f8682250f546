"""The batch source: a bounded snapshot, fixed when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from txnlog_spark.client_cache import resolve_bootstrap
from txnlog_spark.source.brokers import discover, fetch_positions
from txnlog_spark.source.partition import RangePartition, read_ranges
from txnlog_spark.source.planning import plan_ranges, plan_tasks
from txnlog_spark.source.settings import SourceSettings
from txnlog_spark.spark_errors import readable_errors


class TxnLogBatchReader(DataSourceReader):
    """One batch read. Under read_committed it ends at the last stable offsets."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Raises OptionError, UnknownTopic, DataLoss."""
        with readable_errors():
            settings = self._settings
            existing = discover(settings)
            start = fetch_positions(settings, settings.starting, existing).offsets
            end = fetch_positions(settings, settings.ending, existing).offsets
            tasks = plan_tasks(
                plan_ranges(start, end),
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
