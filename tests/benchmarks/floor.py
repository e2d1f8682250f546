"""The floor: a source and a sink in Python that do nothing but what Spark asks of any.

What they take is PySpark's own time, so nothing in Python can be faster; as the connector, they
keep Spark's daemon from looking at every object of every module after each task (`Frozen`). The
source gives the seven columns of a Kafka topic, made at once: values of 200 bytes, keys of 16.
"""

# ruff: noqa: N802, N803

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from txnlog_spark.process_local import Frozen, process_local

ROWS_TOGETHER = 20_000
KEY_BYTES, VALUE_BYTES = 16, 200
NAME = "floor"


def rows_of(count: int) -> Iterator[Any]:
    """Yield `count` rows, as Arrow batches."""
    import numpy as np
    import pyarrow as pa

    def binary(rows: int, size: int) -> Any:
        at = np.arange(rows + 1, dtype=np.int32) * size
        data = np.full(rows * size, ord("x"), np.uint8)
        return pa.Array.from_buffers(
            pa.binary(), rows, [None, pa.py_buffer(at), pa.py_buffer(data)]
        )

    for first in range(0, count, ROWS_TOGETHER):
        rows = min(ROWS_TOGETHER, count - first)
        zeros = np.zeros(rows, np.int32)
        columns = {
            "key": binary(rows, KEY_BYTES),
            "value": binary(rows, VALUE_BYTES),
            "topic": pa.DictionaryArray.from_arrays(zeros, pa.array(["a"])).dictionary_decode(),
            "partition": pa.array(zeros),
            "offset": pa.array(np.arange(rows)),
            "timestamp": pa.array(np.arange(rows), pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array(zeros),
        }
        yield pa.RecordBatch.from_pydict(columns)
    process_local(Frozen)


class Share(InputPartition):
    """Number of rows that one task produces."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def shares_of(rows: int, tasks: int) -> list[Share]:
    """Divide rows among tasks."""
    return [Share((rows + index) // tasks) for index in range(tasks)]


class FloorReader(DataSourceReader):
    """`rows` in so many tasks."""

    def __init__(self, rows: int, tasks: int) -> None:
        self.rows = rows
        self.tasks = tasks

    def partitions(self) -> list[Share]:
        return shares_of(self.rows, self.tasks)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rows_of(partition.rows)  # type: ignore[attr-defined]


class FloorStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`rows` in so many tasks whenever it is asked, up to `end` in all."""

    def __init__(self, rows: int, tasks: int, end: int) -> None:
        self.rows = rows
        self.tasks = tasks
        self.end = end

    def initialOffset(self) -> dict[str, int]:
        return {"offset": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.rows)

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"offset": min(start["offset"] + self.rows, self.end)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Share]:
        return shares_of(end["offset"] - start["offset"], self.tasks)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rows_of(partition.rows)  # type: ignore[attr-defined]


class FloorWriter(DataSourceStreamArrowWriter):
    """Takes rows and keeps none."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        process_local(Frozen)
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:
        pass

    def abort(self, messages: Any, batchId: int) -> None:
        pass


class Floor(DataSource):
    """Options: `rows` (of a batch), `tasks`, `end` (rows of a stream in all)."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return (
            "key binary, value binary, topic string, partition int, offset long, "
            "timestamp timestamp, timestampType int"
        )

    def _number(self, name: str, default: int) -> int:
        return int(self.options.get(name, default))

    def reader(self, schema: Any) -> FloorReader:
        return FloorReader(self._number("rows", 0), self._number("tasks", 1))

    def streamReader(self, schema: Any) -> FloorStreamReader:
        rows, end = self._number("rows", 0), self._number("end", 2**62)
        return FloorStreamReader(rows, self._number("tasks", 1), end)

    def streamWriter(self, schema: Any, overwrite: bool) -> FloorWriter:
        return FloorWriter()
