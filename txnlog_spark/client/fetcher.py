"""Read a range of one partition over sockets, one Fetch ahead of the consumer.

The next request is on its way while the batches of the last one are decoded: its offset is known as
soon as the headers have been seen. At most two answers are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from txnlog_spark.client.driver import Client
from txnlog_spark.protocol.fetch import FetchCursor, FetchedBatches, fetch_next, settle

FETCH_BYTES = 8 * 1024 * 1024

__all__ = ["FETCH_BYTES", "FetchedBatches", "fetch_range"]


def fetch_range(
    client: Client,
    topic: str,
    partition: int,
    *,
    start_offset: int,
    end_offset: int,
    read_committed: bool = True,
    max_bytes: int = FETCH_BYTES,
) -> Iterator[FetchedBatches]:
    """All batches that hold offsets in [start_offset, end_offset), in order; none when empty.

    The client must not be used for anything else while an iteration is not exhausted or closed.
    Raises OffsetOutOfRange, CorruptData, UnknownTopic, FatalError, DeadlineExceeded.
    """
    cursor = FetchCursor((topic, partition), start_offset, end_offset, read_committed, max_bytes)
    fetched: FetchedBatches | None = None
    while cursor.next_offset < end_offset:
        if fetched is None:
            fetched = client.run(fetch_next(client.session, cursor))
            continue
        deadline = client.session.deadline()
        ahead = client.start_calls((cursor.call(client.session, deadline),))
        try:
            yield fetched
        finally:
            outcomes = client.finish_calls(ahead)
        fetched = client.run(settle(client.session, cursor, outcomes))
    if fetched is not None:
        yield fetched
