"""History of Fetch answers to clients, compared with the batches that producers sent.

A topic that clients read is not compacted, so each offset from the position on is in an answer. A
reader of committed records misses only markers and aborted records (27 checks the records that are
named as aborted).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from simulation.checkers.batches import Batch, with_hidden
from simulation.checkers.producer_history import BatchKey, ProducerHistory, own_bytes
from simulation.violation import violated
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey, Message, api_of
from txnlog_kafka.wire.records import CorruptBatch

READ_COMMITTED = 1


@dataclass(slots=True)
class ReadHistory:
    """History of all readers of a run."""

    producers: ProducerHistory
    committed: dict[BatchKey, int] = field(default_factory=dict)
    """Count of the returns of each batch to readers of committed records."""
    _names: dict[str, str] = field(default_factory=dict)
    """Names of topics that were asked for by name, by topic id."""

    def on_answer(self, request: Message, answer: Message) -> None:
        """An answered call of any client. Raises Violation (2, 4, 12, 14)."""
        key = api_of(request).key
        if key == ApiKey.METADATA:
            self._names.update(
                (str(topic.topic_id), topic.name) for topic in answer.topics if topic.name
            )
        elif key == ApiKey.FETCH and answer.error_code == ErrorCode.NONE:
            is_committed = request.isolation_level == READ_COMMITTED
            for topic, position, part in self._fetched(request, answer):
                self._on_batches(topic, position, part, is_committed=is_committed)

    def _fetched(self, request: Message, answer: Message) -> Iterator[tuple[str, int, Message]]:
        """Topic, position that was asked for and answer of each partition that was read."""
        positions = {
            (name, part.partition): part.fetch_offset
            for topic in request.topics
            for name in (topic.topic, str(topic.topic_id))
            for part in topic.partitions
        }
        for topic in answer.responses:
            name = topic.topic or str(topic.topic_id)
            for part in topic.partitions:
                if part.error_code == ErrorCode.NONE and part.records:
                    yield name, positions[name, part.partition_index], part

    def _on_batches(self, topic: str, position: int, part: Message, *, is_committed: bool) -> None:
        data, at, expected = bytes(part.records), 0, position
        where = {"topic": topic, "partition": part.partition_index, "position": position}
        try:
            batches = list(with_hidden(data, part.aborted_transactions or ()))
        except CorruptBatch as error:
            violated(12, "a consumer was given a damaged batch", reason=str(error), **where)
        for batch, is_hidden in batches:
            header = batch.header
            begins = header.base_offset <= expected if at == 0 else header.base_offset == expected
            if not begins or header.next_offset <= expected:
                violated(2, "a consumer was given offsets with a gap or overlap", header=header,
                         expected=expected, **where)  # fmt: skip
            expected = header.next_offset
            if not header.is_control:
                own = own_bytes(data, at, header.size_bytes)
                key = self._check_sent(topic, part.partition_index, batch, own)
                if key is not None and is_committed and not is_hidden:
                    self.committed[key] = self.committed.get(key, 0) + 1
            at += header.size_bytes

    def _check_sent(self, topic: str, partition: int, batch: Batch, own: bytes) -> BatchKey | None:
        """A producer has sent this batch, byte for byte; None for one without a sequence."""
        header = batch.header
        if header.base_sequence < 0:
            return None
        names = topic, self._names.get(topic, topic)
        keys = [
            BatchKey(name, partition, header.producer_id, header.producer_epoch,
                     header.base_sequence)
            for name in names
        ]  # fmt: skip
        key = next((key for key in keys if key in self.producers.sent), None)
        if key is None:
            violated(
                4, "a consumer got records that no producer sent",
                topic=topic, partition=partition, header=header,
            )  # fmt: skip
        if self.producers.sent[key] != own:
            violated(12, "a consumer was given other bytes than were sent", batch=key,
                     offset=header.base_offset)  # fmt: skip
        self.producers.on_place(key, header.base_offset)
        return key
