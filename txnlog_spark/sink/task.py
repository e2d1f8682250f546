"""A task's part of a write: rows to partitions, to record batches, to the staging area.

The task has no producer. It asks a broker only for the partition count of a topic that the planner
did not look up. Whatever happens to this attempt, none of its rows is seen unless its commit
message is the one that Spark hands to the committer. Memory stays bounded: the task joins Arrow
batches only up to some MiB, a block. It encodes a block's rows at once for all topics and
partitions, and stages them as they are encoded.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import shown_key
from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.binary import as_binary
from txnlog_spark.codec.encode import RecordTooLarge, encode_partitioned
from txnlog_spark.codec.partitioner import partition_rows
from txnlog_spark.errors import OptionError, RecordRefused, TxnLogError
from txnlog_spark.formats.arrow_types import narrow_rows
from txnlog_spark.formats.decoded import spread
from txnlog_spark.formats.schema_ids import id_header
from txnlog_spark.sink.columns import Side, SinkColumns
from txnlog_spark.sink.settings import SinkSettings
from txnlog_spark.staging.writer import StagingWriter

GATHER_ROWS_MAX = 16_384
GATHER_BYTES_MAX = 2 * 1024 * 1024
"""Limits up to which Arrow batches are joined, so that record batches are not needlessly small.
While a block is encoded the JVM makes the next one: with 8 MiB a task of 50,000 rows took 20 ms
more."""

RECORD_BATCH_BYTES_WANTED = 32 * 1024
GATHER_FACTOR_MAX = 16
"""Largest factor by which blocks grow. They grow if a block's rows go to so many partitions that
their record batches would be smaller than wanted; a task's memory has to hold such a block."""

PartitionCounts = Callable[[str], int]
"""Topic -> its partition count; raises for a topic that does not exist."""

_Columns = Mapping[str, Any]
"""A block's Arrow arrays by name."""


@dataclass(frozen=True, slots=True)
class _Targets:
    """The topics of a block's rows, with their partitions numbered consecutively.

    Row i goes to topic `names[codes[i]]`; partition p of topic t has the number `first[t] + p`.
    """

    names: list[str]
    codes: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]
    first: npt.NDArray[np.int32]

    def name_of(self, number: int) -> tuple[str, int]:
        """Return the topic and the partition of a number."""
        topic = int(np.searchsorted(self.first, number, side="right")) - 1
        return self.names[topic], number - int(self.first[topic])


class TaskEncoder:
    """Encoder of one task attempt's rows into `staging`.

    `sticky` picks the partition of the first rows without a key; it moves on with every block
    (Kafka's sticky partitioner).
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
        self._gather_factor = 1
        self._names = _column_names(columns)
        self.partition_counts: dict[str, int] = {}
        self.record_count = 0

    def encode_all(self, batches: Iterator[Any]) -> None:
        """Encode and stage all rows. Raises RecordRefused, OptionError, UnknownTopic."""
        gathered: list[Any] = []
        row_count = size_bytes = 0
        for batch in batches:
            if not self.partition_counts and not self._columns.topic:
                self._gather_for(self._count_of(str(self._settings.topic)))
            for piece in _slices(batch.select(self._names)):
                gathered.append(piece)
                row_count += piece.num_rows
                size_bytes += piece.nbytes
                if (
                    row_count >= GATHER_ROWS_MAX * self._gather_factor
                    or size_bytes >= GATHER_BYTES_MAX * self._gather_factor
                ):
                    self._encode_block(gathered)
                    gathered, row_count, size_bytes = [], 0, 0
        self._encode_block(gathered)

    def _encode_block(self, gathered: list[Any]) -> None:
        """Encode and stage one block, for all its topics and partitions together."""
        row_count = sum(piece.num_rows for piece in gathered)
        if not row_count:
            return
        rows = {name: _joined([piece.column(name) for piece in gathered]) for name in self._names}
        gathered.clear()
        self._refuse_malformed(rows)
        letters = self._dead_letters(rows)
        self._refuse_schema_ids(rows, letters)
        keys = _encoded(self._columns.key, rows, letters) if self._columns.key else None
        values = _encoded(self._columns.value, rows, letters)
        topics = self._targets(rows)
        partitions = self._partitions(topics, rows, keys)
        try:
            encoded = encode_partitioned(
                keys,
                values,
                self._timestamps(rows),
                rows.get("headers"),
                partitions + topics.first[topics.codes],
                compression=self._settings.compression,
                record_batch_bytes_max=self._settings.record_batch_bytes_max,
            )
        except RecordTooLarge as error:
            raise self._too_large(topics, keys, error) from error
        except ValueError as error:
            raise TxnLogError(
                f"rows for topic {', '.join(topics.names)} cannot be encoded: {error}"
            ) from error
        target_count = 0
        for target, found in itertools.groupby(encoded, key=itemgetter(0)):
            topic, partition = topics.name_of(target)
            self._staging.append(topic, partition, (batch for _, batch in found))
            target_count += 1
        self.record_count += row_count
        self._sticky += 1
        self._gather_for(target_count)

    def _gather_for(self, target_count: int) -> None:
        """Choose the size of the next blocks, whose rows go to so many partitions."""
        wanted = -(-target_count * RECORD_BATCH_BYTES_WANTED // GATHER_BYTES_MAX)
        self._gather_factor = min(GATHER_FACTOR_MAX, max(1, wanted))

    def _count_of(self, topic: str) -> int:
        """Return the topic's partition count; it is asked for once."""
        if topic not in self.partition_counts:
            self.partition_counts[topic] = self._counts(topic)
        return self.partition_counts[topic]

    def _refuse_malformed(self, rows: _Columns) -> None:
        """Refuse rows that a PERMISSIVE read found malformed: their null values would become
        tombstones."""
        for name in self._columns.errors:
            count = len(rows[name]) - rows[name].null_count
            if count:
                raise OptionError(
                    f"column {name}",
                    None,
                    f'{count} rows are malformed: leave them out with where("{name} is null"), '
                    "or make dead letters of them with txnlog_spark.dead_letters",
                )

    def _dead_letters(self, rows: _Columns) -> Any:
        """Return an array that is true for rows with bytes of their own; None if no row has any."""
        given = [rows[name] for name in self._columns.bytes_columns]
        if all(column.null_count == len(column) for column in given):
            return None
        letters = reduce(pc.or_, [column.is_valid() for column in given])
        if self._columns.has_topics_unread:
            raise OptionError(
                "topic",
                self._settings.topic,
                f"remove it: {letters.true_count} rows are dead letters, and their topic is in the "
                "column topic, which the option overrides. To write all rows to the option's "
                "topic, drop the column",
            )
        return letters

    def _refuse_schema_ids(self, rows: _Columns, letters: Any) -> None:
        """Refuse a header that names the schema of the bytes that were read: the new bytes differ.

        Dead letters keep their bytes, and their headers.
        """
        sides = (self._columns.key, self._columns.value)
        wrong = {id_header(each.name): each.name for each in sides if each and each.writer}
        if not self._columns.headers or not wrong:
            return
        headers = rows["headers"] if letters is None else rows["headers"].filter(pc.invert(letters))
        names = pc.list_flatten(headers).field("key")
        for name, side in wrong.items():
            if count := pc.equal(names, name).true_count:
                raise OptionError(
                    "column headers",
                    name,
                    f"remove this header: {count} rows have it, and readers would decode the "
                    f"{side} with the schema that it names, which is not the schema of "
                    f"{side}.format. Write filter(headers, h -> h.key != '{name}')",
                )

    def _targets(self, rows: _Columns) -> _Targets:
        if not self._columns.topic:
            names, codes = [str(self._settings.topic)], np.zeros(_row_count(rows), np.int32)
        else:
            topics = rows["topic"]
            if topics.null_count:
                wanted = "fill the column, or set the option topic for all rows"
                if self._columns.bytes_columns:
                    wanted = (
                        "fill the column with coalesce(topic, ...): dead_letters returns all rows, "
                        "the well-formed ones without a topic"
                    )
                raise OptionError(
                    "column topic", None, f"{topics.null_count} rows have a null topic: {wanted}"
                )
            encoded = topics.dictionary_encode()
            names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        counts = np.array([self._count_of(name) for name in names], np.int32)
        first = np.zeros(len(names), np.int32)
        np.cumsum(counts[:-1], out=first[1:])
        return _Targets(names, codes, counts, first)

    def _timestamps(self, rows: _Columns) -> npt.NDArray[np.int64]:
        """Return times in milliseconds: of the timestamp column, or now for a null."""
        now_ms = time.time_ns() // 1_000_000
        if self._columns.timestamp is None:
            return np.full(_row_count(rows), now_ms, np.int64)
        column = rows[self._columns.timestamp]
        micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        values = micros.fill_null(now_ms * 1000).to_numpy(zero_copy_only=False)
        timestamps_ms = np.asarray(values // 1000, np.int64)
        earliest_ms = int(timestamps_ms.min(initial=0))
        if earliest_ms < 0:
            raise OptionError(
                "timestampColumn",
                self._columns.timestamp,
                f"use times from 1970 on, as Kafka's producer demands, or null for now: the "
                f"earliest time is {earliest_ms} ms after 1970",
            )
        return timestamps_ms

    def _partitions(self, topics: _Targets, rows: _Columns, keys: Any) -> npt.NDArray[np.int32]:
        counts = topics.counts[topics.codes]
        sticky = self._sticky % counts
        chosen: npt.NDArray[np.int32] = sticky
        if keys is not None:
            chosen = partition_rows(keys, counts, null_key_partition=sticky)
        if not self._columns.partition:
            return chosen
        given = rows["partition"]
        asked = given.fill_null(0).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero((asked < 0) | (asked >= counts))
        if len(wrong):
            count = counts[wrong[0]]
            raise OptionError(
                "column partition",
                int(asked[wrong[0]]),
                f"use 0 to {count - 1}: topic {topics.names[topics.codes[wrong[0]]]} has {count} "
                "partitions; null leaves the choice to the partitioner",
            )
        return np.where(given.is_null().to_numpy(zero_copy_only=False), chosen, asked).astype(
            np.int32
        )

    def _too_large(self, topics: _Targets, keys: Any, error: RecordTooLarge) -> RecordRefused:
        key = None if keys is None else keys[error.row_index].as_py()
        return RecordRefused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a record for topic {topics.names[topics.codes[error.row_index]]} with key "
            f"{shown_key(key)} "
            f"takes {error.size_bytes} bytes, over "
            f"kafka.max.request.size={error.record_batch_bytes_max}: leave the row out, or raise "
            "kafka.max.request.size and the topic's max.message.bytes",
        )


def _column_names(columns: SinkColumns) -> list[str]:
    """Return the columns that a write reads; no block holds any other column of the rows."""
    flags = {
        "topic": columns.topic,
        "partition": columns.partition,
        "headers": columns.headers,
    }
    names = [*columns.value.columns, *(columns.key.columns if columns.key else ())]
    names += [name for name, is_there in flags.items() if is_there]
    names += columns.errors
    if columns.timestamp is not None:
        names.append(columns.timestamp)
    return list(dict.fromkeys(names))


def _row_count(rows: _Columns) -> int:
    return len(next(iter(rows.values())))


def _encoded(side: Side, rows: _Columns, letters: Any) -> Any:
    """Encode the keys or the values as one binary array. Raises TxnLogError naming a column."""
    if letters is None or side.bytes_column is None:
        return _encoded_where(side, rows, None)
    made = _encoded_where(side, rows, pc.invert(letters))
    return pc.if_else(letters, rows[side.bytes_column], made)


def _encoded_where(side: Side, rows: _Columns, mask: Any) -> Any:
    """Encode the rows of `mask`, all rows without it; with a format, the other rows become null."""
    if side.writer is None:
        return as_binary(rows[side.name])
    if side.fields:
        arrays = [rows[name] for name in side.fields]
        column = pa.StructArray.from_arrays(arrays, names=list(side.fields))
    else:
        column = rows[side.name]
    wanted = column.is_valid() if mask is None else pc.and_(column.is_valid(), mask)
    if wanted.true_count == len(column):
        return side.writer.encode(column)
    return spread(side.writer.encode(column.filter(wanted)), wanted)


def _joined(arrays: list[Any]) -> Any:
    """Join arrays to one; a single array is not copied."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _slices(batch: Any) -> Iterator[Any]:
    """Yield views of a batch of near GATHER_BYTES_MAX: Spark sends 10,000 rows at once, of any
    size."""
    piece_count = max(1, -(-batch.nbytes // GATHER_BYTES_MAX))
    rows_each = max(1, -(-batch.num_rows // piece_count))
    for start in range(0, batch.num_rows, rows_each):
        yield narrow_rows(batch.slice(start, rows_each))


def lookup_counts(snapshot: Mapping[str, int], fetch: PartitionCounts) -> PartitionCounts:
    """Return counts from the planner's snapshot; a topic that is not in it is asked for once."""
    known = dict(snapshot)

    def count_of(topic: str) -> int:
        if topic not in known:
            known[topic] = fetch(topic)
        return known[topic]

    return count_of
