"""A task of a read in a cluster: what was there when its range was planned is there for it.

It reads the newest records with the product's own code, each time as a new client, which knows
nobody yet. No log of the cluster loses what is committed, so an offset out of range is a violation.
"""

from __future__ import annotations

from collections.abc import Callable

from simulation.violation import violated
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.operations.fetch import fetch_next
from txnlog_kafka.operations.fetch_cursor import FetchCursor
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DataLoss, DeadlineExceeded, UnknownTopic

READ_MS = 700
RECORDS = 3
"""The last so many of a partition."""
FETCH_BYTES = 1 << 16


def read_ranges(
    topic: str,
    ends: Callable[[], dict[int, int]],
    new_session: Callable[[], Session],
    may_go_on: Callable[[], bool],
) -> Operation[None]:
    """Read the last records before these high watermarks, again and again."""
    while may_go_on():
        yield Sleep(READ_MS)
        for number, end in sorted(ends().items()):
            cursor = FetchCursor(
                TopicPartition(topic, number), max(0, end - RECORDS), end, False, FETCH_BYTES
            )
            session = new_session()
            try:
                while not cursor.is_done:
                    yield from fetch_next(session, cursor)
            except DeadlineExceeded:
                # Faults kept the brokers away for too long. Nothing is lost: read the next range.
                continue
            except (DataLoss, UnknownTopic) as error:
                violated(75, "what is there was taken to be gone", error=str(error))
