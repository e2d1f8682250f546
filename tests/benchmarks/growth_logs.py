"""Logs that would take long to write: transactions by the hundred thousand, and a backlog of 50 GB.

What is measured is how they are read. The log of transactions is written into the broker's folder
while it does not run, as the broker would have: it recovers such a log as after a crash. The
backlog's batches are compressed, so that 50 GB of records are some 100 MB of files.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from bench_setup import create_topic
from support.brokers.probe import ports_of
from support.core.log_build import packed
from support.raw.raw import Connection
from support.raw.requests import produce_request

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import (
    Compression,
    MarkerType,
    Record,
    TransactionMarker,
    encode_batch,
    encode_marker,
    stamp_offsets,
)

VALUE_BYTES = 200
BATCH_RECORDS_MAX = 1_000
PRODUCER = 1_000
PRODUCE_VERSION = 9
BACKLOG_PARTITIONS = 6
BACKLOG_VALUE_BYTES = 1_000
GB = 10**9


def aborted_log(path: Path, *, committed: int, percent: int, size: int) -> int:
    """A log with so many committed records, and so many of all aborted, in transactions of `size`.

    Returns how many records it has, markers left out.
    """
    count = committed // size * 100 // (100 - percent)
    kinds = [MarkerType.COMMIT] * (committed // size)
    kinds += [MarkerType.ABORT] * (count - len(kinds))
    random.Random(1).shuffle(kinds)
    now_ms = int(time.time() * 1000)
    value = random.Random(2).randbytes(VALUE_BYTES)
    offset = sequence = 0
    with path.open("wb") as log:
        for kind in kinds:
            for start in range(0, size, BATCH_RECORDS_MAX):
                records = [Record(b"key", value, now_ms)] * min(BATCH_RECORDS_MAX, size - start)
                log.write(
                    encode_batch(
                        records,
                        base_offset=offset,
                        leader_epoch=0,
                        producer_id=PRODUCER,
                        producer_epoch=0,
                        base_sequence=sequence,
                        transactional=True,
                    )
                )
                offset += len(records)
                sequence += len(records)
            marker = bytearray(
                encode_marker(TransactionMarker(PRODUCER, 0, kind, 0), timestamp=now_ms)
            )
            stamp_offsets(marker, 0, base_offset=offset, leader_epoch=0)
            log.write(marker)
            offset += 1
    return count * size


def backlog(servers: str, topic: str, size_gb: int) -> str:
    """A topic with so many GB of records, the same in each partition; returns its name."""
    create_topic(servers, topic, BACKLOG_PARTITIONS)
    value = b"backlog " * (BACKLOG_VALUE_BYTES // 8)
    now_ms = int(time.time() * 1000)
    records = [Record(b"%d" % n, value, now_ms) for n in range(BATCH_RECORDS_MAX)]
    batch = packed(encode_batch(records), Compression.ZSTD)
    message = produce_request(
        {(topic, number): batch for number in range(BACKLOG_PARTITIONS)}, timeout_ms=30_000
    )
    batches = size_gb * GB // (BACKLOG_VALUE_BYTES * BATCH_RECORDS_MAX)
    with Connection(ports_of(servers)[0]) as connection:
        for _ in range(batches // BACKLOG_PARTITIONS):
            answer = connection.ask(message, PRODUCE_VERSION)
            codes = {p.error_code for t in answer.responses for p in t.partition_responses}
            if codes != {ErrorCode.NONE}:
                raise RuntimeError(f"{topic} could not be filled: {codes}")
    return topic
