"""The application that `bench_start.py` measures: some `availableNow` queries, one after another.

Arguments: FORMAT BOOTSTRAP FOLDER COUNT. It writes the seconds of each query, from `start` to its
end, and runs on no longer.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from floor import NAME as FLOOR
from floor import Floor
from pyspark.sql import SparkSession

ROWS = 1_000


def main(name: str, bootstrap: str, folder: Path, count: int) -> None:
    """Run the queries."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    if name == FLOOR:
        spark.dataSource.register(Floor)
    for number in range(count):
        began = time.monotonic()
        read = {"subscribe": "in", "startingOffsets": "earliest"}
        write = {"topic": f"out-{number}"}
        kafka = {"kafka.bootstrap.servers": bootstrap}
        if name == FLOOR:
            read, write = {"rows": str(ROWS), "end": str(ROWS)}, {}
        else:
            read, write = read | kafka, write | kafka
        write["checkpointLocation"] = str(folder / f"query-{number}")
        rows = spark.readStream.format(name).options(**read).load().select("key", "value")
        writer = rows.writeStream.format(name).options(**write).trigger(availableNow=True)
        writer.start().awaitTermination()
        print(f"{time.monotonic() - began:.2f}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
