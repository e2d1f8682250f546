"""Read ranges of partitions over sockets.

Many small ranges that are read one after another begin with a common Fetch (`FirstAnswers`): one
round trip for each would be most of their time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.fetch import (
    FetchCursor,
    FetchedBatches,
    fetch_together,
)
from txnlog_kafka.wire.topic_partition import TopicPartition

PARTITIONS_TOGETHER_MAX = 500
"""Ranges that begin with one common Fetch; the answer's bytes are limited by `max_bytes`."""


class FirstAnswers:
    """The beginnings of ranges that are read in this order, fetched many at a time.

    In memory are those of one common Fetch to each leader.
    """

    def __init__(self, client: Client, cursors: Sequence[FetchCursor]) -> None:
        self._client = client
        self._cursors = cursors
        self._found: dict[TopicPartition, FetchedBatches] = {}

    def fetch(self, index: int) -> Iterator[FetchedBatches]:
        """All batches of the range with this index, as `Client.fetch_range` gives them."""
        cursor = self._cursors[index]
        if cursor.partition not in self._found:
            window = self._cursors[index : index + PARTITIONS_TOGETHER_MAX]
            missing = [each for each in window if each.partition not in self._found]
            if len(missing) > 1:
                together = fetch_together(self._client.session, missing)
                self._found |= self._client.run(together)
        return self._client.fetch_rest(cursor, self._found.pop(cursor.partition, None))
