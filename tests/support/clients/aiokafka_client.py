"""aiokafka behind `support.clients.adapter`, in an event loop that runs in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    OffsetAndMetadata,
    TopicPartition,
)
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError
from support.clients.adapter import (
    BEGINNING,
    END,
    SHORT_S,
    TIMEOUT_S,
    Client,
    Headers,
    Place,
    Reader,
    Record,
    Sent,
    Told,
    Writer,
)
from support.clients.kafka_python import named

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def in_loop(call: Callable[[], Any], timeout_s: float = 2 * TIMEOUT_S) -> Any:
    """What a call, or what it gives to be awaited, gives in the event loop."""

    async def body() -> Any:
        found = call()
        return await found if inspect.isawaitable(found) else found

    return asyncio.run_coroutine_threadsafe(body(), _loop()).result(timeout_s)


class AiokafkaWriter(Writer):
    """Its producer. What it has written is in all replicas: only that can be read."""

    def __init__(self, settings: dict[str, Any]) -> None:
        if "batch_size" in settings:
            settings["max_batch_size"] = settings.pop("batch_size")
        self.made = in_loop(lambda: AIOKafkaProducer(**{"acks": "all"} | settings))
        in_loop(self.made.start)

    def send(
        self, topic: str, value: bytes | str | None, key: bytes | None = None,
        partition: int | None = None, headers: Headers = (), timestamp: int | None = None,
    ) -> Callable[[], Sent]:  # fmt: skip
        data = value.encode() if isinstance(value, str) else value
        more = {"partition": partition, "headers": headers, "timestamp_ms": timestamp}
        waiting = in_loop(lambda: self.made.send(topic, data, key, **more))

        def wait() -> Sent:
            told = in_loop(lambda: waiting)
            return Sent(None, 0) if told is None else Sent(told.offset, told.timestamp)

        return wait

    def flush(self) -> None:
        in_loop(self.made.flush)

    def begin(self) -> None:
        in_loop(self.made.begin_transaction)

    def send_offsets(self, offsets: Mapping[Place, tuple[int, str]], reader: Reader) -> None:
        given = _offsets(offsets)
        in_loop(lambda: self.made.send_offsets_to_transaction(given, reader.group))

    def commit(self) -> None:
        in_loop(self.made.commit_transaction)

    def abort(self) -> None:
        in_loop(self.made.abort_transaction)

    def close(self) -> None:
        in_loop(self.made.stop)


class AiokafkaReader(Reader):
    """Its consumer."""

    def __init__(self, group: str | None, settings: dict[str, Any]) -> None:
        self.group = group
        if "partition_assignment_strategy" in settings:
            chosen = ASSIGNORS[settings["partition_assignment_strategy"]]
            settings["partition_assignment_strategy"] = (chosen,)
        settings = {"fetch_max_wait_ms": 100, "group_id": group} | settings
        self.made = in_loop(lambda: AIOKafkaConsumer(**settings))
        in_loop(self.made.start)

    def subscribe(self, *topics: str, pattern: str | None = None, told: Told | None = None) -> None:
        listener = None if told is None else _Listener(told)
        in_loop(lambda: self.made.subscribe(topics, pattern=pattern, listener=listener))

    def assign(self, places: Sequence[Place]) -> None:
        in_loop(lambda: self.made.assign([TopicPartition(*each) for each in places]))

    def poll(self, wait_s: float = SHORT_S) -> list[Record]:
        found = in_loop(lambda: self.made.getmany(timeout_ms=int(wait_s * 1000)))
        return [
            Record(
                one.topic, one.partition, one.offset, one.key, one.value, one.timestamp,
                one.timestamp_type == 1, list(one.headers),
            )
            for records in found.values()
            for one in records
        ]  # fmt: skip

    def assignment(self) -> set[Place]:
        return {tuple(each) for each in in_loop(self.made.assignment)}

    def position(self, place: Place) -> int:
        return in_loop(lambda: self.made.position(TopicPartition(*place)))

    def seek(self, place: Place, offset: int) -> None:
        where = TopicPartition(*place)
        ends = {BEGINNING: self.made.seek_to_beginning, END: self.made.seek_to_end}
        if offset in ends:
            in_loop(lambda: ends[offset](where))
        else:
            in_loop(lambda: self.made.seek(where, offset))

    def committed(self, place: Place) -> tuple[int, str | None] | None:
        offset = in_loop(lambda: self.made.committed(TopicPartition(*place)))
        return None if offset is None else (offset, None)

    def commit(self, offsets: Mapping[Place, tuple[int, str]] | None = None) -> None:
        in_loop(lambda: self.made.commit(*([] if offsets is None else [_offsets(offsets)])))

    def ends(self, place: Place) -> tuple[int, int]:
        asked = [TopicPartition(*place)]
        (first,) = in_loop(lambda: self.made.beginning_offsets(asked)).values()
        (end,) = in_loop(lambda: self.made.end_offsets(asked)).values()
        return first, end

    def at_time(self, place: Place, timestamp: int) -> tuple[int, int | None] | None:
        asked = {TopicPartition(*place): timestamp}
        (found,) = in_loop(lambda: self.made.offsets_for_times(asked)).values()
        return None if found is None else (found.offset, found.timestamp)

    def close(self) -> None:
        """A consumer that waits to fetch again from a broker that is away cancels its own task, and
        hands that to its caller."""
        with contextlib.suppress(asyncio.CancelledError):
            in_loop(self.made.stop)


class _Listener(ConsumerRebalanceListener):
    def __init__(self, told: Told) -> None:
        self._told = told

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._told("revoked", [*map(tuple, revoked)])

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._told("assigned", [*map(tuple, assigned)])


def _offsets(offsets: Mapping[Place, tuple[int, str]]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(*place): OffsetAndMetadata(*each) for place, each in offsets.items()}


class Aiokafka(Client):
    """The library."""

    name = "aiokafka"

    def new_writer(self, settings: dict[str, Any]) -> Writer:
        return AiokafkaWriter(settings)

    def new_reader(self, group: str | None, settings: dict[str, Any]) -> Reader:
        return AiokafkaReader(group, settings)

    def name_of(self, error: BaseException) -> str | None:
        return named(error) if isinstance(error, KafkaError) else None
