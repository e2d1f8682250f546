"""An idempotent producer with five batches in flight, which sends again what was not answered.

A leader that has not stopped meanwhile knows the last five batches of a producer, so what is sent
again is answered as it was the first time (14). After a start it may know but the last one, as in
Kafka, whose snapshots hold no more: so this is for scenarios in which no broker dies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from simulation.hosts.client import ClientProcess
from simulation.load.cluster_clients import check_sends
from simulation.load.routing import RETRY_MS, Routing
from simulation.load.transactions import (
    PRODUCE_VERSION_MAX,
    check_ended,
    errors_of,
    idempotent_batch,
    init_request,
    produce_request,
)
from simulation.violation import violated
from txnlog_kafka.operations.effects import Call, Calls, Operation, Reply, Sleep
from txnlog_kafka.wire.error_codes import RETRIABLE, ErrorCode, error_name
from txnlog_kafka.wire.messages import Message
from txnlog_kafka.wire.records import Record

PIPELINED_TOPIC = "pipelined"
PIPELINED_PARTITIONS = 3
"""Partitions of the topic: each of three brokers leads one."""
IN_FLIGHT = 5
"""max.in.flight.requests.per.connection, the most with which Kafka's client is idempotent."""
PAUSE_MS = 100
ANSWER_MS = 300
"""Milliseconds that it waits for an answer: a delay long for it is short for the brokers."""


class PipelinedWriter:
    """See the module."""

    def __init__(self, new_places: Callable[[], Routing], may_go_on: Callable[[], bool]) -> None:
        self._places = new_places()
        self._may_go_on = may_go_on
        self._acknowledged: set[int] = set()
        self._next_number = 0

    def start(self, process: Callable[[str], ClientProcess]) -> None:
        """Start it in a process of its own."""
        process("pipelined-writer").run(self._write(), partial(check_ended, "the pipelined writer"))

    def _write(self) -> Operation[None]:
        producer_ids: list[int] = []
        while len(producer_ids) < PIPELINED_PARTITIONS and self._may_go_on():
            producer_ids += yield from self._producer_id()
        base_sequence = 0
        while self._may_go_on():
            for partition, producer_id in enumerate(producer_ids):
                yield from self._write_five(partition, producer_id, base_sequence)
            base_sequence += IN_FLIGHT
            yield Sleep(PAUSE_MS)

    def _producer_id(self) -> Operation[list[int]]:
        """Return no producer id, or one."""
        answer = yield from self._places.ask(init_request())
        if answer.error_code == ErrorCode.NONE:
            return [int(answer.producer_id)]
        yield Sleep(RETRY_MS)
        return []

    def _write_five(self, partition: int, producer_id: int, base_sequence: int) -> Operation[None]:
        """Send five batches at once, and those that are not acknowledged again, in their order."""
        requests = {}
        for sequence in range(base_sequence, base_sequence + IN_FLIGHT):
            batch = idempotent_batch(producer_id, sequence, b"n", b"%d" % self._next_number)
            requests[self._next_number] = produce_request(PIPELINED_TOPIC, partition, batch)
            self._next_number += 1
        while requests and self._may_go_on():
            node = yield from self._places.leader(PIPELINED_TOPIC, partition)
            calls = [
                Call(node, request, ANSWER_MS, PRODUCE_VERSION_MAX) for request in requests.values()
            ]
            answers = (yield Calls(tuple(calls))) or ()
            self._keep_unacknowledged(requests, [_error_of(answer) for answer in answers])
            if requests:
                self._places.forget()
                yield Sleep(RETRY_MS)

    def _keep_unacknowledged(
        self, requests: dict[int, Message], errors: Sequence[ErrorCode | None]
    ) -> None:
        """Keep what is to be sent again. The first of it follows what is acknowledged, so there is
        no sequence missing before it. Raises Violation (14)."""
        follows = True
        for number, error in zip(list(requests), errors, strict=False):
            if error is ErrorCode.NONE:
                self._acknowledged.add(number)
                del requests[number]
            elif error is not None and error not in RETRIABLE:
                is_gap = error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                if follows or not is_gap:
                    violated(14, "a batch that was sent again is refused", number=number,
                             error=error_name(error))  # fmt: skip
            follows = follows and error is ErrorCode.NONE

    def check(self, records: Sequence[Record]) -> None:
        """Check all partitions: acknowledged records exist, and all records once (3, 14)."""
        found = Counter(int(record.value or b"-1") for record in records)
        check_sends(self._acknowledged, found)


def _error_of(answer: object) -> ErrorCode | None:
    """Return the error of an answer; None when it was not answered."""
    if not isinstance(answer, Reply):
        return None
    return ErrorCode(*errors_of(answer.message))
