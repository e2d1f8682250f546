"""Read one partition to its end with five client stacks, behind one function each.

`READERS[name](bootstrap, place, start=..., committed=..., fetch_bytes=...)` returns a `Reading`:
the records delivered from `start` on, and the client's position when it knew the end. An offset out
of range would show: these clients then begin again at the earliest record.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from support.clients.adapter import Client as Adapted
from support.clients.adapter import Place
from support.clients.aiokafka_client import Aiokafka
from support.clients.kafka_python import KafkaPython
from support.clients.kcat import kcat
from support.clients.librdkafka_client import Librdkafka
from support.harness.availability import available

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.offsets import LATEST_TIMESTAMP
from txnlog_spark.codec.decode import decode_batches

FETCH_BYTES = 1_048_576
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
    """Read with this project's own client, as the Spark source does."""
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


def read_with(library: Callable[[], Adapted]) -> Callable[..., Reading]:
    """A library behind an adapter: until its position is at the end offset."""

    def read(
        bootstrap: str,
        place: Place,
        *,
        start: int = 0,
        committed: bool = True,
        fetch_bytes: int = FETCH_BYTES,
    ) -> Reading:
        settings = {"isolation_level": _isolation(committed), "fetch_max_wait_ms": 50}
        settings |= {"max_partition_fetch_bytes": fetch_bytes, "max_poll_records": 500}
        with library() as client:
            reader = client.consumer(bootstrap, **settings)
            got = reader.read_to_ends([place], start)
            records = [(each.offset, each.value.decode()) for each in got]
            return Reading(records, reader.position(place))

    return read


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
    "librdkafka": read_with(Librdkafka),
    "kafka-python": read_with(KafkaPython),
    "aiokafka": read_with(Aiokafka),
    "kcat": read_with_kcat,
}
