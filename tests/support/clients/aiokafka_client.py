"""aiokafka behind `support.clients.adapter`, in an event loop that runs in a thread.

Its calls have the names of kafka-python's, so that their adapters are the same but for a few.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

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
from support.clients.adapter import SHORT_S, TIMEOUT_S, Client, Place, Reader, Record, Sent, Writer
from support.clients.kafka_python import KafkaPythonReader, KafkaPythonWriter, Listening, named


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def in_loop(call: Callable[[], Any]) -> Any:
    """Call a function in the event loop, and return its result, awaited if need be."""

    async def body() -> Any:
        found = call()
        return await found if inspect.isawaitable(found) else found

    return asyncio.run_coroutine_threadsafe(body(), _loop()).result(TIMEOUT_S)


class Waiting:
    """A client of aiokafka, started, whose calls wait for what they give."""

    def __init__(self, made: Callable[[], Any]) -> None:
        self.client = in_loop(made)
        in_loop(self.client.start)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self.client, name)
        return lambda *words, **named: in_loop(lambda: call(*words, **named))


class AiokafkaWriter(KafkaPythonWriter):
    """Its producer. What it has written is in all replicas: only that can be read."""

    def __init__(self, settings: dict[str, Any]) -> None:
        if "batch_size" in settings:
            settings["max_batch_size"] = settings.pop("batch_size")
        self.made = Waiting(lambda: AIOKafkaProducer(**{"acks": "all"} | settings))

    def wait(self, waiting: asyncio.Future) -> Sent:
        told = in_loop(lambda: waiting)
        return Sent(None, 0) if told is None else Sent(told.offset, told.timestamp)

    def send_offsets(self, offsets: Mapping[Place, tuple[int, str]], reader: Reader) -> None:
        assert isinstance(reader, AiokafkaReader)
        self.made.send_offsets_to_transaction(reader.offsets_of(offsets), reader.group)

    def close(self) -> None:
        self.made.stop()


class _Listener(Listening, ConsumerRebalanceListener):
    pass


class AiokafkaReader(KafkaPythonReader):
    assignors: ClassVar[dict[str, type]] = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    listener, place_of, offset_of = _Listener, TopicPartition, OffsetAndMetadata

    def make(self, settings: dict[str, Any]) -> Any:
        return Waiting(lambda: AIOKafkaConsumer(**{"fetch_max_wait_ms": 100} | settings))

    def poll(self, wait_s: float = SHORT_S) -> list[Record]:
        return self.records_of(self.made.getmany(timeout_ms=int(wait_s * 1000)))

    def committed(self, place: Place) -> tuple[int, str | None] | None:
        offset = self.made.committed(TopicPartition(*place))
        return None if offset is None else (offset, None)

    def close(self) -> None:
        """A consumer that waits to fetch again from a broker that is away cancels its own task, and
        hands that to its caller."""
        with contextlib.suppress(asyncio.CancelledError):
            self.made.stop()


class Aiokafka(Client):
    name = "aiokafka"

    def new_writer(self, settings: dict[str, Any]) -> Writer:
        return AiokafkaWriter(settings)

    def new_reader(self, group: str | None, settings: dict[str, Any]) -> Reader:
        return AiokafkaReader(group, settings)

    def name_of(self, error: BaseException) -> str | None:
        return named(error) if isinstance(error, KafkaError) else None
