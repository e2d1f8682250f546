"""The application that `bench_memory.py` measures: queries of the connector, or of `Peer`.

Run under spark-submit: NAME COUNT BOOTSTRAP FOLDER. It writes "ready" when each query has committed
BATCHES batches, and runs on until it is ended.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from support.brokers.probe import wait_until

BATCHES = 3
ROWS_A_BATCH = 100
READY_S_MAX = 300


class PeerReader(DataSourceStreamReader):
    """So many new rows whenever it is asked."""

    end = 0

    def initialOffset(self) -> dict[str, int]:
        return {"offset": 0}

    def latestOffset(self) -> dict[str, int]:
        self.end += ROWS_A_BATCH
        return {"offset": self.end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["offset"], end["offset"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return ((b"key", b"value") for _ in range(*partition.value))


class PeerWriter(DataSourceStreamArrowWriter):
    """Takes rows and keeps none."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:
        pass

    def abort(self, messages: Any, batchId: int) -> None:
        pass


class Peer(DataSource):
    """A source and a sink of nothing but what Spark asks for."""

    @classmethod
    def name(cls) -> str:
        return "peer"

    def schema(self) -> str:
        return "key binary, value binary"

    def streamReader(self, schema: Any) -> PeerReader:
        return PeerReader()

    def streamWriter(self, schema: Any, overwrite: bool) -> PeerWriter:
        return PeerWriter()


def main(name: str, count: int, bootstrap: str, folder: Path) -> None:
    """Run the queries."""
    spark = SparkSession.builder.getOrCreate()
    if name == "peer":
        spark.dataSource.register(Peer)
    queries = []
    for number in range(count):
        read = {"subscribe": f"in-{number}", "startingOffsets": "earliest"}
        read |= {"maxOffsetsPerTrigger": str(ROWS_A_BATCH)}
        write = {"topic": f"out-{number}"}
        kafka = {"kafka.bootstrap.servers": bootstrap}
        read, write = ({}, {}) if name == "peer" else (read | kafka, write | kafka)
        write["checkpointLocation"] = str(folder / f"query-{number}")
        rows = spark.readStream.format(name).options(**read).load().select("key", "value")
        writer = rows.writeStream.format(name).options(**write)
        queries.append(writer.trigger(processingTime="1 second").start())

    def has_its_batches(query: Any) -> bool:
        if not query.isActive:
            raise SystemExit(str(query.exception()))
        return (query.lastProgress or {"batchId": -1})["batchId"] >= BATCHES

    for query in queries:
        wait_until(lambda query=query: has_its_batches(query), "batches", timeout_s=READY_S_MAX)
    print("ready", flush=True)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
