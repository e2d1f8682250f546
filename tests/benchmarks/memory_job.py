"""The application that `bench_memory.py` measures: queries of the connector, or of `Floor`.

Run under spark-submit: NAME COUNT BOOTSTRAP FOLDER. It writes "ready" when each query has committed
BATCHES batches, and runs on until it is ended.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from floor import NAME as FLOOR
from floor import Floor
from pyspark.sql import SparkSession
from support.brokers.probe import wait_until

BATCHES = 3
ROWS_A_BATCH = 100
READY_S_MAX = 300


def main(name: str, count: int, bootstrap: str, folder: Path) -> None:
    """Run the queries."""
    spark = SparkSession.builder.getOrCreate()
    if name == FLOOR:
        spark.dataSource.register(Floor)
    queries = []
    for number in range(count):
        read = {"subscribe": f"in-{number}", "startingOffsets": "earliest"}
        read |= {"maxOffsetsPerTrigger": str(ROWS_A_BATCH)}
        write = {"topic": f"out-{number}"}
        kafka = {"kafka.bootstrap.servers": bootstrap}
        if name == FLOOR:
            read, write = {"rows": str(ROWS_A_BATCH)}, {}
        else:
            read, write = read | kafka, write | kafka
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
