"""Other applications on the same broker: small transactions, many of them at the same instant.

They are plain clients without retries of their own making: what was not acknowledged is aborted by
the next InitProducerId. All begin on the same tick of the clock, so that the broker decides several
transactions in one round. Each writes one record of a transaction to each partition of a topic.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from simulation.hosts.client import ClientProcess
from simulation.hosts.network import LATE_US_MAX
from simulation.load.reader import read_partition
from simulation.load.routing import READ_TIMEOUT_MS, RETRY_MS, TRANSACTION, Routing, Where
from simulation.violation import ABORTED_READ, violated
from txnlog_kafka.operations.effects import Call, Calls, Operation, Reply, Sleep
from txnlog_kafka.wire.error_codes import RETRIABLE, ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_spark.errors import TxnLogError

NEIGHBOURS_TOPIC = "neighbours"
NEIGHBOURS_PARTITIONS = 2
TRANSACTIONS_MAX = 6
TICK_MS = 1_000
REST_MS = LATE_US_MAX // 1000 + TICK_MS
"""Until nothing that was sent is on its way."""
ABORTED_SHARE = 0.2
TRANSACTION_TIMEOUT_MS = 10_000
ADD_PARTITIONS_VERSION_MAX = 3
"""The last version of one transaction a request."""
PRODUCE_VERSION_MAX = 11
END_TXN_VERSION_MAX = 4
"""Clients from before epochs rose with every transaction."""

_AGAIN = {ErrorCode.CONCURRENT_TRANSACTIONS, *RETRIABLE}
_INIT = APIS[ApiKey.INIT_PRODUCER_ID].request
_ADD = APIS[ApiKey.ADD_PARTITIONS_TO_TXN].request
_PRODUCE = APIS[ApiKey.PRODUCE].request
_END = APIS[ApiKey.END_TXN].request


class _Abandoned(Exception):
    """The transaction cannot go on: the next InitProducerId ends it."""


@dataclass(slots=True)
class BackgroundProducer:
    """An application, with the outcomes of its transactions, by their numbers."""

    name: str
    rng: Random
    places: Routing
    stamp_ms: int
    now_ms: Callable[[], int]
    may_go_on: Callable[[], bool]
    aborts: bool = False
    """True if EndTxn aborts what cannot go on, which fences no one; then the producer rests."""
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    """Also those that were never asked to be committed."""
    sequence: int = 0

    def transactions(self, count: int) -> Operation[None]:
        """Write `count` transactions, fewer when it may not go on."""
        owner = None
        for number in range(count):
            yield Sleep(TICK_MS - self.now_ms() % TICK_MS)
            if not self.may_go_on():
                return
            if owner is None:
                owner = yield from self._init()
            try:
                yield from self._transaction(owner, number)
            except _Abandoned:
                if self.aborts:
                    yield from self._abort(owner)
                owner = None

    def _abort(self, owner: Message) -> Operation[None]:
        with contextlib.suppress(_Abandoned):
            yield from self._end(owner, committed=False)
        yield Sleep(REST_MS)

    def _init(self) -> Operation[Message]:
        request = _INIT(
            transactional_id=self.name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        self.sequence = 0
        while True:
            answer = yield from self.places.ask(request, where=self._coordinator)
            if answer.error_code == ErrorCode.NONE:
                return answer
            self.places.forget()
            yield Sleep(RETRY_MS)

    def _coordinator(self) -> Operation[int]:
        return self.places.coordinator(TRANSACTION, self.name)

    def _transaction(self, owner: Message, number: int) -> Operation[None]:
        self.aborted.add(number)
        topic_type = _ADD.AddPartitionsToTxnTopic
        yield from self._once(
            _ADD(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=owner.producer_id,
                v3_and_below_producer_epoch=owner.producer_epoch,
                v3_and_below_topics=[
                    topic_type(name=NEIGHBOURS_TOPIC, partitions=[*range(NEIGHBOURS_PARTITIONS)])
                ],
            ),
            ADD_PARTITIONS_VERSION_MAX,
            lambda answer: [
                part.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            ],
            self._coordinator,
        )
        yield from self._produce_all(owner, number)
        commits = self.rng.random() >= ABORTED_SHARE
        if commits:
            self.aborted.discard(number)
        yield from self._end(owner, committed=commits)
        if commits:
            self.committed.add(number)

    def _end(self, owner: Message, *, committed: bool) -> Operation[None]:
        request = _END(
            transactional_id=self.name, producer_id=owner.producer_id,
            producer_epoch=owner.producer_epoch, committed=committed,
        )  # fmt: skip
        yield from self._once(
            request, END_TXN_VERSION_MAX, lambda answer: [answer.error_code], self._coordinator
        )

    def _once(
        self,
        request: Message,
        version_max: int,
        codes: Callable[[Message], Sequence[int]],
        where: Where,
    ) -> Operation[None]:
        """Send until it is carried out. Raises _Abandoned when that is not known, or refused."""
        while True:
            node = yield from where()
            outcome = yield Calls((Call(node, request, READ_TIMEOUT_MS, version_max),))
            if outcome is None or not isinstance(outcome[0], Reply):
                raise _Abandoned
            found = set(codes(outcome[0].message))
            if found == {ErrorCode.NONE}:
                return
            if not found <= _AGAIN:
                raise _Abandoned
            self.places.forget()
            yield Sleep(RETRY_MS)

    def _produce_all(self, owner: Message, number: int) -> Operation[None]:
        """Send a single request to a lone broker, else a request to each partition's leader."""
        everything = range(NEIGHBOURS_PARTITIONS)
        alone = self.places.brokers == 1
        for partitions in [everything] if alone else [[number] for number in everything]:
            yield from self._once(
                self._produce(owner, number, partitions),
                PRODUCE_VERSION_MAX,
                lambda answer: [
                    part.error_code
                    for topic in answer.responses
                    for part in topic.partition_responses
                ],
                partial(self.places.leader, NEIGHBOURS_TOPIC, partitions[0]),
            )
        self.sequence += 1

    def _produce(self, owner: Message, number: int, partitions: Sequence[int]) -> Message:
        batch = encode_batch(
            [Record(self.name.encode(), b"%d" % number, self.stamp_ms)],
            producer_id=owner.producer_id,
            producer_epoch=owner.producer_epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        topic_type = _PRODUCE.TopicProduceData
        parts = [
            topic_type.PartitionProduceData(index=partition, records=batch)
            for partition in partitions
        ]
        return _PRODUCE(
            transactional_id=self.name, acks=-1, timeout_ms=READ_TIMEOUT_MS,
            topic_data=[topic_type(name=NEIGHBOURS_TOPIC, partition_data=parts)],
        )  # fmt: skip


class BackgroundLoad:
    """Background producers of a run, and the outcomes of their transactions."""

    def __init__(
        self,
        count: int,
        *,
        seed: int,
        new_places: Callable[[], Routing],
        stamp_ms: int,
        now_ms: Callable[[], int],
        may_go_on: Callable[[], bool],
        abort: bool = False,
    ) -> None:
        self.running = count
        """Count of the producers that have not ended yet."""
        self._members = [
            BackgroundProducer(
                f"neighbour-{number}",
                Random(f"{seed}/neighbour-{number}"),
                new_places(),
                stamp_ms,
                now_ms,
                may_go_on,
                abort,
            )
            for number in range(count)
        ]

    @property
    def topics(self) -> dict[str, int]:
        """The partitions of what they need."""
        return {NEIGHBOURS_TOPIC: NEIGHBOURS_PARTITIONS} if self._members else {}

    def start(self, process: Callable[[str], ClientProcess]) -> None:
        """Start each in a process of its own."""
        for member in self._members:
            operation = member.transactions(TRANSACTIONS_MAX)
            process(member.name).run(operation, self._on_end)

    def _on_end(self, _: object, error: TxnLogError | None) -> None:
        self.running -= 1
        if error is not None:
            violated(46, "a neighbour failed", error=str(error))

    def read(self, places: Routing) -> Operation[list[list[Record]]]:
        """The committed records of each partition."""
        found = []
        for partition in range(NEIGHBOURS_PARTITIONS if self._members else 0):
            records, _ = yield from read_partition(
                places, NEIGHBOURS_TOPIC, partition, 0, read_committed=True
            )
            found.append(records)
        return found

    def check(self, partitions: Sequence[Sequence[Record]]) -> None:
        """Check the answers by the records that a reader of committed records finds (20, 22)."""
        found = [Counter((r.key, int(r.value or b"-1")) for r in records) for records in partitions]
        if any(other != found[0] for other in found):
            violated(20, "a part of a transaction is committed", partitions=found)
        for member in self._members:
            for records in partitions:
                check_order(member.name, records)
            own = {n: times for (key, n), times in found[0].items() if key == member.name.encode()}
            if max(own.values(), default=1) > 1 or not member.committed <= set(own):
                violated(22, "a transaction answered as committed is not there once",
                         neighbour=member.name, found=own)  # fmt: skip
            if member.aborted & set(own):
                violated(22, "a transaction is committed that no producer committed", ABORTED_READ,
                         neighbour=member.name, found=own)  # fmt: skip


def check_order(name: str, records: Sequence[Record]) -> None:
    """Check that a producer's transactions lie in their order. Raises Violation (29)."""
    numbers = [int(record.value or b"-1") for record in records if record.key == name.encode()]
    if numbers != sorted(numbers):
        violated(29, "a later transaction's records come first", producer=name, found=numbers)
