"""One replica of a partition: its log, and who waits until what it appended is committed."""

from __future__ import annotations

from collections import deque

from broker_sim.core.effects import Effects
from broker_sim.core.log import PartitionLog
from broker_sim.core.replies import Reply
from txnlog_spark.wire.errors import ErrorCode


class Partition:
    """An append is committed when the high watermark has passed it."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self._waiting: deque[tuple[int, Reply[ErrorCode]]] = deque()

    def when_committed(self, last_offset: int, reply: Reply[ErrorCode], effects: Effects) -> None:
        """Call `reply` once the append that ends with `last_offset` is committed, after all
        that were appended before; in this step when it is already."""
        self._waiting.append((last_offset, reply))
        self.release(effects)

    def release(self, effects: Effects) -> None:
        """The high watermark may have moved. A reply may append, and so come here again."""
        while self._waiting and self._waiting[0][0] < self.log.high_watermark:
            _, reply = self._waiting.popleft()
            reply(ErrorCode.NONE, effects)

    def delete(self, effects: Effects) -> None:
        """The topic is gone: nothing that waits will be committed."""
        while self._waiting:
            _, reply = self._waiting.popleft()
            reply(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, effects)
