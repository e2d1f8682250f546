"""A task's part of a write: rows to partitions, to record batches, to the staging area.

No producer and no connection are involved: whatever happens to this attempt, nothing of it is seen
unless its commit message is the one that Spark hands to the committer. Memory stays bounded: Arrow
batches are gathered only up to a few MiB, encoded and staged at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnlog_spark.codec.encode import RecordTooLarge, encode_batches
from txnlog_spark.codec.partitioner import partition_rows
from txnlog_spark.codec.scatter import scatter_rows
from txnlog_spark.errors import OptionError, RecordRefused, TxnLogError
from txnlog_spark.sink.columns import SinkColumns, as_binary
from txnlog_spark.sink.settings import SinkSettings
from txnlog_spark.sink.staging import StagingWriter
from txnlog_spark.wire.errors import ErrorCode

GATHER_ROWS_MAX = 65_536
GATHER_BYTES_MAX = 8 * 1024 * 1024
"""Arrow batches are joined up to this much, so that record batches are not needlessly small."""

SHOWN_KEY_BYTES_MAX = 40

PartitionCounts = Callable[[str], int]
"""Topic -> its partition count; raises for a topic that does not exist."""


class TaskEncoder:
    """Encodes one task attempt's rows into `staging`.

    `sticky` picks the partition of the first rows without a key; it moves on with every gathered
    block (Kafka's sticky partitioner).
    """

    def __init__(
        self,
        settings: SinkSettings,
        columns: SinkColumns,
        counts: PartitionCounts,
        staging: StagingWriter,
        sticky: int,
    ) -> None:
        self._settings = settings
        self._columns = columns
        self._counts = counts
        self._staging = staging
        self._sticky = sticky
        self.partition_counts: dict[str, int] = {}
        self.record_count = 0

    def encode_all(self, batches: Iterator[Any]) -> None:
        """Encode and stage all rows. Raises RecordRefused, OptionError, UnknownTopic."""
        gathered: list[Any] = []
        row_count = size_bytes = 0
        for batch in batches:
            gathered.append(batch)
            row_count += batch.num_rows
            size_bytes += batch.nbytes
            if row_count >= GATHER_ROWS_MAX or size_bytes >= GATHER_BYTES_MAX:
                self._encode(gathered)
                gathered, row_count, size_bytes = [], 0, 0
        self._encode(gathered)

    def _encode(self, gathered: list[Any]) -> None:
        if len(gathered) == 1:
            blocks = _slices(gathered[0])
        else:
            blocks = iter([pa.Table.from_batches(gathered).combine_chunks()] if gathered else [])
        for rows in blocks:
            for topic, selected in self._by_topic(rows):
                self._encode_topic(topic, selected)
            self.record_count += rows.num_rows
            self._sticky += 1

    def _by_topic(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if not self._columns.topic:
            yield str(self._settings.topic), rows
            return
        topics = rows["topic"].combine_chunks()
        if topics.null_count:
            raise OptionError(
                "column topic",
                None,
                f"{topics.null_count} rows have a null topic: fill the column, or set the option "
                "topic for all rows",
            )
        for topic in pc.unique(topics).to_pylist():
            yield topic, rows.filter(pc.equal(topics, topic))

    def _encode_topic(self, topic: str, rows: pa.Table) -> None:
        count = self.partition_counts.get(topic)
        if count is None:
            count = self.partition_counts[topic] = self._counts(topic)
        keys = as_binary(rows["key"]) if self._columns.key else None
        values = as_binary(rows["value"])
        headers = rows["headers"].combine_chunks() if self._columns.headers else None
        timestamps_ms = self._timestamps(rows)
        for partition, indices in scatter_rows(self._partitions(topic, rows, keys, count)):
            whole = len(indices) == len(values)
            taken = pa.array(indices)
            try:
                encoded = encode_batches(
                    keys if whole or keys is None else keys.take(taken),
                    values if whole else values.take(taken),
                    timestamps_ms[indices],
                    headers if whole or headers is None else headers.take(taken),
                    compression=self._settings.compression,
                    record_batch_bytes_max=self._settings.record_batch_bytes_max,
                )
            except RecordTooLarge as error:
                row = int(indices[error.row_index])
                raise self._too_large(topic, keys, row, error) from error
            except ValueError as error:
                raise TxnLogError(
                    f"rows for {topic}-{partition} cannot be encoded: {error}"
                ) from error
            self._staging.append(topic, partition, encoded)

    def _timestamps(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Milliseconds: of the timestamp column where it is not null, else now."""
        now_ms = time.time_ns() // 1_000_000
        if self._columns.timestamp is None:
            return np.full(rows.num_rows, now_ms, np.int64)
        column = rows[self._columns.timestamp].combine_chunks()
        micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        values = micros.fill_null(now_ms * 1000).to_numpy(zero_copy_only=False)
        timestamps_ms = np.asarray(values // 1000, np.int64)
        earliest_ms = int(timestamps_ms.min(initial=0))
        if earliest_ms < 0:
            raise OptionError(
                "timestampColumn",
                self._columns.timestamp,
                f"times from 1970 on, as Kafka's producer demands, or null for now: the earliest "
                f"is {earliest_ms} ms after 1970",
            )
        return timestamps_ms

    def _partitions(
        self, topic: str, rows: pa.Table, keys: Any, count: int
    ) -> npt.NDArray[np.int32]:
        sticky = self._sticky % count
        if keys is None:
            chosen = np.full(rows.num_rows, sticky, np.int32)
        else:
            chosen = partition_rows(keys, count, null_key_partition=sticky)
        if not self._columns.partition:
            return chosen
        given = rows["partition"].combine_chunks()
        asked = given.fill_null(0).to_numpy(zero_copy_only=False)
        wrong = (asked < 0) | (asked >= count)
        if wrong.any():
            raise OptionError(
                "column partition",
                int(asked[wrong][0]),
                f"0 to {count - 1}: topic {topic} has {count} partitions; null leaves the choice "
                "to the partitioner",
            )
        return np.where(given.is_null().to_numpy(zero_copy_only=False), chosen, asked).astype(
            np.int32
        )

    def _too_large(self, topic: str, keys: Any, row: int, error: RecordTooLarge) -> RecordRefused:
        key = None if keys is None else keys[row].as_py()
        shown = "null" if key is None else repr(key[:SHOWN_KEY_BYTES_MAX])
        return RecordRefused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a record for topic {topic} with key {shown} takes {error.size_bytes} bytes, over "
            f"kafka.max.request.size={error.record_batch_bytes_max}: leave the row out, or raise "
            "kafka.max.request.size and the topic's max.message.bytes",
        )


def _slices(batch: Any) -> Iterator[pa.Table]:
    """Views of a batch of near GATHER_BYTES_MAX: Spark sends 10,000 rows at once, of any size."""
    piece_count = max(1, -(-batch.nbytes // GATHER_BYTES_MAX))
    rows_each = max(1, -(-batch.num_rows // piece_count))
    for start in range(0, batch.num_rows, rows_each):
        yield pa.Table.from_batches([batch.slice(start, rows_each)])


def lookup_counts(snapshot: Mapping[str, int], fetch: PartitionCounts) -> PartitionCounts:
    """Counts from the planner's snapshot; a topic that is not in it is asked for once."""
    known = dict(snapshot)

    def count_of(topic: str) -> int:
        if topic not in known:
            known[topic] = fetch(topic)
        return known[topic]

    return count_of
