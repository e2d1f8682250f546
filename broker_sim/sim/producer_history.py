"""What producers sent and were given, as seen at their end, and what must hold of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from broker_sim.sim.violation import violated
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import ApiKey, Message, api_of
from txnlog_spark.wire.records import iter_batches


class _Sent(NamedTuple):
    """What a broker knows a batch by."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


@dataclass(slots=True)
class ProducerHistory:
    """All producers of a run."""

    initialised: dict[int, int] = field(default_factory=dict)
    """The highest epoch by producer id that an InitProducerId was answered with."""
    _owners: dict[tuple[int, int], str] = field(default_factory=dict)
    """Process by the (producer id, epoch) that it was given."""
    _sent: dict[_Sent, int] = field(default_factory=dict)
    """CRC of each batch, which covers all but the offset and the leader epoch."""

    def on_sent(self, request: Message) -> None:
        """A request leaves a client. Raises Violation (18)."""
        if api_of(request).key != ApiKey.PRODUCE:
            return
        for topic in request.topic_data:
            for part in topic.partition_data:
                for header, _ in iter_batches(part.records or b""):
                    if header.base_sequence < 0:
                        continue
                    name = topic.name or str(topic.topic_id)
                    key = _Sent(name, part.index, header.producer_id, header.producer_epoch,
                                header.base_sequence)  # fmt: skip
                    known = self._sent.setdefault(key, header.crc)
                    if known != header.crc:
                        violated(18, "another batch was sent with a sequence that one had before",
                                 batch=key)  # fmt: skip

    def on_answer(self, process: str, request: Message, answer: Message, version: int) -> None:
        """An answered call of a driver: who was given which (producer id, epoch). Raises
        Violation (16).

        All offsets that a driver commits are committed in a transaction (36).
        """
        key = api_of(request).key
        if key == ApiKey.OFFSET_COMMIT:
            violated(36, "offsets were committed outside of a transaction", process=process)
        given = key == ApiKey.INIT_PRODUCER_ID or (key == ApiKey.END_TXN and version >= 5)
        if not given or answer.error_code != ErrorCode.NONE:
            return
        identity = (answer.producer_id, answer.producer_epoch)
        first = self._owners.setdefault(identity, process)
        if first != process:
            violated(16, "an epoch was given to two processes", identity=identity, first=first,
                     second=process)  # fmt: skip
        if key == ApiKey.INIT_PRODUCER_ID:
            known = self.initialised.get(answer.producer_id, -1)
            self.initialised[answer.producer_id] = max(known, answer.producer_epoch)
