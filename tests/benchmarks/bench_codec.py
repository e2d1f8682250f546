"""Records a second of the codec on one core, and its ratio to confluent_kafka's produce().

Run: python tests/benchmarks/bench_codec.py [--json]. Nothing is asserted: figures depend on the
machine, the ratio is what to compare. `produce()` queues a record in librdkafka for a broker that
does not exist: it is the hand-over from Python to a native client, which the codec replaces.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from txnlog_spark.codec.decode import iter_decoded
from txnlog_spark.codec.encode import encode_batches
from txnlog_spark.codec.partitioner import partition_rows
from txnlog_spark.wire.records import parse_header, stamp_offsets

ROWS = {10: 200_000, 100: 200_000, 1000: 50_000, 10_000: 5_000}


def best_rate(function, rows, rounds=7):
    """Rows a second of the fastest round."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
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

    def encode():
        return encode_batches(
            keys, values, times, None, compression=compression, record_batch_bytes_max=1_000_000
        )

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


def main():
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cases = [(size, "none") for size in ROWS] + [(100, "lz4"), (100, "zstd")]
    results = [measure(*case) for case in cases]
    if arguments.json:
        print(json.dumps(results, indent=1))
        return
    print("  ".join(f"{name:>14.14}" for name in results[0]))
    for result in results:
        print("  ".join(f"{value:>14}" for value in result.values()))


if __name__ == "__main__":
    main()
