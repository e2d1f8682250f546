"""A topic that comes and goes: deleted and created again with its name, while it is written to.

Each of its lives has another topic id. Its writer, one producer id for all of them, begins each
with sequence 0: what is known of a producer must not outlive the topic. All is asked by topic id,
so that nothing of one life has to do with another. A transaction over this topic and one that stays
may find that it has gone: it ends all the same, and what it wrote to the other counts.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from simulation.checkers.batches import decode_batches
from simulation.load.reader import fetch_request
from simulation.load.routing import READ_TIMEOUT_MS, RETRY_MS, TRANSACTION, Routing, ask_once
from simulation.load.transactions import (
    ADD_PARTITIONS_VERSION_MAX,
    END_TXN_VERSION_MAX,
    PRODUCE_VERSION_MAX,
    Owner,
    add_request,
    end_request,
    errors_of,
    idempotent_batch,
    init_request,
    owned_batch,
    produce_request,
    produce_request_to,
)
from simulation.trace import Trace
from simulation.violation import ABORTED_READ, violated
from txnlog_kafka.operations.effects import ANY_NODE, Operation, Sleep
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.records import Record

TOPIC, KEPT_TOPIC = "passing", "kept"
TRIMMED = f"{TOPIC}-0"
"""The folder of the partition whose records may be deleted."""
TRANSACTIONAL_ID = "passing-writer"
WRITES_MAX = 5
PAUSE_MS = (50, 500)
TRANSACTION_TIMEOUT_MS = 10_000
SHARE = 0.5
"""Share of the lives in which a transaction is begun, and in which records are deleted."""
READ_BYTES = 1 << 20
"""Bytes that hold all records of a life."""

_CREATE = APIS[ApiKey.CREATE_TOPICS].request
_DELETE = APIS[ApiKey.DELETE_TOPICS].request
_METADATA = APIS[ApiKey.METADATA].request
_TRIM = APIS[ApiKey.DELETE_RECORDS].request


@dataclass(slots=True)
class _Life:
    """A life of the topic, with the records written to it."""

    topic_id: uuid.UUID
    sent: set[bytes] = field(default_factory=set)
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    """Offset by value."""
    start_offset: int = 0
    """Records below may be gone."""


class RecreatedTopic:
    """See the module."""

    def __init__(
        self,
        rng: Random,
        new_places: Callable[[], Routing],
        trace: Trace,
        faults_are_on: Callable[[], bool],
    ) -> None:
        self.committed: set[bytes] = set()
        self.aborted: set[bytes] = set()
        """Values of transactions that nobody asked to commit."""
        self._rng = rng
        self._places = new_places()
        self._trace = trace
        self._faults_are_on = faults_are_on
        self._number = 0
        self._producer_id = -1
        self._owner: Owner | None = None
        self._kept_sequence = 0

    def live(self) -> Operation[None]:
        """Go through life after life, while faults are on."""
        while self._faults_are_on():
            topic_id = yield from self._create()
            if topic_id is None:
                yield Sleep(RETRY_MS)
                continue
            yield from self._one_life(_Life(topic_id))
            yield Sleep(self._rng.randint(*PAUSE_MS))

    def check(self, kept: Sequence[Record]) -> None:
        """Transactions over both topics end as they were answered (20, 22)."""
        found = Counter(record.value or b"" for record in kept)
        if not self.committed <= set(found) or max(found.values(), default=1) > 1:
            violated(22, "a transaction answered as committed is not there once", found=found)
        if self.aborted & set(found):
            violated(22, "a transaction is committed that no producer committed", ABORTED_READ,
                     found=found)  # fmt: skip

    # ------------------------------------------------------------------ one life

    def _one_life(self, life: _Life) -> Operation[None]:
        if self._producer_id < 0:
            yield from self._init_producer()
        for sequence in range(self._rng.randint(1, WRITES_MAX)):
            if not self._faults_are_on() or not (yield from self._write(life, sequence)):
                break
            yield Sleep(self._rng.randint(*PAUSE_MS))
        if life.acknowledged and self._rng.random() < SHARE:
            yield from self._trim(life)
        yield from self._verify(life)
        number = None
        if self._rng.random() < SHARE:
            number = yield from self._begin_transaction()
        yield from self._delete(life)
        if number is not None:
            yield from self._end_transaction(number)

    def _create(self) -> Operation[uuid.UUID | None]:
        """The id of a new topic; None when the answer was not heard: it is deleted then."""
        topics = [
            _CREATE.CreatableTopic(
                name=TOPIC, num_partitions=1, assignments=[], configs=[],
                replication_factor=self._rng.randint(2, self._places.brokers),
            )
        ]  # fmt: skip
        request = _CREATE(topics=topics, timeout_ms=READ_TIMEOUT_MS, validate_only=False)
        answer = yield from ask_once(ANY_NODE, request)
        found = None if answer is None else answer.topics[0]
        if found is not None and found.error_code == ErrorCode.NONE:
            self._trace.count("topic created")
            return uuid.UUID(str(found.topic_id))
        deleted = _DELETE.DeleteTopicState(name=TOPIC, topic_id=None)
        yield from ask_once(ANY_NODE, _DELETE(topics=[deleted], timeout_ms=READ_TIMEOUT_MS))
        return None

    def _delete(self, life: _Life) -> Operation[None]:
        deleted = _DELETE.DeleteTopicState(name=None, topic_id=life.topic_id)
        request = _DELETE(topics=[deleted], timeout_ms=READ_TIMEOUT_MS)
        while self._faults_are_on():
            answer = yield from ask_once(ANY_NODE, request)
            error = None if answer is None else answer.responses[0].error_code
            if error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID):
                self._trace.count("topic deleted")
                return
            yield Sleep(RETRY_MS)

    def _init_producer(self) -> Operation[None]:
        answer = yield from self._places.ask(init_request())
        if answer.error_code == ErrorCode.NONE:
            self._producer_id = int(answer.producer_id)

    def _write(self, life: _Life, sequence: int) -> Operation[bool]:
        """Send one record until it is answered for good; whether the writer may go on."""
        self._number += 1
        value = b"%s:%d" % (str(life.topic_id).encode(), self._number)
        batch = idempotent_batch(self._producer_id, sequence, b"p", value)
        request = produce_request_to({"topic_id": life.topic_id}, [0], batch)
        life.sent.add(value)
        while self._faults_are_on() and self._producer_id >= 0:
            node = yield from self._leader(life)
            if node is None:
                return False
            answer = yield from ask_once(node, request)
            if answer is not None:
                part = answer.responses[0].partition_responses[0]
                if part.error_code == ErrorCode.NONE:
                    self.on_written(life, value, int(part.base_offset))
                    return True
                self.check_refusal(life, part.error_code)
            yield Sleep(RETRY_MS)
        return False

    @staticmethod
    def check_refusal(life: _Life, error: int) -> None:
        """A batch was not taken (13): nothing is known of a producer in a topic's new life."""
        if error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            violated(13, "what a producer wrote to a deleted topic is still known",
                     topic_id=life.topic_id)  # fmt: skip

    @staticmethod
    def on_written(life: _Life, value: bytes, offset: int) -> None:
        """A record was answered with its offset (14)."""
        if offset in life.acknowledged.values():
            violated(14, "two records of a topic were answered with one offset",
                     topic_id=life.topic_id, value=value, offset=offset)  # fmt: skip
        life.acknowledged[value] = offset

    def _trim(self, life: _Life) -> Operation[None]:
        """DeleteRecords below one of the records that are there."""
        node = yield from self._leader(life)
        if node is None:
            return
        offset = self._rng.choice(sorted(life.acknowledged.values()))
        life.start_offset = offset
        topic_type = _TRIM.DeleteRecordsTopic
        part = topic_type.DeleteRecordsPartition(partition_index=0, offset=offset)
        topics = [topic_type(name=TOPIC, partitions=[part])]
        answer = yield from ask_once(node, _TRIM(topics=topics, timeout_ms=READ_TIMEOUT_MS))
        if answer is not None and not answer.topics[0].partitions[0].error_code:
            self._trace.count("records deleted")

    def _verify(self, life: _Life) -> Operation[None]:
        node = yield from self._leader(life)
        request = fetch_request(
            {"topic_id": life.topic_id}, {0: life.start_offset}, READ_BYTES, READ_BYTES
        )
        answer = None if node is None else (yield from ask_once(node, request))
        parts = [] if answer is None else [p for t in answer.responses for p in t.partitions]
        if parts and not parts[0].error_code:
            found = {
                record.record_offset: record.value or b""
                for batch in decode_batches(bytes(parts[0].records or b""))
                for record in batch.records
            }
            self.check_read(life, found, int(parts[0].high_watermark))

    def check_read(self, life: _Life, found: Mapping[int, bytes], high_watermark: int) -> None:
        """Check that records were written in this life, and acknowledged ones exist (3, 4)."""
        foreign = sorted(set(found.values()) - life.sent)
        if foreign:
            violated(4, "a topic has what was not written to it", topic_id=life.topic_id,
                     foreign=foreign)  # fmt: skip
        for value, offset in life.acknowledged.items():
            is_there = life.start_offset <= offset < high_watermark
            if is_there and found.get(offset) != value:
                violated(3, "an acknowledged record is not there", topic_id=life.topic_id,
                         value=value, offset=offset, found=found)  # fmt: skip
        self._trace.count("topic read in its life")

    def _leader(self, life: _Life) -> Operation[int | None]:
        """The leader of the topic of this id; None when it is gone, or faults have ended."""
        wanted = _METADATA.MetadataRequestTopic(topic_id=life.topic_id, name=None)
        request = _METADATA(topics=[wanted], allow_auto_topic_creation=False)
        while self._faults_are_on():
            answer = yield from ask_once(ANY_NODE, request)
            for found in answer.topics if answer is not None else ():
                for part in found.partitions:
                    if part.error_code == ErrorCode.NONE and part.leader_id >= 0:
                        return int(part.leader_id)
            yield Sleep(RETRY_MS)
        return None

    # ------------------------------------------------------------------ transactions

    def _begin_transaction(self) -> Operation[int | None]:
        """Write to both topics; the number of the transaction, None when it has failed."""
        if self._owner is None:
            yield from self._init_transactions()
        owner = self._owner
        if owner is None:
            return None
        self._number += 1
        self.aborted.add(b"%d" % self._number)
        add = add_request(owner, {TOPIC: [0], KEPT_TOPIC: [0]})
        node = yield from self._places.coordinator(TRANSACTION, TRANSACTIONAL_ID)
        added = yield from ask_once(node, add, ADD_PARTITIONS_VERSION_MAX)
        if added is None or errors_of(added) != {ErrorCode.NONE}:
            self._abandon()
            return None
        batch = owned_batch(owner, self._kept_sequence, b"t", [b"%d" % self._number])
        request = produce_request(KEPT_TOPIC, 0, batch, TRANSACTIONAL_ID)
        node = yield from self._places.leader(KEPT_TOPIC, 0)
        answer = yield from ask_once(node, request, PRODUCE_VERSION_MAX)
        if answer is None or errors_of(answer) != {ErrorCode.NONE}:
            self._abandon()
            return None
        self._kept_sequence += 1
        return self._number

    def _init_transactions(self) -> Operation[None]:
        request = init_request(TRANSACTIONAL_ID, TRANSACTION_TIMEOUT_MS)
        node = yield from self._places.coordinator(TRANSACTION, TRANSACTIONAL_ID)
        answer = yield from ask_once(node, request)
        self._kept_sequence = 0
        if answer is not None and answer.error_code == ErrorCode.NONE:
            self._owner = Owner.of_answer(TRANSACTIONAL_ID, answer)
        else:
            self._places.forget()

    def _end_transaction(self, number: int) -> Operation[None]:
        owner = self._owner
        if owner is None:
            return
        value = b"%d" % number
        request = end_request(owner, committed=True)
        self.aborted.discard(value)
        node = yield from self._places.coordinator(TRANSACTION, TRANSACTIONAL_ID)
        answer = yield from ask_once(node, request, END_TXN_VERSION_MAX)
        if answer is None or answer.error_code:
            self._abandon()
        else:
            self._trace.count("transaction with a topic that has gone")
            self.committed.add(value)

    def _abandon(self) -> None:
        """The next InitProducerId ends it."""
        self._owner = None
        self._places.forget()
