"""A topic that may lose what is acknowledged, and transactions that write to it and to a safe one.

Its replicas are not flushed, and an unclean election may take place: `losses` says what was lost,
and all else must be there. Each transaction has a transactional id of its own, as the next one of a
producer whose marker was lost would take what hangs for its own, in Kafka too. What hangs when all
is over an operator aborts, as by `kafka-transactions abort`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from simulation.checkers.losses import Losses
from simulation.load.reader import FETCH_VERSION_MAX, fetch_request
from simulation.load.routing import RETRY_MS, TRANSACTION, Routing, ask_once
from simulation.load.transactions import (
    ADD_PARTITIONS_VERSION_MAX,
    END_TXN_VERSION_MAX,
    PRODUCE_VERSION_MAX,
    Owner,
    add_request,
    end_request,
    errors_of,
    init_request,
    owned_batch,
    produce_request,
)
from simulation.trace import Trace
from simulation.violation import violated
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.wire.error_codes import RETRIABLE, ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import Record, parse_header

TOPIC, SAFE_TOPIC = "unsafe", "safe"
DIRECTORY = f"{TOPIC}-0"
UNSAFE_CONFIGS = {
    "unclean.leader.election.enable": "true",
    "min.insync.replicas": "1",
    "flush.messages": str((1 << 63) - 1),
}
WRITES_MAX = 8
TRIES = 12
COMMIT_SHARE = 0.8
PAUSE_MS = (20, 700)
TRANSACTION_TIMEOUT_MS = 8_000
WATCH_MS = 300
IS_OVER = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")

_PRODUCERS = APIS[ApiKey.DESCRIBE_PRODUCERS].request
_TRANSACTIONS = APIS[ApiKey.DESCRIBE_TRANSACTIONS].request
_MARKERS = APIS[ApiKey.WRITE_TXN_MARKERS].request


@dataclass(slots=True)
class Transaction:
    """A transaction, and the answers to its requests."""

    number: int
    producer_id: int = -1
    epoch: int = -1
    begun_us: int | None = None
    """When its partitions were added."""
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    """CRC of the batch by the value in the unsafe topic."""
    commit_asked_us: int | None = None
    """Microseconds when a commit was asked for; None: no client asked to commit it."""
    is_committed: bool = False
    """True if the answer said that it was committed."""

    @property
    def name(self) -> str:
        """Its transactional id."""
        return f"unsafe-writer-{self.number}"

    @property
    def owner(self) -> Owner:
        """Its producer."""
        return Owner(self.name, self.producer_id, self.epoch)


class UnflushedTopic:
    """See the module."""

    def __init__(
        self,
        rng: Random,
        new_places: Callable[[], Routing],
        trace: Trace,
        faults_are_on: Callable[[], bool],
        now_us: Callable[[], int],
    ) -> None:
        self.is_over = False
        """True if no transaction hangs any more."""
        self.transactions: list[Transaction] = []
        self._rng = rng
        self._new_places = new_places
        self._places = new_places()
        self._trace = trace
        self._faults_are_on = faults_are_on
        self._now_us = now_us

    def live(self) -> Operation[None]:
        """Run transaction after transaction while faults are on; then abort those that hang."""
        while self._faults_are_on():
            transaction = Transaction(len(self.transactions) + 1)
            self.transactions.append(transaction)
            if (yield from self._begin(transaction)) and (yield from self._write(transaction)):
                yield from self._end(transaction)
            self._places.forget()
            yield Sleep(self._rng.randint(*PAUSE_MS))
        while not (yield from self._abort_hanging()):
            self._places.forget()
            yield Sleep(RETRY_MS)
        self.is_over = True

    def watch(self) -> Operation[None]:
        """A consumer: what it hears of the high watermark is committed, until that is lost."""
        places = self._new_places()
        request = fetch_request({"topic": TOPIC}, {0: 0}, 1, 1)
        while self._faults_are_on():
            node = yield from places.leader(TOPIC, 0)
            answer = yield from ask_once(node, request, FETCH_VERSION_MAX)
            if answer is None or answer.responses[0].partitions[0].error_code:
                places.forget()
            yield Sleep(WATCH_MS)

    # ------------------------------------------------------------------ a transaction

    def _begin(self, made: Transaction) -> Operation[bool]:
        init = init_request(made.name, TRANSACTION_TIMEOUT_MS)
        answer = yield from self._ask_coordinator(made, init)
        if answer is None or answer.error_code:
            return False
        made.producer_id, made.epoch = int(answer.producer_id), int(answer.producer_epoch)
        add = add_request(made.owner, {TOPIC: [0], SAFE_TOPIC: [0]})
        added = yield from self._ask_coordinator(made, add, ADD_PARTITIONS_VERSION_MAX)
        made.begun_us = self._now_us()
        return added is not None and errors_of(added) == {ErrorCode.NONE}

    def _write(self, made: Transaction) -> Operation[bool]:
        """Some records to the unsafe topic, one to the safe one; whether all were taken."""
        for sequence in range(self._rng.randint(1, WRITES_MAX)):
            value = b"%d:%d" % (made.number, sequence)
            if not (yield from self._write_one(made, TOPIC, value, sequence)):
                return False
            yield Sleep(self._rng.randint(*PAUSE_MS))
        return (yield from self._write_one(made, SAFE_TOPIC, b"%d" % made.number, 0))

    def _write_one(
        self, made: Transaction, topic: str, value: bytes, sequence: int
    ) -> Operation[bool]:
        batch = owned_batch(made.owner, sequence, b"u", [value])
        request = produce_request(topic, 0, batch, made.name)
        for _ in range(TRIES):
            node = yield from self._places.leader(topic, 0)
            answer = yield from ask_once(node, request, PRODUCE_VERSION_MAX)
            if answer is not None:
                (error,) = errors_of(answer)
                if error == ErrorCode.NONE:
                    if topic == TOPIC:
                        made.acknowledged[value] = parse_header(batch).crc
                    return True
                if error not in RETRIABLE:
                    return False
            self._places.forget()
            yield Sleep(RETRY_MS)
        return False

    def _end(self, made: Transaction) -> Operation[None]:
        commits = self._rng.random() < COMMIT_SHARE
        if commits:
            made.commit_asked_us = self._now_us()
        request = end_request(made.owner, committed=commits)
        for _ in range(TRIES):
            answer = yield from self._ask_coordinator(made, request, END_TXN_VERSION_MAX)
            if answer is not None and answer.error_code == ErrorCode.NONE:
                made.is_committed = commits
                return
            if answer is not None and answer.error_code not in RETRIABLE:
                return
            self._places.forget()
            yield Sleep(RETRY_MS)

    # ------------------------------------------------------------------ what hangs

    def _abort_hanging(self) -> Operation[bool]:
        """Abort hanging transactions; True if the unsafe topic's leader reports no open one."""
        node = yield from self._places.leader(TOPIC, 0)
        request = _PRODUCERS(topics=[_PRODUCERS.TopicRequest(name=TOPIC, partition_indexes=[0])])
        answer = yield from ask_once(node, request)
        part = None if answer is None else answer.topics[0].partitions[0]
        if part is None or part.error_code:
            return False
        held_up = [each for each in part.active_producers if each.current_txn_start_offset >= 0]
        for producer in held_up:
            if (yield from self._is_decided(producer.producer_id)):
                self._trace.count("hanging transaction aborted")
                yield from ask_once(node, _abort(producer))
        return not held_up

    def _is_decided(self, producer_id: int) -> Operation[bool]:
        """True if its coordinator has no more to do for the transaction."""
        (made,) = [each for each in self.transactions if each.producer_id == producer_id]
        answer = yield from self._ask_coordinator(
            made, _TRANSACTIONS(transactional_ids=[made.name])
        )
        if answer is None:
            return False
        found = answer.transaction_states[0]
        if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return True
        return found.error_code == ErrorCode.NONE and found.transaction_state in IS_OVER

    def _ask_coordinator(
        self, made: Transaction, request: Message, version_max: int | None = None
    ) -> Operation[Message | None]:
        node = yield from self._places.coordinator(TRANSACTION, made.name)
        return (yield from ask_once(node, request, version_max))

    # ------------------------------------------------------------------ the end

    def check(self, unsafe: Sequence[Record], safe: Sequence[Record], losses: Losses) -> None:
        """Check that committed records of both topics match the answers, except for `losses`."""
        in_unsafe = Counter(record.value or b"" for record in unsafe)
        in_safe = Counter(int(record.value or b"-1") for record in safe)
        twice: list[object] = [each for each, count in in_unsafe.items() if count > 1]
        twice += [each for each, count in in_safe.items() if count > 1]
        if twice:
            violated(14, "a record that was sent again is there twice", twice=twice)
        for made in self.transactions:
            seen = {each for each in in_unsafe if int(each.partition(b":")[0]) == made.number}
            check_transaction(made, seen, made.number in in_safe, losses)
            if made.number in in_safe and set(made.acknowledged) - seen:
                self._trace.count("acknowledged record lost and reported")
            if losses.lost_power_within(made.begun_us, made.commit_asked_us):
                self._trace.count("transaction open when all machines lost power")


def check_transaction(made: Transaction, seen: set[bytes], in_safe: bool, losses: Losses) -> None:
    """Check a transaction by its visible records in the end. Raises Violation (20, 22)."""
    where = {"transaction": made, "seen": sorted(seen), "in_safe": in_safe}
    if (seen or in_safe) and made.commit_asked_us is None:
        violated(22, "a transaction is committed that no producer committed", **where)
    if made.is_committed and not in_safe:
        violated(22, "a transaction answered as committed is not there", **where)
    if seen and not in_safe:
        violated(20, "a transaction is half there", **where)
    if in_safe and losses.lost_power_within(made.begun_us, made.commit_asked_us):
        violated(20, "a transaction is committed that was open when all machines lost power",
                 **where)  # fmt: skip
    missing = {value: crc for value, crc in made.acknowledged.items() if value not in seen}
    unexplained = [value for value, crc in missing.items() if not losses.explain(DIRECTORY, crc)]
    if in_safe and unexplained:
        violated(20, "a transaction lacks records, and no loss is reported", **where,
                 missing=unexplained)  # fmt: skip


def _abort(producer: Message) -> Message:
    """Build an abort as Kafka's admin client does: by the leader's state of the producer."""
    marker_type = _MARKERS.WritableTxnMarker
    topic = marker_type.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])
    marker = marker_type(
        producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
        transaction_result=False, topics=[topic], coordinator_epoch=producer.coordinator_epoch,
    )  # fmt: skip
    return _MARKERS(markers=[marker])
