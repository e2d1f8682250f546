"""Produce the staged batches of a transaction: pipelined, in order, each exactly once.

Theory of operation. Every leader has a window of its own: up to five Produce requests (Kafka's
max.in.flight with idempotence), each with at most one batch per partition (the protocol's rule) and
about `produce_request_bytes`. When at most two requests are unanswered, the leader gets more,
whatever the other leaders do: several at a time cost less, and the leader always has work.
Partitions take turns (`drain_order.py`). A batch is read and stamped when there is space for it in
its request and within `in_flight_bytes_max`: memory does not grow with the number of partitions. A
leader with requests in flight waits until there is space for a whole request, since small
acknowledgements would make small requests.

A batch that was not acknowledged is sent again, the same bytes with the same sequence, so that a
leader recognises a batch that it has already appended. The leader remembers the last five, so at
most five per partition are in flight. No new batch is sent while another is sent again: the batches
behind it may have been acknowledged, and a new batch would be the sixth. A partition with such a
batch rests until all of its requests are answered, and then waits (`_Recovery`) while its leader is
looked up if it may have moved. Then these batches go first, in their order. A leader that did not
answer, or that cannot add partitions to the transaction yet (CONCURRENT_TRANSACTIONS while the last
transaction's markers are being written), rests as a whole. All other leaders go on.

A partition's first batch goes alone. A leader that does not know the producer accepts any sequence
as the start: it might accept the second batch before a first batch that is sent again. For the same
reason a partition with batches in flight sends none to another leader.

OUT_OF_ORDER_SEQUENCE_NUMBER behind a batch that was not acknowledged is a consequence, and the
batch is sent again. In front of it the error means that the leader's state and ours differ, and the
transaction is lost. A batch that is too large for its topic goes again in parts (`batches.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

from txnlog_kafka.errors import RemoteProtocolError, TxnLogError
from txnlog_kafka.operations.batches import (
    PartitionQueue,
    StampedBatch,
    divide_refused,
    queues_of,
    refused_text,
)
from txnlog_kafka.operations.calls import receive, refuse_if_final, send
from txnlog_kafka.operations.drain_order import DrainOrder, Memory
from txnlog_kafka.operations.effects import (
    Ask,
    Call,
    Failpoint,
    Operation,
    Outcome,
    ReadStaged,
    Reply,
    Unanswered,
)
from txnlog_kafka.operations.metadata import require_leaders
from txnlog_kafka.operations.operation_group import OperationGroup
from txnlog_kafka.operations.producer import ProducePlan, StagedChunk
from txnlog_kafka.operations.retry import (
    SIZE_REFUSALS,
    Action,
    Subject,
    decide,
    describe_code,
    error_of,
)
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.operations.transaction import PRODUCE_VERSION_MAX_V1, Transaction
from txnlog_kafka.operations.transaction_timeout import TimeoutForecast
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import InvariantViolation, check
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import TopicPartition

IN_FLIGHT_MAX = 5
"""Produce requests per leader, and batches per partition, without an answer (KIP-98)."""
REFILL_AT = 2
"""Requests in flight at or below which a leader gets more."""
IMPLICIT_ADD_VERSION = 12
"""Version from which on Produce adds its partitions to the transaction (KIP-890)."""
MISSES_MAX = 16
"""Partitions in a row without space, after which a leader's requests count as full."""
COORDINATOR_NOT_READY = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Error codes after which the transaction cannot accept any partition at the moment."""
TOPIC_NAME_VERSION_MAX = 12
"""Last version that names topics; later versions name topics by id (KIP-516)."""
ACKS_ALL = -1

_PRODUCE = APIS[ApiKey.PRODUCE]


@dataclass(slots=True)
class Produced:
    """Batches that were acknowledged so far: every batch once, however often it was sent.

    At the end `bytes` and `records` are the sums of the plan's `size_bytes` and `record_count`
    (`staged_totals`).
    """

    records: int = 0
    bytes: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)
    is_stopped: bool = False
    """Set by the caller when the transaction cannot be committed: nothing more is sent."""


@dataclass(slots=True, eq=False)
class _Request:
    """Produce request with at most one batch per partition."""

    node: int
    batches: list[StampedBatch] = field(default_factory=list)
    bytes: int = 0


@dataclass(slots=True, eq=False)
class _Recovery:
    """A wait before partitions send again; if `node` is set, that leader rests with them."""

    partitions: list[TopicPartition]
    node: int | None


@dataclass(slots=True)
class _Failures:
    """Reason and extent of the failure: batches of one answer that have to be sent again."""

    reason: str = ""
    moved: set[TopicPartition] = field(default_factory=set)
    """Partitions whose leader has to be looked up."""
    stops_leader: bool = False


@dataclass(slots=True)
class _Leader:
    """Requests in flight to one node, and its failures since its last acknowledgement."""

    requests: int = 0
    bytes: int = 0
    failures: int = 0
    recoveries: int = 0
    """Number of recoveries that it rests for."""


@dataclass(slots=True)
class _Flow:
    """Batches of one partition that were sent and not acknowledged, in their order."""

    node: int = -1
    batches: list[StampedBatch] = field(default_factory=list)
    unanswered: int = 0
    failures: int = 0
    """Failures since its last acknowledgement."""
    is_failed: bool = False
    """True if some of the batches have to be sent again."""
    is_resending: bool = False
    """True if some of the batches were sent before, and come first."""


def staged_totals(staged: Iterable[StagedChunk]) -> Produced:
    """Return the totals that `Produced` reaches when all of `staged` is acknowledged."""
    totals = Produced()
    for part in staged:
        totals.records += part.record_count
        totals.bytes += part.size_bytes
        totals.partitions.add(TopicPartition(part.topic, part.partition))
    return totals


def produce_staged(
    session: Session, transaction: Transaction, plan: ProducePlan, produced: Produced
) -> Operation[None]:
    """Append all of the plan's staged batches to their partitions' leaders.

    `produced` is the caller's, empty, and grows as batches are acknowledged: after an error it
    shows how far this got. Raises ProducerFenced, AbortableError, RecordRefused, FatalError,
    StagedBatchesInvalid, UnknownTopic, and DeadlineExceeded when no batch was acknowledged for the
    operation timeout.
    """
    window = _Window(session, transaction, plan, produced)
    staged_bytes = staged_totals(plan.staged).bytes
    marks = _Marks(plan.batch_id, staged_bytes)
    pace = TimeoutForecast(session, staged_bytes, plan.transaction_timeout_ms)
    try:
        yield from window.fill()
        while not window.is_over and not produced.is_stopped:
            if (yield from window.take_answer()):
                yield from marks.reached(produced)
                pace.look(transaction, produced.bytes)
            yield from window.fill()
    except TxnLogError:
        yield from window.drain()
        raise
    yield from window.drain()
    yield Failpoint("produce.last", "after", plan.batch_id)


@dataclass(slots=True)
class _Marks:
    """Failpoints inside the step produce: after the first answer, after half of the bytes."""

    batch_id: int
    staged_bytes: int
    first: bool = False
    middle: bool = False

    def reached(self, produced: Produced) -> Generator[Ask, Outcome, None]:
        if not self.first:
            self.first = True
            yield Failpoint("produce.first", "after", self.batch_id)
        if not self.middle and 2 * produced.bytes >= self.staged_bytes:
            self.middle = True
            yield Failpoint("produce.middle", "after", self.batch_id)


class _Window:
    """Requests in flight to each leader, and the handling of their outcomes."""

    def __init__(
        self, session: Session, transaction: Transaction, plan: ProducePlan, produced: Produced
    ) -> None:
        self._session = session
        self._transaction = transaction
        self._plan = plan
        self._produced = produced
        self._turns = DrainOrder(queues_of(plan.staged, transaction))
        self._memory = Memory(plan.in_flight_bytes_max)
        self._leaders: dict[int, _Leader] = defaultdict(_Leader)
        self._flows: dict[TopicPartition, _Flow] = defaultdict(_Flow)
        self._parts: OperationGroup[_Request | _Recovery, Reply | Unanswered | None] = (
            OperationGroup(session.monotonic_ms)
        )
        self._recoveries: set[_Recovery] = set()
        self._deadline = session.deadline()

    @property
    def is_over(self) -> bool:
        """True if no request is in flight and no recovery waits."""
        return self._parts.is_empty

    def fill(self) -> Operation[None]:
        """Send the batches that there is space for."""
        leaderless = self._turns.arrange(self._session.cluster)
        for partition in leaderless:
            self._turns.rest(partition)
        # What is in flight to a former leader is answered, or lost, first.
        if idle := [p for p in leaderless if not self._flows[p].unanswered]:
            yield from self._recover_partitions(idle, _Failures())
        nodes = self._turns.leaders()
        busy = {n for n, leader in self._leaders.items() if leader.requests}
        share_bytes = self._plan.in_flight_bytes_max // max(1, len(busy.union(nodes)))
        leader_bytes = max(self._plan.produce_request_bytes, share_bytes)
        for node in nodes:
            if self._leaders[node].requests > REFILL_AT:
                continue
            while (request := (yield from self._next_request(node, leader_bytes))) is not None:
                self._transaction.begun = True
                yield from self._parts.start(request, self._exchange_request(request))
        is_left = self._parts.is_empty and not self._turns.is_over
        check(not is_left, "something is sent while there is something to send")

    def _next_request(self, node: int, leader_bytes: int) -> Operation[_Request | None]:
        """Return the next request to a leader, None without batches to send or space for them."""
        leader = self._leaders[node]
        if leader.recoveries or leader.requests >= IN_FLIGHT_MAX:
            return None
        request_bytes = min(self._plan.produce_request_bytes, (leader_bytes + 1) // 2)
        free_bytes = min(leader_bytes - leader.bytes, self._memory.free_bytes)
        if leader.requests and free_bytes < request_bytes:
            return None
        request = _Request(node)
        turned: list[tuple[TopicPartition, PartitionQueue]] = []
        misses = 0
        for partition, queue in self._turns.of(node):
            if misses == MISSES_MAX or request.bytes >= request_bytes:
                break
            has_turn = self._may_send(partition, queue, node)
            if has_turn and not (yield from self._add_batch(request, queue, request_bytes)):
                misses += 1
            else:
                turned.append((partition, queue))
                misses = 0
        for partition, queue in turned:
            is_next = self._may_send(partition, queue, node)
            turn = self._turns.served if is_next else self._turns.rest
            turn(partition)
        return request if request.batches else None

    def _may_send(self, partition: TopicPartition, queue: PartitionQueue, node: int) -> bool:
        """True if the partition may send another batch, to this leader, before the next answer."""
        flow = self._flows[partition]
        if flow.is_resending and flow.batches and not queue.was_sent:
            return False
        is_known = partition in self._produced.partitions
        return not flow.unanswered or (
            flow.node == node and flow.unanswered < (IN_FLIGHT_MAX if is_known else 1)
        )

    def _add_batch(self, request: _Request, queue: PartitionQueue, limit: int) -> Operation[bool]:
        """Move the queue's next batch to the request; return False if there is no space for it."""
        size_bytes = queue.next_bytes()
        if size_bytes is None:
            return True
        if request.batches and request.bytes + size_bytes > limit:
            return False
        if not self._memory.has_space(queue, size_bytes):
            return False
        if queue.must_read:
            self._memory.give(queue, (yield ReadStaged(queue.next_piece)))
        batch = self._memory.take(queue)
        request.batches.append(batch)
        request.bytes += len(batch.data)
        flow = self._flows[batch.partition]
        flow.node = request.node
        flow.unanswered += 1
        flow.batches.append(batch)
        return True

    def _exchange_request(self, request: _Request) -> Operation[Reply | Unanswered]:
        leader = self._leaders[request.node]
        leader.requests += 1
        leader.bytes += request.bytes
        ticket = yield from send(_call_of(request, self._transaction, self._deadline))
        outcome = yield from receive(ticket)
        leader.requests -= 1
        leader.bytes -= request.bytes
        return outcome

    # ------------------------------------------------------------------ answers

    def take_answer(self) -> Operation[bool]:
        """Wait for the next answer or recovery; return True if batches were acknowledged.

        Raises a final refusal.
        """
        part, outcome = yield from self._parts.next_done()
        if isinstance(part, _Recovery):
            self._end_recovery(part)
            return False
        records_before = self._produced.records
        if isinstance(outcome, Reply):
            failures = self._sort_batches(part, outcome)
        elif isinstance(outcome, Unanswered):
            failures = self._lose_request(part, outcome)
        else:
            raise InvariantViolation("a request without an outcome is done")
        is_acknowledged = self._produced.records > records_before
        if is_acknowledged:
            self._leaders[part.node].failures = 0
            self._deadline = self._session.deadline()
        recovering = self._settle_request(part)
        for partition in failures.moved:
            self._session.cluster = self._session.cluster.forget_leader(partition)
        if recovering or failures.stops_leader:
            node = part.node if failures.stops_leader else None
            yield from self._recover_partitions(recovering, failures, node)
        return is_acknowledged

    def _lose_request(self, request: _Request, outcome: Unanswered) -> _Failures:
        """Mark a request's partitions as failed: without an answer, their leader may have moved."""
        refuse_if_final(outcome, f"producing ({self._transaction.who})")
        moved = {batch.partition for batch in request.batches}
        for partition in moved:
            self._flows[partition].is_failed = True
        return _Failures(outcome.reason, moved, stops_leader=True)

    def _sort_batches(self, request: _Request, reply: Reply) -> _Failures:
        """Sort a request's batches into acknowledged and failed; raise for a final refusal."""
        if self._transaction.version >= 2 and reply.version < IMPLICIT_ADD_VERSION:
            raise RemoteProtocolError(
                f"the cluster has finalized transaction.version 2, but a broker supports Produce "
                f"v{reply.version} at most, which does not add partitions to the transaction"
            )
        answers = {
            (topic.name, part.index): part
            for topic in reply.message.responses
            for part in topic.partition_responses
        }
        failures = _Failures()
        for batch in request.batches:
            answer = answers.get(batch.partition)
            if answer is None:
                topic, number = batch.partition
                raise RemoteProtocolError(f"a Produce answer leaves out {topic}-{number}")
            self._take_partition(batch, answer, failures)
        return failures

    def _take_partition(self, batch: StampedBatch, answer: Message, failures: _Failures) -> None:
        code, flow = answer.error_code, self._flows[batch.partition]
        action = decide(ApiKey.PRODUCE, code)
        if action is Action.DONE:
            self._produced.records += batch.record_count
            self._produced.bytes += batch.staged_bytes
            self._produced.partitions.add(batch.partition)
            self._memory.stamped_bytes -= batch.staged_bytes
            flow.batches.remove(batch)
            flow.failures = 0
            flow.is_resending = flow.is_resending and bool(flow.batches)
            return
        if code in SIZE_REFUSALS and batch.record_count > 1:
            flow.is_failed = True
            at = flow.batches.index(batch)
            flow.batches[at : at + 1] = divide_refused(batch, self._transaction)
            return
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and flow.is_failed:
            action = Action.RETRY
        if action not in (Action.RETRY, Action.REFRESH):
            who = self._transaction.transactional_id
            subject = Subject(ApiKey.PRODUCE, batch.partition[:1], "", who)
            raise error_of(action, code, refused_text(batch, answer, self._transaction), subject)
        flow.is_failed = True
        if not failures.reason:
            topic, number = batch.partition
            failures.reason = f"{topic}-{number}: {describe_code(code)}"
        if action is Action.REFRESH:
            failures.moved.add(batch.partition)
        failures.stops_leader = failures.stops_leader or code in COORDINATOR_NOT_READY

    def _settle_request(self, request: _Request) -> list[TopicPartition]:
        """Let the partitions of an answered request send on; return those in need of recovery."""
        recovering = []
        for batch in request.batches:
            flow = self._flows[batch.partition]
            flow.unanswered -= 1
            if not flow.is_failed:
                self._turns.ready(batch.partition)
                continue
            self._turns.rest(batch.partition)
            if not flow.unanswered:
                recovering.append(batch.partition)
        return recovering

    # ------------------------------------------------------------------ recoveries

    def _recover_partitions(
        self, partitions: list[TopicPartition], failures: _Failures, node: int | None = None
    ) -> Operation[None]:
        """Begin to wait, and to look leaders up; the wait grows with each failure in a row."""
        attempt = max((self._flows[p].failures for p in partitions), default=0)
        for partition in partitions:
            self._flows[partition].failures += bool(failures.reason)
        if node is not None:
            leader = self._leaders[node]
            leader.failures += not leader.recoveries
            leader.recoveries += 1
            attempt = max(0, leader.failures - 1)
        recovery = _Recovery(partitions, node)
        self._recoveries.add(recovery)
        operation = self._wait_and_look_up(partitions, failures.reason, attempt)
        yield from self._parts.start(recovery, operation)

    def _wait_and_look_up(
        self, partitions: list[TopicPartition], reason: str, attempt: int
    ) -> Operation[None]:
        deadline = self._deadline
        if reason:
            yield from deadline.wait(attempt, "producing the staged batches", reason)
        yield from require_leaders(self._session, partitions, deadline=deadline)

    def _end_recovery(self, recovery: _Recovery) -> None:
        """Put the batches that were not acknowledged first, in their order."""
        self._recoveries.remove(recovery)
        if recovery.node is not None:
            self._leaders[recovery.node].recoveries -= 1
        for partition in recovery.partitions:
            flow = self._flows[partition]
            self._turns.put_back(partition, flow.batches)
            flow.is_resending = bool(flow.batches)
            flow.batches, flow.is_failed = [], False

    def drain(self) -> Operation[None]:
        """Wait for the answers to all requests, so that the next step comes after all of them."""
        for recovery in self._recoveries:
            self._parts.cancel(recovery)
        while not self._parts.is_empty:
            yield from self._parts.next_done()


def _call_of(request: _Request, transaction: Transaction, deadline: Deadline) -> Call:
    topic_type = _PRODUCE.request.TopicProduceData
    topics: dict[str, list[Message]] = defaultdict(list)
    for batch in request.batches:
        topic, number = batch.partition
        topics[topic].append(topic_type.PartitionProduceData(index=number, records=batch.data))
    message = _PRODUCE.request(
        transactional_id=transaction.transactional_id,
        acks=ACKS_ALL,
        timeout_ms=deadline.call_ms,
        topic_data=[topic_type(name=n, partition_data=parts) for n, parts in topics.items()],
    )
    version_max = PRODUCE_VERSION_MAX_V1 if transaction.version < 2 else TOPIC_NAME_VERSION_MAX
    return Call(request.node, message, deadline.call_ms, version_max)
