"""History of producers: their batches and their epochs, as seen at their end, and its rules.

A batch has the same identity here as at a broker. Times are compared as clients have them: a client
has an epoch when it hears the answer, so a later request leaves after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from simulation.violation import violated
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey, Message, api_of
from txnlog_kafka.wire.records import LEADER_EPOCH_AT, LENGTH_AT, MAGIC_AT, iter_batches

EPOCH_MAX = 32_766
"""The highest that is given; 32767 is kept for fencing (Kafka's TransactionMetadata)."""
NO_PRODUCER = -1
BUMPING_END_TXN_VERSION = 5
"""From this version on EndTxn gives the next epoch (KIP-890)."""

_WITH_EPOCH = (ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN)
"""Requests of a transaction that name the producer at their top."""


class BatchKey(NamedTuple):
    """Identity of a batch at a broker."""

    topic: str
    """The name, or the id as text where the request has the id."""
    partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


def own_bytes(data: bytes, at: int, size_bytes: int) -> bytes:
    """A batch without what its leader sets: base offset and leader epoch (12)."""
    return data[at + LENGTH_AT : at + LEADER_EPOCH_AT] + data[at + MAGIC_AT : at + size_bytes]


def batches_sent(request: Message) -> Iterator[tuple[BatchKey, bytes, bool]]:
    """The batches of a Produce request that have a sequence: key, own bytes, and whether it is of a
    transaction."""
    for topic in request.topic_data:
        name = topic.name or str(topic.topic_id)
        for part in topic.partition_data:
            data = bytes(part.records or b"")
            for header, at in iter_batches(data):
                if header.base_sequence >= 0:
                    key = BatchKey(name, part.index, header.producer_id, header.producer_epoch,
                                   header.base_sequence)  # fmt: skip
                    yield key, own_bytes(data, at, header.size_bytes), header.is_transactional


def batches_answered(request: Message, answer: Message) -> Iterator[tuple[BatchKey, int, int]]:
    """Yield key, error code and base offset of each batch that the answer is for.

    Of several batches in a partition, which no client of the simulation sends, only the first one
    counts.
    """
    parts = {
        (topic.name or str(topic.topic_id), part.index): part
        for topic in answer.responses
        for part in topic.partition_responses
    }
    reported = set()
    for key, _, _ in batches_sent(request):
        place = key.topic, key.partition
        part = parts.get(place)
        if part is not None and place not in reported:
            reported.add(place)
            yield key, int(part.error_code), int(part.base_offset)


def identity_of(request: Message) -> tuple[int, int] | None:
    """Producer id and epoch that a request of a transaction names; None for other requests."""
    key = api_of(request).key
    if key in _WITH_EPOCH:
        return request.producer_id, request.producer_epoch
    if key == ApiKey.ADD_PARTITIONS_TO_TXN and request.v3_and_below_transactional_id:
        return request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
    return None


@dataclass(slots=True)
class ProducerHistory:
    """History of all producers of a run."""

    losing: Collection[str] = ()
    """Topics that may lose what is acknowledged: what is sent to them again has another offset."""
    initialised: dict[int, int] = field(default_factory=dict)
    """The highest epoch by producer id that an InitProducerId was answered with."""
    sent: dict[BatchKey, bytes] = field(default_factory=dict)
    """Sent batches, without the fields that their leader sets."""
    offsets: dict[BatchKey, int] = field(default_factory=dict)
    """The base offset of each batch that was answered, or read."""
    _owners: dict[tuple[int, int], str] = field(default_factory=dict)
    """Process by the (producer id, epoch) that it was given."""
    _ids: dict[int, str] = field(default_factory=dict)
    """Transactional id by producer id; of one without, the process that it was given to."""
    _given: dict[int, int] = field(default_factory=dict)
    """The highest epoch by producer id that was given in any way."""
    _fenced: set[BatchKey] = field(default_factory=set)
    """Batches that were sent first when a newer epoch of their producer had been given."""
    _asked: dict[int, int] = field(default_factory=dict)
    """Newest epoch when a request object that names a producer last left, by the object's id."""
    _given_before: dict[int, Mapping[int, int]] = field(default_factory=dict)
    """Epochs that had been given when an InitProducerId object last left, by the object's id."""

    def on_sent(self, request: Message) -> None:
        """A request leaves a client. Raises Violation (18)."""
        if api_of(request).key == ApiKey.PRODUCE:
            for key, data, _ in batches_sent(request):
                if key not in self.sent and key.producer_epoch < self._newest(key.producer_id):
                    self._fenced.add(key)
                if self.sent.setdefault(key, data) != data:
                    violated(18, "another batch was sent with a sequence that one had before",
                             batch=key)  # fmt: skip
            return
        if api_of(request).key == ApiKey.INIT_PRODUCER_ID:
            self._given_before[id(request)] = dict(self._given)
        identity = identity_of(request)
        if identity is not None:
            self._asked[id(request)] = self._newest(identity[0])

    def _newest(self, producer_id: int) -> int:
        return self.initialised.get(producer_id, NO_PRODUCER)

    def on_answer(self, process: str, request: Message, answer: Message, version: int) -> None:
        """An answered call of any client. Raises Violation (14, 15, 16)."""
        key = api_of(request).key
        if key == ApiKey.PRODUCE:
            for batch, error, offset in batches_answered(request, answer):
                if error == ErrorCode.NONE:
                    self._on_appended(batch, offset)
            return
        self._check_not_fenced(request, answer)
        gives = key == ApiKey.INIT_PRODUCER_ID
        gives |= key == ApiKey.END_TXN and version >= BUMPING_END_TXN_VERSION
        if gives and answer.error_code == ErrorCode.NONE:
            self._on_given(process, request, answer)

    def _on_appended(self, batch: BatchKey, offset: int) -> None:
        if batch in self._fenced:
            violated(15, "a batch was taken that an older producer sent after the newer one began",
                     batch=batch, newest=self._newest(batch.producer_id))  # fmt: skip
        self.on_place(batch, offset)

    def on_place(self, batch: BatchKey, offset: int) -> None:
        """A batch is at this offset, as the answer to its producer or a reader says. Raises
        Violation (14)."""
        known = self.offsets.setdefault(batch, offset)
        if known != offset and batch.topic not in self.losing:
            violated(14, "a batch has two offsets", batch=batch, first=known, second=offset)

    def _check_not_fenced(self, request: Message, answer: Message) -> None:
        newest = self._asked.pop(id(request), NO_PRODUCER)
        identity = identity_of(request)
        if identity is not None and identity[1] < newest and set(error_codes(answer)) == {0}:
            violated(15, "what an older producer asked for after the newer one began was done",
                     api=api_of(request).name, identity=identity, newest=newest)  # fmt: skip

    def _on_given(self, process: str, request: Message, answer: Message) -> None:
        """The client that was given a (producer id, epoch)."""
        producer_id, epoch = answer.producer_id, answer.producer_epoch
        identity = producer_id, epoch
        if not 0 <= epoch <= EPOCH_MAX:
            violated(16, "the broker gave an invalid epoch", identity=identity, process=process)
        first = self._owners.setdefault(identity, process)
        if first != process:
            violated(16, "an epoch was given to two processes", identity=identity, first=first,
                     second=process)  # fmt: skip
        owner = request.transactional_id
        owner = f"process {process}" if owner is None else f"id {owner}"
        known = self._ids.setdefault(producer_id, owner)
        if known != owner:
            violated(16, "a producer id was given to two", producer_id=producer_id, first=known,
                     second=owner)  # fmt: skip
        if api_of(request).key == ApiKey.INIT_PRODUCER_ID:
            # One that names what it has may be the same request once more (KIP-360).
            before = self._given_before.pop(id(request), {}).get(producer_id, NO_PRODUCER)
            if request.producer_id == NO_PRODUCER and epoch <= before:
                violated(16, "an epoch does not rise", identity=identity, process=process,
                         given=before)  # fmt: skip
            self.initialised[producer_id] = max(self._newest(producer_id), epoch)
        self._given[producer_id] = max(self._given.get(producer_id, -1), epoch)


def check_in_transaction(process: str, request: Message) -> None:
    """Check that a driver commits offsets in transactions only. Raises Violation (36)."""
    if api_of(request).key == ApiKey.OFFSET_COMMIT:
        violated(36, "offsets were committed outside of a transaction", process=process)


def error_codes(answer: Message) -> Iterator[int]:
    """Yield all error codes of an answer to a request that changes something."""
    yield getattr(answer, "error_code", 0) or 0
    for topic in getattr(answer, "responses", ()):
        yield getattr(topic, "error_code", 0) or 0
        parts = getattr(topic, "partition_responses", None) or getattr(topic, "partitions", None)
        yield from (part.error_code for part in parts or ())
    for topic in getattr(answer, "topics", ()):
        yield getattr(topic, "error_code", 0) or 0
        yield from (part.error_code for part in getattr(topic, "partitions", ()))
    for topic in getattr(answer, "results_by_topic_v3_and_below", ()):
        yield from (part.partition_error_code for part in topic.results_by_partition)
    yield from (each.error_code for each in getattr(answer, "results", ()))
    for elected in getattr(answer, "replica_election_results", ()):
        yield from (part.error_code for part in elected.partition_result)
