"""Records a second of the codec on one core, and its ratio to confluent_kafka's produce().

Run: python tests/benchmarks/bench_codec.py [--json | --partitions]. Nothing is asserted: figures
depend on the machine, the ratio is what to compare. `produce()` queues a record in librdkafka for a
broker that does not exist: it is the hand-over from Python to a native client, which the codec
replaces. --partitions: megabytes a second of a whole task, from Spark's Arrow batches to record
batches, by the number of partitions that its rows go to.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from txnlog_kafka.wire.records import parse_header, stamp_offsets
from txnlog_spark.codec.decode import iter_decoded
from txnlog_spark.codec.encode import encode_partitioned
from txnlog_spark.codec.partitioner import partition_rows
from txnlog_spark.sink.columns import SinkColumns
from txnlog_spark.sink.settings import read_sink_settings
from txnlog_spark.sink.task import TaskEncoder

ROWS = {10: 200_000, 100: 200_000, 1000: 50_000, 10_000: 5_000}

PARTITIONS = (1, 6, 64, 256, 1000)
TASK_BYTES = 64 * 1024 * 1024
ARROW_ROWS = 10_000
"""Rows of one Arrow batch, as Spark sends them."""


def best_rate(function, rows, rounds=7):
    """Rows a second of processor time of the fastest round: others may use the machine as well."""
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return rows / min(seconds)


def make_columns(value_bytes, rows):
    """Keys of six bytes, values between half and one and a half of `value_bytes`."""
    sizes = np.random.default_rng(1).integers(value_bytes // 2, value_bytes * 3 // 2, rows)
    values = pa.array([b"v" * size for size in sizes.tolist()], pa.binary())
    keys = pa.array([b"N%05d" % (row % 4000) for row in range(rows)], pa.binary())
    return keys, values, np.arange(rows) + 1_600_000_000_000


def answer_of(batches):
    """The batches with consecutive offsets, as one Fetch answer."""
    base_offset = 0
    for batch in batches:
        stamp_offsets(batch, 0, base_offset=base_offset, leader_epoch=0)
        base_offset += parse_header(batch).record_count
    return b"".join(batches)


def confluent_rate(keys, values, rows):
    """Rows a second into librdkafka's queue."""
    import confluent_kafka

    pairs = list(zip(keys.to_pylist(), values.to_pylist(), strict=True))[:rows]

    def produce():
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": "127.0.0.1:1",
                "queue.buffering.max.messages": 10_000_000,
                "queue.buffering.max.kbytes": 2_000_000,
                "log_level": 0,
            }
        )
        for key, value in pairs:
            producer.produce("t", value, key)
        producer.purge()

    return best_rate(produce, len(pairs), rounds=3)


def measure(value_bytes, compression):
    """One line of the table."""
    rows = ROWS[value_bytes]
    keys, values, times = make_columns(value_bytes, rows)

    of_one = np.zeros(rows, np.int32)

    def encode():
        encoded = encode_partitioned(
            keys, values, times, None, of_one,
            compression=compression, record_batch_bytes_max=1_000_000,
        )  # fmt: skip
        return [batch for _, batch in encoded]

    answer = answer_of(encode())

    def decode():
        for _ in iter_decoded(answer, start_offset=0, end_offset=rows, aborted=[]):
            pass

    result = {
        "value_bytes": value_bytes,
        "compression": compression,
        "encode_rows_per_s": round(best_rate(encode, rows)),
        "decode_rows_per_s": round(best_rate(decode, rows)),
        "partition_rows_per_s": round(best_rate(lambda: partition_rows(keys, 6), rows)),
        "confluent_produce_rows_per_s": round(confluent_rate(keys, values, rows)),
    }
    ratio = result["encode_rows_per_s"] / result["confluent_produce_rows_per_s"]
    return result | {"encode_ratio": round(ratio, 1)}


class NoStaging:
    """Takes record batches and forgets them."""

    def __init__(self):
        self.batch_count = 0

    def append(self, _topic, _partition, batches):
        """As `StagingWriter.append`."""
        self.batch_count += len(list(batches))


def measure_task(value_bytes, partition_count):
    """One line of the table of tasks; a row's key of 16 bytes counts as well."""
    rows = TASK_BYTES // (value_bytes + 16)
    letters = np.random.default_rng(1).integers(97, 123, rows * value_bytes, dtype=np.uint8)
    values = pa.Array.from_buffers(
        pa.binary(),
        rows,
        [
            None,
            pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * value_bytes),
            pa.py_buffer(letters),
        ],
    )
    keys = pa.array([b"key-%012d" % row for row in range(rows)], pa.binary())
    table = pa.table({"key": keys, "value": values})
    batches = table.to_batches(max_chunksize=ARROW_ROWS)
    options = {"kafka.bootstrap.servers": "x:1", "topic": "out"}
    settings = read_sink_settings(options, streaming=False)
    columns = SinkColumns(key=True, topic=False, partition=False, headers=False, timestamp=None)
    staging = NoStaging()

    def encode():
        staging.batch_count = 0
        TaskEncoder(settings, columns, lambda _: partition_count, staging, 0).encode_all(
            iter(batches)
        )

    size_bytes = rows * (value_bytes + 16)
    return {
        "row_bytes": value_bytes + 16,
        "partitions": partition_count,
        "mb_per_s": round(best_rate(encode, size_bytes, rounds=7) / 1e6),
        "batches": staging.batch_count,
    }


def main():
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--partitions", action="store_true")
    arguments = parser.parse_args()
    if arguments.partitions:
        print_table([measure_task(size, count) for size in (200, 1008) for count in PARTITIONS])
        return
    cases = [(size, "none") for size in ROWS] + [(100, "lz4"), (100, "zstd")]
    results = [measure(*case) for case in cases]
    if arguments.json:
        print(json.dumps(results, indent=1))
        return
    print_table(results)


def print_table(results):
    """Names, then a line a result."""
    print("  ".join(f"{name:>14.14}" for name in results[0]))
    for result in results:
        print("  ".join(f"{value:>14}" for value in result.values()))


if __name__ == "__main__":
    main()
