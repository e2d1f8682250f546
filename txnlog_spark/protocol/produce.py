"""Produce the staged batches of a transaction: pipelined, in order, each exactly once.

Theory of operation. Work goes in rounds. A round fills up to five Produce requests for every leader
(Kafka's max.in.flight with idempotence), each with at most one batch per partition (the protocol's
rule) and about `produce_request_bytes`, and sends them all at once; a leader handles its requests
in order. Partitions take turns (`Turns`), and a batch is read and stamped when there is space for
it in its request and within `in_flight_bytes_max`, not before: memory does not grow with the number
of partitions. What was not acknowledged goes back to the front of its queue, the same bytes with
the same sequence, so that a leader recognises a batch that it has already appended: at most five
per partition are in flight, and it remembers the last five.

A partition's first batch goes alone. A leader that does not know the producer takes any sequence
for the start, so it might accept batch 2 before a retried batch 1. It also limits wasted bytes
while the leader answers CONCURRENT_TRANSACTIONS.

OUT_OF_ORDER_SEQUENCE_NUMBER behind a batch that failed in the same round is a consequence, and
retried; in front it means that the leader's state and ours differ, and the transaction is lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

from txnlog_spark.errors import RemoteProtocolError, check
from txnlog_spark.protocol.batches import PartitionQueue, StampedBatch, Turns, queues_of
from txnlog_spark.protocol.calls import call_all, refuse_if_final
from txnlog_spark.protocol.cluster import require_leaders
from txnlog_spark.protocol.effects import Ask, Call, Operation, Outcome, Reached, Reply, Unanswered
from txnlog_spark.protocol.retry import (
    RECORD_REFUSALS,
    Action,
    Subject,
    decide,
    describe_code,
    error_of,
)
from txnlog_spark.protocol.session import Deadline, Session
from txnlog_spark.protocol.transaction import PRODUCE_VERSION_MAX_V1, Transaction
from txnlog_spark.protocol.values import CommitPlan, Partition, StagedPartition
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message
from txnlog_spark.wire.records import increment_sequence

IN_FLIGHT_MAX = 5
"""Produce requests per leader, and batches per partition, without an answer (KIP-98)."""
IMPLICIT_ADD_VERSION = 12
"""Produce adds its partitions to the transaction from here on (KIP-890)."""
MISSES_MAX = 16
"""After so many partitions in a row that find no space, a leader's requests count as full."""
TOPIC_NAME_VERSION_MAX = 12
"""Later versions name topics by id (KIP-516)."""
ACKS_ALL = -1

PACE_AFTER_MS = 5_000
"""Producing for so long shows how long all will take; less when the transaction times out soon."""
PACE_SPARE = 0.1
"""Of the transaction timeout, for what comes after the last batch."""
TIMEOUT_ROUND_MS = 60_000

_PRODUCE = APIS[ApiKey.PRODUCE].request


@dataclass(slots=True)
class Produced:
    """What was acknowledged so far: every batch once, however often it was sent.

    When all is produced, `bytes` and `records` are the sums of the plan's `size_bytes` and
    `record_count` (`staged_totals`).
    """

    records: int = 0
    bytes: int = 0
    partitions: set[Partition] = field(default_factory=set)


@dataclass(slots=True)
class _Request:
    """One Produce request being filled: at most one batch per partition."""

    batches: list[StampedBatch] = field(default_factory=list)
    bytes: int = 0

    def add(self, batch: StampedBatch) -> None:
        self.batches.append(batch)
        self.bytes += len(batch.data)


@dataclass(slots=True)
class _Round:
    """What one round brought: batches to send again by partition, and why."""

    failed: dict[Partition, list[StampedBatch]] = field(default_factory=lambda: defaultdict(list))
    refresh: set[Partition] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    acknowledged: int = 0
    acknowledged_bytes: int = 0


def staged_totals(staged: Iterable[StagedPartition]) -> Produced:
    """What `Produced` has to say when all of `staged` is acknowledged."""
    totals = Produced()
    for part in staged:
        totals.records += part.record_count
        totals.bytes += part.size_bytes
        totals.partitions.add((part.topic, part.partition))
    return totals


def produce_staged(
    session: Session, transaction: Transaction, plan: CommitPlan, produced: Produced
) -> Operation[None]:
    """Append all of the plan's staged batches to their partitions' leaders.

    `produced` is the caller's, empty, and grows as batches are acknowledged: after an error it says
    how far this got. Raises ProducerFenced, AbortableError, RecordRefused, FatalError,
    StagedBatchesInvalid, UnknownTopic, and DeadlineExceeded when no batch was acknowledged for the
    operation timeout.
    """
    turns = Turns(queues_of(plan.staged, transaction))
    memory = _Memory(plan.in_flight_bytes_max)
    deadline = session.deadline()
    staged_bytes = staged_totals(plan.staged).bytes
    marks = _Marks(plan.batch_id, staged_bytes)
    pace = _Pace(session, staged_bytes, plan.transaction_timeout_ms)
    while not turns.is_over:
        while leaderless := turns.arrange(session.cluster):
            yield from require_leaders(session, leaderless, deadline=deadline)
        requests = _fill_round(turns, memory, plan, produced)
        check(bool(requests) or turns.is_over, "a round sends something while there is something")
        if not requests:
            break
        transaction.begun = True
        outcomes = yield from call_all(
            tuple(_call_of(node, r, transaction, deadline) for node, r in requests)
        )
        result = _Round()
        for (_, request), outcome in zip(requests, outcomes, strict=True):
            _take_answer(request, outcome, result, transaction, produced)
        memory.stamped_bytes -= result.acknowledged_bytes
        _put_back(session, turns, result)
        if result.acknowledged:
            deadline = session.deadline()
            yield from marks.reached(produced)
            pace.look(transaction, produced)
        if result.errors:
            yield from deadline.backoff("producing the staged batches", result.errors[0])
    yield Reached("S5.last", "after", plan.batch_id)


@dataclass(slots=True)
class _Marks:
    """The failpoints inside S5: after the first round and after half of the bytes."""

    batch_id: int
    staged_bytes: int
    first: bool = False
    middle: bool = False

    def reached(self, produced: Produced) -> Generator[Ask, Outcome, None]:
        if not self.first:
            self.first = True
            yield Reached("S5.first", "after", self.batch_id)
        if not self.middle and 2 * produced.bytes >= self.staged_bytes:
            self.middle = True
            yield Reached("S5.middle", "after", self.batch_id)


@dataclass(slots=True)
class _Memory:
    """Bytes that are held until they are acknowledged, and those that wait for their stamp."""

    bytes_max: int
    stamped_bytes: int = 0
    unstamped_bytes: int = 0

    def has_room(self, queue: PartitionQueue, size_bytes: int) -> bool:
        """Whether the queue's next batch may be taken; one alone always may."""
        if queue.is_resending:
            return True
        if queue.must_read and not _fits(self.unstamped_bytes, size_bytes, self.bytes_max):
            return False
        return _fits(self.stamped_bytes, size_bytes, self.bytes_max)

    def take(self, queue: PartitionQueue) -> StampedBatch:
        """The queue's next batch, accounted for."""
        is_resent = queue.is_resending
        batch = queue.pop()
        if not is_resent:
            self.stamped_bytes += len(batch.data)
        return batch


def _fits(held_bytes: int, size_bytes: int, bytes_max: int) -> bool:
    return not held_bytes or held_bytes + size_bytes <= bytes_max


@dataclass(frozen=True, slots=True)
class _Limits:
    """How much may go out at once: of a partition, in a request, to a leader."""

    batches: int
    request_bytes: int
    leader_bytes: int


@dataclass(slots=True)
class _Pace:
    """Says once, while there is time, that at this pace the transaction times out.

    The broker will abort it, and so it will every replay of the same batch: better to hear it from
    us, with the option to change, than from a refused request.
    """

    session: Session
    staged_bytes: int
    timeout_ms: int
    started_ms: int = -1
    is_told: bool = False

    def __post_init__(self) -> None:
        self.started_ms = self.session.monotonic_ms()

    def look(self, transaction: Transaction, produced: Produced) -> None:
        """Estimate the whole from what is done."""
        elapsed_ms = self.session.monotonic_ms() - self.started_ms
        if self.is_told or elapsed_ms < min(PACE_AFTER_MS, self.timeout_ms // 4):
            return
        done, total = produced.bytes, self.staged_bytes
        if not 0 < done < total or not elapsed_ms:
            return
        needed_ms = elapsed_ms * total // done
        if needed_ms <= self.timeout_ms * (1 - PACE_SPARE):
            return
        self.is_told = True
        rounded_ms = -(-int(needed_ms * (1 + 2 * PACE_SPARE)) // TIMEOUT_ROUND_MS)
        self.session.notice(
            f"this batch will not be done within its transaction timeout: after "
            f"{elapsed_ms / 1000:.1f} s {done / 1e6:.1f} of {total / 1e6:.1f} MB are produced "
            f"({done / 1e3 / elapsed_ms:.1f} MB/s), which makes {needed_ms / 1000:.0f} s in all, "
            f"and the broker aborts the transaction ({transaction.who}) after "
            f"{self.timeout_ms / 1000:.0f} s. Set kafka.transaction.timeout.ms to "
            f"{rounded_ms * TIMEOUT_ROUND_MS} or more (the broker's transaction.max.timeout.ms is "
            "its limit), or make batches smaller"
        )


def _fill_round(
    turns: Turns, memory: _Memory, plan: CommitPlan, produced: Produced
) -> list[tuple[int, _Request]]:
    """Up to five requests per leader."""
    leaders = turns.leaders()
    leader_bytes = max(plan.produce_request_bytes, plan.in_flight_bytes_max // len(leaders))
    first = _Limits(1, plan.produce_request_bytes, leader_bytes)
    later = _Limits(IN_FLIGHT_MAX, plan.produce_request_bytes, leader_bytes)
    requests: list[tuple[int, _Request]] = []
    for node in leaders:
        slots = [_Request() for _ in range(IN_FLIGHT_MAX)]
        served: list[Partition] = []
        misses = 0
        for partition, queue in turns.of(node):
            if misses == MISSES_MAX or _is_full(slots, later):
                break
            limits = later if partition in produced.partitions else first
            if _fill(slots, queue, memory, limits) or queue.is_drained:
                served.append(partition)
                misses = 0
            else:
                misses += 1
        for partition in served:
            turns.served(node, partition)
        requests += [(node, slot) for slot in slots if slot.batches]
    return requests


def _is_full(slots: list[_Request], limits: _Limits) -> bool:
    return sum(slot.bytes for slot in slots) >= limits.leader_bytes or all(
        slot.bytes >= limits.request_bytes for slot in slots
    )


def _fill(slots: list[_Request], queue: PartitionQueue, memory: _Memory, limits: _Limits) -> int:
    """Move batches from the queue to the leader's requests; how many.

    A partition's batches go to requests of rising index, so that they arrive in order.
    """
    filled = 0
    leader_bytes = sum(slot.bytes for slot in slots)
    unstamped_bytes = queue.unstamped_bytes
    for slot in slots:
        if filled >= limits.batches or leader_bytes >= limits.leader_bytes:
            break
        if slot.bytes >= limits.request_bytes:
            continue
        size_bytes = queue.next_bytes()
        if size_bytes is None or not memory.has_room(queue, size_bytes):
            break
        if slot.batches and slot.bytes + size_bytes > limits.request_bytes:
            continue
        batch = memory.take(queue)
        slot.add(batch)
        filled += 1
        leader_bytes += len(batch.data)
    memory.unstamped_bytes += queue.unstamped_bytes - unstamped_bytes
    return filled


def _call_of(node: int, request: _Request, transaction: Transaction, deadline: Deadline) -> Call:
    topic_type = _PRODUCE.TopicProduceData
    topics: dict[str, list[Message]] = defaultdict(list)
    for batch in request.batches:
        topic, number = batch.partition
        topics[topic].append(topic_type.PartitionProduceData(index=number, records=batch.data))
    message = _PRODUCE(
        transactional_id=transaction.transactional_id,
        acks=ACKS_ALL,
        timeout_ms=deadline.call_ms,
        topic_data=[topic_type(name=n, partition_data=parts) for n, parts in topics.items()],
    )
    version_max = PRODUCE_VERSION_MAX_V1 if transaction.version < 2 else TOPIC_NAME_VERSION_MAX
    return Call(node, message, deadline.call_ms, version_max)


def _take_answer(
    request: _Request,
    outcome: Reply | Unanswered,
    result: _Round,
    transaction: Transaction,
    produced: Produced,
) -> None:
    """Sort one request's batches into acknowledged and failed; raise for a final refusal."""
    if isinstance(outcome, Unanswered):
        refuse_if_final(outcome, f"producing ({transaction.who})")
        transaction.indefinite = transaction.indefinite or outcome.sent
        result.errors.append(outcome.reason)
        for batch in request.batches:
            result.failed[batch.partition].append(batch)
            result.refresh.add(batch.partition)
        return
    if transaction.version >= 2 and outcome.version < IMPLICIT_ADD_VERSION:
        raise RemoteProtocolError(
            f"the cluster has finalized transaction.version 2, but a broker supports Produce "
            f"v{outcome.version} at most, which does not add partitions to the transaction"
        )
    answers = {
        (topic.name, part.index): part
        for topic in outcome.message.responses
        for part in topic.partition_responses
    }
    for batch in request.batches:
        answer = answers.get(batch.partition)
        if answer is None:
            topic, number = batch.partition
            raise RemoteProtocolError(f"a Produce answer leaves out {topic}-{number}")
        _take_partition(batch, answer, result, transaction, produced)


def _take_partition(
    batch: StampedBatch,
    answer: Message,
    result: _Round,
    transaction: Transaction,
    produced: Produced,
) -> None:
    code = answer.error_code
    action = decide(ApiKey.PRODUCE, code)
    if action is Action.DONE:
        produced.records += batch.record_count
        produced.bytes += len(batch.data)
        produced.partitions.add(batch.partition)
        result.acknowledged += 1
        result.acknowledged_bytes += len(batch.data)
        return
    follows_failure = batch.partition in result.failed
    if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and follows_failure:
        action = Action.RETRY
    if action not in (Action.RETRY, Action.REFRESH):
        subject = Subject(ApiKey.PRODUCE, batch.partition[:1], "", transaction.transactional_id)
        raise error_of(action, code, _refused_text(batch, answer, transaction), subject)
    result.failed[batch.partition].append(batch)
    result.errors.append(f"{batch.partition[0]}-{batch.partition[1]}: {describe_code(code)}")
    if action is Action.REFRESH:
        result.refresh.add(batch.partition)


def _refused_text(batch: StampedBatch, answer: Message, transaction: Transaction) -> str:
    topic, number = batch.partition
    last = increment_sequence(batch.base_sequence, batch.record_count - 1)
    text = (
        f"producing {batch.record_count} records ({len(batch.data)} bytes, sequences "
        f"{batch.base_sequence} to {last}) to {topic}-{number} ({transaction.who})"
    )
    if answer.error_code in RECORD_REFUSALS and answer.error_message:
        text += f" [{answer.error_message}]"
    return text


def _put_back(session: Session, turns: Turns, result: _Round) -> None:
    for partition, batches in result.failed.items():
        turns.put_back(partition, batches)
    for partition in result.refresh:
        session.cluster = session.cluster.forget_leader(partition)
