"""One member of a consumer group in a process of its own, so that it can be killed.

    python group_worker.py CLIENT BOOTSTRAP GROUP TOPIC

CLIENT is librdkafka, kafka-python or aiokafka, each with its `range` assignor. It prints a line
`assigned P,P,...` whenever its partitions change and `record P O` for each record it got, then
commits what it printed. After `ready` SIGTERM makes it leave the group, and `left` comes last.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Iterable

SESSION_TIMEOUT_MS = 2_000
HEARTBEAT_MS = 200
stopped = threading.Event()


def tell(line: str) -> None:
    """Print at once."""
    print(line, flush=True)


class Assignment:
    """Tells a change of the member's partitions."""

    def __init__(self) -> None:
        self._told: list[int] = []

    def show(self, partitions: Iterable[int]) -> None:
        """Print them when they are others than last time."""
        now = sorted(partitions)
        if now != self._told:
            self._told = now
            tell("assigned " + ",".join(str(number) for number in now))


def work_librdkafka(bootstrap: str, group: str, topic: str) -> None:
    """A member of confluent-kafka."""
    from confluent_kafka import Consumer, KafkaException

    member = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "partition.assignment.strategy": "range",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
    )
    member.subscribe([topic])
    assignment = Assignment()
    while not stopped.is_set():
        message = member.poll(0.1)
        assignment.show(place.partition for place in member.assignment())
        if message is None or message.error() is not None:
            continue
        tell(f"record {message.partition()} {message.offset()}")
        try:
            member.commit(message=message, asynchronous=False)
        except KafkaException as refused:
            # A rebalance came between: whoever has the partition now gets the record again.
            tell(f"refused {refused}")
    member.close()


def work_kafka_python(bootstrap: str, group: str, topic: str) -> None:
    """A member of kafka-python."""
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import KafkaError

    member = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        partition_assignment_strategy=(RangePartitionAssignor,),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_records=10,
    )
    assignment = Assignment()
    while not stopped.is_set():
        batches = member.poll(timeout_ms=100)
        assignment.show(place.partition for place in member.assignment())
        for records in batches.values():
            for record in records:
                tell(f"record {record.partition} {record.offset}")
        if batches:
            try:
                member.commit()
            except KafkaError as refused:
                tell(f"refused {refused}")
    member.close()


def work_aiokafka(bootstrap: str, group: str, topic: str) -> None:
    """A member of aiokafka."""
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import KafkaError

    async def work() -> None:
        member = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            partition_assignment_strategy=(RangePartitionAssignor,),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        await member.start()
        assignment = Assignment()
        while not stopped.is_set():
            batches = await member.getmany(timeout_ms=100, max_records=10)
            assignment.show(place.partition for place in member.assignment())
            for records in batches.values():
                for record in records:
                    tell(f"record {record.partition} {record.offset}")
            if batches:
                # What was delivered, by name: a bare commit() would take partitions along that
                # came since, at positions nothing was delivered for.
                ends = {place: records[-1].offset + 1 for place, records in batches.items()}
                try:
                    await member.commit(ends)
                except KafkaError as refused:
                    tell(f"refused {refused!r}")
        await member.stop()

    asyncio.run(work())


CLIENTS = {
    "librdkafka": work_librdkafka,
    "kafka-python": work_kafka_python,
    "aiokafka": work_aiokafka,
}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    tell("ready")
    name, *names = sys.argv[1:]
    CLIENTS[name](*names)
    tell("left")
