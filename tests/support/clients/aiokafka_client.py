"""Small steps with aiokafka, written as one writes them for Kafka."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from support.brokers.prepared import wait_until_marked
from support.brokers.probe import PAUSE_S, NotReady
from support.clients.librdkafka import Seen

TIMEOUT_S = 60.0
TEST_TIMEOUT_S = 240.0
T = TypeVar("T")


def run(body: Coroutine[Any, Any, T]) -> T:
    """Run a test's body in an event loop of its own."""

    async def limited() -> T:
        return await asyncio.wait_for(body, TEST_TIMEOUT_S)

    return asyncio.run(limited())


@asynccontextmanager
async def started(client: T) -> AsyncIterator[T]:
    """A producer or consumer that runs within the block."""
    await client.start()
    try:
        yield client
    finally:
        await _stop(client)


async def _stop(client: Any) -> None:
    """A consumer that waits to fetch again from a broker that is away cancels its own task, and
    hands that to its caller."""
    try:
        await client.stop()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise


def producer(bootstrap: str, **settings) -> AIOKafkaProducer:
    """A producer, not started. What it has written is in all replicas: only that can be read."""
    return AIOKafkaProducer(bootstrap_servers=bootstrap, **({"acks": "all"} | settings))


def consumer(bootstrap: str, group: str | None, *topics: str, **settings) -> AIOKafkaConsumer:
    """A consumer, not started, that begins at the earliest offset and commits when told."""
    defaults = {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "heartbeat_interval_ms": 200,
        "fetch_max_wait_ms": 100,
        # Who led a partition and does so no more is asked for its offsets until this is over.
        "metadata_max_age_ms": 1000,
    }
    return AIOKafkaConsumer(
        *topics, bootstrap_servers=bootstrap, group_id=group, **(defaults | settings)
    )


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Return when the condition holds; NotReady naming `what` after TIMEOUT_S."""
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    while True:
        held = condition()
        if inspect.isawaitable(held):
            held = await held
        if held:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise NotReady(f"waited {TIMEOUT_S} s for {what}")
        await asyncio.sleep(PAUSE_S)


async def take(subscriber: AIOKafkaConsumer, count: int) -> list:
    """The next `count` records."""
    return [await asyncio.wait_for(subscriber.getone(), TIMEOUT_S) for _ in range(count)]


async def produce_values(bootstrap: str, topic: str, values, **settings) -> None:
    """Produce each value, with itself as the key, and wait for all of them.

    One of several brokers may be killed: what it has not answered is then not written twice.
    """
    settings = {"enable_idempotence": "," in bootstrap} | settings
    async with started(producer(bootstrap, **settings)) as made:
        sent = [await made.send(topic, one.encode(), key=one.encode()) for one in values]
        await asyncio.gather(*sent)


async def read_topic(
    bootstrap: str, topic: str, *, isolation: str = "read_committed", start: int = 0, **settings
) -> list[Seen]:
    """Every record from an offset to the end that this isolation level has now.

    Under read_committed that is what has been committed, not only what has its markers already.
    """
    if isolation == "read_committed":
        wait_until_marked(bootstrap)
    made = consumer(bootstrap, None, topic, isolation_level=isolation, **settings)
    async with started(made) as reader:
        await until(lambda: bool(reader.assignment()), f"the partitions of {topic}")
        places = sorted(reader.assignment())
        for place in places:
            reader.seek(place, start)
        ends = await reader.end_offsets(places)
        seen: list[Seen] = []

        async def ended() -> bool:
            for records in (await reader.getmany(timeout_ms=50)).values():
                seen.extend(Seen(one.partition, one.offset, one.key, one.value) for one in records)
            return all([await reader.position(place) >= ends[place] for place in places])

        await until(ended, f"the ends {ends}")
        return sorted(seen)
