"""Plain clients of a cluster beside the query: what they were answered has to be true for ever.

One writes numbers without transactions, idempotent and with acks=all, and asks any broker for
producer ids. Another reads all records up to the high watermark, and both ends of the partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from simulation.hosts.client import ClientProcess
from simulation.load.reader import ReadBounds, read_partition, watch_end
from simulation.load.routing import RETRY_MS, Routing, ask_once
from simulation.load.transactions import (
    PRODUCE_VERSION_MAX,
    check_ended,
    errors_of,
    idempotent_batch,
    init_request,
    produce_request,
)
from simulation.violation import LOST_WRITE, violated
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.wire.error_codes import RETRIABLE, ErrorCode
from txnlog_kafka.wire.records import Record

TOPIC = "numbers"
PARTITIONS = 2
WRITE_MS = 400
NEW_ID_EVERY = 8
"""Numbers that are written with one producer id."""
LOOK_MS = 1_200
_check_ended = partial(check_ended, "a plain client")


@dataclass(slots=True)
class _Partition:
    """Observations of readers in a partition."""

    values: dict[int, bytes] = field(default_factory=dict)
    """By offset, under the high watermark."""
    bounds: ReadBounds | None = None


class PlainClients:
    """See the module."""

    def __init__(
        self,
        output: tuple[str, int],
        new_places: Callable[[], Routing],
        may_go_on: Callable[[], bool],
    ) -> None:
        """`output` is the topic of the query, and its partitions."""
        self._output = output
        self._new_places = new_places
        self._may_go_on = may_go_on
        self._sent: set[int] = set()
        self._acknowledged: set[int] = set()
        self._producer_ids: set[int] = set()
        self._seen: dict[tuple[str, int], _Partition] = {}

    @property
    def topics(self) -> dict[str, int]:
        """The partitions of what they need."""
        return {TOPIC: PARTITIONS}

    def start(self, process: Callable[[str], ClientProcess]) -> None:
        """Start each in a process of its own."""
        process("writer").run(self._write(self._new_places()), _check_ended)
        for topic, partitions in ((TOPIC, PARTITIONS), self._output):
            watcher = watch_end(
                self._new_places(),
                topic,
                partitions,
                on_records=partial(self._on_records, topic),
                on_bounds=partial(self._on_bounds, topic),
                interval_ms=LOOK_MS,
            )
            process(f"{topic}-end-observer").run(watcher, _check_ended)

    def ends(self) -> dict[int, int]:
        """The high watermark of each partition of the numbers, as far as it was seen."""
        return {
            number: seen.bounds.high_watermark
            for (topic, number), seen in self._seen.items()
            if topic == TOPIC and seen.bounds is not None
        }

    # ------------------------------------------------------------------ the writer

    def _write(self, places: Routing) -> Operation[None]:
        number = 0
        while self._may_go_on():
            producer_id = yield from self._producer_id(places)
            for sequence in range(NEW_ID_EVERY):
                number += 1
                producer = producer_id, sequence
                if not (yield from self._write_one(places, producer, number)):
                    break
                yield Sleep(WRITE_MS)

    def _producer_id(self, places: Routing) -> Operation[int]:
        while True:
            answer = yield from places.ask(init_request())
            if answer.error_code == ErrorCode.NONE:
                given = int(answer.producer_id)
                if given in self._producer_ids:
                    violated(16, "a producer id was given twice", producer_id=given)
                self._producer_ids.add(given)
                return given
            yield Sleep(RETRY_MS)

    def _write_one(
        self, places: Routing, producer: tuple[int, int], number: int
    ) -> Operation[bool]:
        """Send until it is answered for good; whether the producer, an id and its sequence, may go
        on. All that one producer id writes goes to one partition."""
        producer_id, sequence = producer
        partition = producer_id % PARTITIONS
        batch = idempotent_batch(producer_id, sequence, b"n", b"%d" % number)
        request = produce_request(TOPIC, partition, batch)
        self._sent.add(number)
        while self._may_go_on():
            node = yield from places.leader(TOPIC, partition)
            answer = yield from ask_once(node, request, PRODUCE_VERSION_MAX)
            if answer is not None:
                (error,) = errors_of(answer)
                if error == ErrorCode.NONE:
                    self._acknowledged.add(number)
                    return True
                if error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    # All before it was acknowledged: it is there, and known, or the next one.
                    violated(14, "a batch that was sent again is refused", number=number,
                             sequence=sequence)  # fmt: skip
                if error not in RETRIABLE:
                    return False
            places.forget()
            yield Sleep(RETRY_MS)
        return False

    # ------------------------------------------------------------------ what was seen

    def _on_records(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        values = self._seen.setdefault((topic, partition), _Partition()).values
        for record in records:
            value = record.value or b""
            if values.setdefault(record.record_offset, value) != value:
                violated(1, "an offset changed its value", topic=topic, partition=partition,
                         offset=record.record_offset, value=value)  # fmt: skip

    def _on_bounds(self, topic: str, partition: int, now: ReadBounds) -> None:
        """Neither end goes back (5): ListOffsets is not answered before that is sure (KIP-207)."""
        seen = self._seen.setdefault((topic, partition), _Partition())
        before = seen.bounds
        if before is not None and (
            now.high_watermark < before.high_watermark
            or now.last_stable_offset < before.last_stable_offset
        ):
            violated(5, "an end went back", topic=topic, partition=partition, before=before,
                     now=now)  # fmt: skip
        seen.bounds = now

    # ------------------------------------------------------------------ the end

    def read(self, places: Routing) -> Operation[dict[tuple[str, int], list[Record]]]:
        """Read all records of the watched partitions."""
        found = {}
        for topic, partitions in ((TOPIC, PARTITIONS), self._output):
            for number in range(partitions):
                found[topic, number], _ = yield from read_partition(
                    places, topic, number, 0, read_committed=False
                )
        return found

    def check(self, found: dict[tuple[str, int], list[Record]]) -> None:
        """Check that answered records, and records under a high watermark, exist once (1, 3)."""
        for place, records in found.items():
            at_end = {record.record_offset: record.value or b"" for record in records}
            for offset, value in self._seen.get(place, _Partition()).values.items():
                if at_end.get(offset) != value:
                    violated(1, "what was under the high watermark is gone",
                             LOST_WRITE, place=place,
                             offset=offset, value=value)  # fmt: skip
        numbers = Counter(
            int(record.value or b"-1")
            for (topic, _), records in found.items()
            for record in records
            if topic == TOPIC
        )
        foreign = sorted(set(numbers) - self._sent)
        if foreign:
            violated(4, "records that no client has sent", foreign=foreign)
        check_sends(self._acknowledged, numbers)


def check_sends(acknowledged: Set[int], found: Counter[int]) -> None:
    """`found` has how often a number is there: each that was acknowledged (3), and once (14)."""
    missing = sorted(acknowledged - set(found))
    if missing:
        violated(3, "acknowledged records are lost", missing=missing)
    twice = sorted(number for number, count in found.items() if count > 1)
    if twice:
        violated(14, "a record that was sent again is there twice", twice=twice)
