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
from simulation.load.routing import RETRY_MS, TRANSACTION, Routing, Where, ask_once
from simulation.load.transactions import (
    ADD_PARTITIONS_VERSION_MAX,
    END_TXN_VERSION_MAX,
    PRODUCE_VERSION_MAX,
    Owner,
    add_request,
    check_ended,
    end_request,
    errors_of,
    init_request,
    owned_batch,
    produce_request_to,
)
from simulation.violation import ABORTED_READ, violated
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.wire.error_codes import RETRIABLE, ErrorCode
from txnlog_kafka.wire.messages import Message
from txnlog_kafka.wire.records import Record
from txnlog_spark.errors import TxnLogError

NEIGHBOURS_TOPIC = "neighbours"
NEIGHBOURS_PARTITIONS = 2
TRANSACTIONS_MAX = 6
TICK_MS = 1_000
REST_MS = LATE_US_MAX // 1000 + TICK_MS
"""Until nothing that was sent is on its way."""
ABORTED_SHARE = 0.2
TRANSACTION_TIMEOUT_MS = 10_000

_AGAIN = {ErrorCode.CONCURRENT_TRANSACTIONS, *RETRIABLE}


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

    def _abort(self, owner: Owner) -> Operation[None]:
        # EndTxn was refused, or not answered. The next InitProducerId aborts what is still open.
        with contextlib.suppress(_Abandoned):
            yield from self._end(owner, committed=False)
        yield Sleep(REST_MS)

    def _init(self) -> Operation[Owner]:
        request = init_request(self.name, TRANSACTION_TIMEOUT_MS)
        self.sequence = 0
        while True:
            answer = yield from self.places.ask(request, where=self._coordinator)
            if answer.error_code == ErrorCode.NONE:
                return Owner.of_answer(self.name, answer)
            self.places.forget()
            yield Sleep(RETRY_MS)

    def _coordinator(self) -> Operation[int]:
        return self.places.coordinator(TRANSACTION, self.name)

    def _transaction(self, owner: Owner, number: int) -> Operation[None]:
        self.aborted.add(number)
        request = add_request(owner, {NEIGHBOURS_TOPIC: range(NEIGHBOURS_PARTITIONS)})
        yield from self._once(request, ADD_PARTITIONS_VERSION_MAX, self._coordinator)
        yield from self._produce_all(owner, number)
        commits = self.rng.random() >= ABORTED_SHARE
        if commits:
            self.aborted.discard(number)
        yield from self._end(owner, committed=commits)
        if commits:
            self.committed.add(number)

    def _end(self, owner: Owner, *, committed: bool) -> Operation[None]:
        request = end_request(owner, committed=committed)
        yield from self._once(request, END_TXN_VERSION_MAX, self._coordinator)

    def _once(self, request: Message, version_max: int, where: Where) -> Operation[None]:
        """Send until it is carried out. Raises _Abandoned when that is not known, or refused."""
        while True:
            node = yield from where()
            answer = yield from ask_once(node, request, version_max)
            if answer is None:
                raise _Abandoned
            found = errors_of(answer)
            if found == {ErrorCode.NONE}:
                return
            if not found <= _AGAIN:
                raise _Abandoned
            self.places.forget()
            yield Sleep(RETRY_MS)

    def _produce_all(self, owner: Owner, number: int) -> Operation[None]:
        """Send a single request to a lone broker, else a request to each partition's leader."""
        everything = range(NEIGHBOURS_PARTITIONS)
        alone = self.places.brokers == 1
        batch = owned_batch(
            owner, self.sequence, self.name.encode(), [b"%d" % number], self.stamp_ms
        )
        for partitions in [everything] if alone else [[number] for number in everything]:
            yield from self._once(
                produce_request_to({"name": NEIGHBOURS_TOPIC}, partitions, batch, self.name),
                PRODUCE_VERSION_MAX,
                partial(self.places.leader, NEIGHBOURS_TOPIC, partitions[0]),
            )
        self.sequence += 1


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
        check_ended("a neighbour", _, error)

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
