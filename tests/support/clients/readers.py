"""One partition read to its end by five client stacks, behind one function each.

`READERS[name](bootstrap, place, start=..., committed=..., fetch_bytes=...)` gives a `Reading`:
what was delivered from `start` on, and the position the client was at when it knew the end. An
offset out of range would show: these clients then begin again at the earliest record.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ConfluentPlace
from kafka import TopicPartition
from support.brokers.probe import wait_until
from support.clients import aiokafka_client, kafka_python, librdkafka
from support.clients.kcat import kcat
from support.harness.availability import available

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.offsets import LATEST_TIMESTAMP
from txnlog_spark.codec.decode import decode_batches

FETCH_BYTES = 1_048_576
Place = tuple[str, int]
_KCAT_END = re.compile(r"Reached end of topic \S+ \[\d+\] at offset (\d+)")


@dataclass(frozen=True)
class Reading:
    """(offset, value) of each record delivered, in order; and the position after them."""

    records: list[tuple[int, str]]
    position: int


def _isolation(committed: bool) -> str:
    return "read_committed" if committed else "read_uncommitted"


def read_with_ours(
    bootstrap: str,
    place: Place,
    *,
    start: int = 0,
    committed: bool = True,
    fetch_bytes: int = FETCH_BYTES,
) -> Reading:
    """This project's own client, as the Spark source uses it."""
    topic, partition = place
    with Client(bootstrap) as client:
        client.topic_partitions([topic])
        ends = client.list_offsets({place: LATEST_TIMESTAMP}, read_committed=committed)
        end = ends[place].offset
        records: list[tuple[int, str]] = []
        position = start
        answers = client.fetch_range(
            topic,
            partition,
            start_offset=start,
            end_offset=end,
            read_committed=committed,
            max_bytes=fetch_bytes,
        )
        for answer in answers:
            columns = decode_batches(
                answer.data, start_offset=position, end_offset=end, aborted=answer.aborted
            )
            values = [value.decode() for value in columns.values.to_pylist()]
            records.extend(zip(columns.offsets.tolist(), values, strict=True))
            position = max(position, answer.next_offset)
        return Reading(records, position)


def read_with_librdkafka(
    bootstrap: str,
    place: Place,
    *,
    start: int = 0,
    committed: bool = True,
    fetch_bytes: int = FETCH_BYTES,
) -> Reading:
    """confluent-kafka: until the end of the partition is told."""
    reader = librdkafka.consumer(
        bootstrap,
        f"reader-{place[0]}",
        isolation_level=_isolation(committed),
        enable_partition_eof=True,
        max_partition_fetch_bytes=fetch_bytes,
        fetch_wait_max_ms=50,
    )
    try:
        reader.assign([ConfluentPlace(*place, start)])
        records = []
        while True:
            message = reader.poll(librdkafka.TIMEOUT_S)
            if message is None:
                raise AssertionError(f"{place}: nothing, not even the end, after {records}")
            if message.error() is None:
                records.append((message.offset(), message.value().decode()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return Reading(records, message.offset())
            else:
                raise AssertionError(f"{place}: {message.error()}")
    finally:
        reader.close()


def read_with_kafka_python(
    bootstrap: str,
    place: Place,
    *,
    start: int = 0,
    committed: bool = True,
    fetch_bytes: int = FETCH_BYTES,
) -> Reading:
    """kafka-python: until its position is at the end offset."""
    reader = kafka_python.consumer(
        bootstrap,
        None,
        isolation_level=_isolation(committed),
        max_partition_fetch_bytes=fetch_bytes,
        fetch_max_wait_ms=50,
    )
    try:
        where = TopicPartition(*place)
        reader.assign([where])
        reader.seek(where, start)
        (end,) = reader.end_offsets([where]).values()
        records: list[tuple[int, str]] = []

        def ended() -> bool:
            for batch in reader.poll(timeout_ms=50).values():
                records.extend((one.offset, one.value.decode()) for one in batch)
            return reader.position(where) >= end

        wait_until(ended, f"the end {end} of {place}")
        return Reading(records, reader.position(where))
    finally:
        reader.close()


def read_with_aiokafka(
    bootstrap: str,
    place: Place,
    *,
    start: int = 0,
    committed: bool = True,
    fetch_bytes: int = FETCH_BYTES,
) -> Reading:
    """aiokafka: until its position is at the end offset."""

    async def body() -> Reading:
        made = aiokafka_client.consumer(
            bootstrap,
            None,
            isolation_level=_isolation(committed),
            max_partition_fetch_bytes=fetch_bytes,
            fetch_max_wait_ms=50,
        )
        async with aiokafka_client.started(made) as reader:
            where = TopicPartition(*place)
            reader.assign([where])
            reader.seek(where, start)
            (end,) = (await reader.end_offsets([where])).values()
            records: list[tuple[int, str]] = []

            async def ended() -> bool:
                for batch in (await reader.getmany(timeout_ms=50)).values():
                    records.extend((one.offset, one.value.decode()) for one in batch)
                return await reader.position(where) >= end

            await aiokafka_client.until(ended, f"the end {end} of {place}")
            return Reading(records, await reader.position(where))

    return aiokafka_client.run(body())


def read_with_kcat(
    bootstrap: str,
    place: Place,
    *,
    start: int = 0,
    committed: bool = True,
    fetch_bytes: int = FETCH_BYTES,
) -> Reading:
    """kcat -C -e: until it says that the end was reached. Values must be without newlines."""
    topic, partition = place
    settings = {
        "isolation.level": _isolation(committed),
        "fetch.message.max.bytes": str(fetch_bytes),
        "fetch.wait.max.ms": "50",
    }
    options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    where = ("-t", topic, "-p", str(partition), "-o", str(start))
    done = available(kcat).run(bootstrap, "-C", "-e", *where, *options, "-f", "%o %s\n")
    records = []
    for line in done.stdout.splitlines():
        offset, _, value = line.partition(" ")
        records.append((int(offset), value))
    end = _KCAT_END.search(done.stderr)
    if end is None:
        raise AssertionError(f"kcat told no end: {done.stderr}")
    return Reading(records, int(end[1]))


READERS: dict[str, Callable[..., Reading]] = {
    "ours": read_with_ours,
    "librdkafka": read_with_librdkafka,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
    "kcat": read_with_kcat,
}
