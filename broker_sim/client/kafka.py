"""Helpers of a test: create a topic, produce, read, and ask what groups have committed.

Each call opens a connection of its own and closes it, so that an object can go to another process
or thread.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txnlog_kafka.host.client import Client
    from txnlog_kafka.wire.records import Record
    from txnlog_kafka.wire.topic_partition import TopicPartition

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
FIELDS = frozenset({"key", "value", "headers", "timestamp"})
"""Names of a row that is a record with all its parts."""
BATCH_RECORDS, BATCH_BYTES = 1_000, 512 * 1024
POLL_S = 0.02
TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """Record of a topic; `timestamp` is in milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def json(self) -> Any:
        """Value, read as JSON. Raises ValueError if it is none, TypeError without a value."""
        if self.value is None:
            raise TypeError(f"{self.topic}-{self.partition}@{self.offset} has no value")
        return json.loads(self.value)


class KafkaHelpers(ABC):
    """Helpers on the broker at `bootstrap_servers`. Each raises TxnLogError as the client does:
    UnknownTopic, DeadlineExceeded without an answer in 30 s."""

    prefix = ""
    """Begin of the full names of topics; methods take and return names without it."""

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """Return `host:port`, or several with commas."""

    @property
    def options(self) -> dict[str, str]:
        """Return the options with which Spark's readers and writers find the broker."""
        return {"kafka.bootstrap.servers": self.bootstrap_servers}

    def topic(self, name: str) -> str:
        """Return the full name of a topic."""
        return name if name.startswith(self.prefix) else self.prefix + name

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait for its leaders. Raises TopicExists."""
        with self._client() as client:
            client.create_topic(self.topic(topic), partitions=partitions, config=config)

    def topics(self) -> list[str]:
        """Return the names of all topics but internal ones."""
        with self._client() as client:
            found = sorted(client.topic_partitions(None))
        return [name.removeprefix(self.prefix) for name in found if name.startswith(self.prefix)]

    def produce(self, topic: str, rows: Iterable[Any], partition: int | None = None) -> None:
        """Append records, each once, and wait until all replicas in sync have them.

        A row is a value, a tuple (key, value), or a mapping that has `value` and of `key`,
        `headers` and `timestamp` what it needs, and nothing else. A value may be bytes, a text,
        None, or anything that JSON can say; a key bytes, a text or None. Each record goes to
        `partition`, or to the partition of its key, as Kafka's default partitioner has it.
        """
        from broker_sim.client.writer import TopicWriter

        now_ms = time.time_ns() // 1_000_000
        records = [_record(row, number, now_ms) for number, row in enumerate(rows)]
        topic = self.topic(topic)
        with self._client() as client:
            (numbers,) = client.topic_partitions([topic], allow_auto_create=True).values()
            if partition is not None and partition not in numbers:
                raise ValueError(f"{topic!r} has partitions {list(numbers)}, and no {partition}")
            writer = TopicWriter(client, topic, len(numbers))
            for batch in _batches(records):
                writer.write(batch, partition)

    def records(self, topic: str, isolation_level: str = READ_COMMITTED) -> list[KafkaRecord]:
        """Return all records that the topic has now, partition by partition."""
        from broker_sim.client.reader import offsets_at
        from txnlog_kafka.operations.offsets import EARLIEST_TIMESTAMP

        with self._client() as client:
            places = _places(client, self.topic(topic))
            return _read(client, offsets_at(client, places, EARLIEST_TIMESTAMP), isolation_level)

    def groups(self) -> list[str]:
        """Return the names of all groups."""
        with self._client() as client:
            return sorted(each.group_id for each in client.list_groups())

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return what a group has committed, by topic and partition; {} for an unknown group."""
        with self._client() as client:
            return self._shortened(client.committed_offsets(group))

    def lag(self, group: str) -> dict[tuple[str, int], int]:
        """Return how many offsets a group is behind the end of each partition that it has
        committed."""
        from broker_sim.client.reader import offsets_at
        from txnlog_kafka.operations.offsets import LATEST_TIMESTAMP

        with self._client() as client:
            committed = client.committed_offsets(group)
            ends = offsets_at(client, committed, LATEST_TIMESTAMP)
            return self._shortened({at: ends[at] - offset for at, offset in committed.items()})

    @contextmanager
    def expect(
        self,
        topic: str,
        count: int,
        timeout_s: float = 30.0,
        isolation_level: str = READ_COMMITTED,
    ) -> Iterator[list[KafkaRecord]]:
        """Collect what is written to a topic in the block, into the list that the block is given.

        At its end it waits for `count` records. Raises AssertionError if there are fewer after
        `timeout_s`, or more.
        """
        from broker_sim.client.reader import offsets_at
        from txnlog_kafka.operations.offsets import LATEST_TIMESTAMP

        with self._client() as client:
            places = _places(client, self.topic(topic), is_created=True)
            starts = offsets_at(client, places, LATEST_TIMESTAMP)
        new: list[KafkaRecord] = []
        yield new
        deadline = time.monotonic() + timeout_s
        while True:
            with self._client() as client:
                new[:] = _read(client, starts, isolation_level)
            if len(new) >= count or time.monotonic() > deadline:
                break
            threading.Event().wait(POLL_S)
        if len(new) != count:
            shown = "".join(f"\n  {each.key!r}: {each.value!r}" for each in new[:20])
            raise AssertionError(
                f"{topic} got {len(new)} records where {count} were expected{shown}"
            )

    def _shortened(self, found: Mapping[Any, int]) -> dict[tuple[str, int], int]:
        return {(name.removeprefix(self.prefix), at): value for (name, at), value in found.items()}

    def _client(self) -> Client:
        from txnlog_kafka.host.client import Client
        from txnlog_kafka.operations.session import SessionConfig

        config = SessionConfig(operation_timeout_ms=TIMEOUT_MS, bootstrap_timeout_ms=TIMEOUT_MS)
        return Client(self.bootstrap_servers, client_id="broker_sim-helpers", config=config)


class Kafka(KafkaHelpers):
    """Helpers on any broker, by its address."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    @property
    def bootstrap_servers(self) -> str:
        """Return the address."""
        return self._bootstrap_servers


def _places(client: Client, topic: str, *, is_created: bool = False) -> list[TopicPartition]:
    from txnlog_kafka.wire.topic_partition import TopicPartition

    (numbers,) = client.topic_partitions([topic], allow_auto_create=is_created).values()
    return [TopicPartition(topic, number) for number in numbers]


def _read(client: Client, starts: Mapping[Any, int], isolation_level: str) -> list[KafkaRecord]:
    from broker_sim.client.reader import offsets_at, read_range
    from txnlog_kafka.operations.offsets import LATEST_TIMESTAMP

    if isolation_level not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise ValueError(
            f"isolation_level={isolation_level!r}: it is {READ_COMMITTED} or {READ_UNCOMMITTED}"
        )
    is_committed = isolation_level == READ_COMMITTED
    ends = offsets_at(client, starts, LATEST_TIMESTAMP, is_committed=is_committed)
    found = []
    for place, start in sorted(starts.items()):
        end = max(start, ends[place])
        for _, _, each in read_range(client, place, start, end, is_committed):
            found.append(
                KafkaRecord(
                    place.topic, place.partition, each.record_offset, each.timestamp,
                    each.key, each.value, each.headers,
                )
            )  # fmt: skip
    return found


def _batches(records: list[Record]) -> Iterator[list[Record]]:
    """Yield the records in parts that a broker takes as a batch."""
    part: list[Record] = []
    size = 0
    for record in records:
        length = len(record.key or b"") + len(record.value or b"")
        if part and (len(part) == BATCH_RECORDS or size + length > BATCH_BYTES):
            yield part
            part, size = [], 0
        part.append(record)
        size += length
    if part:
        yield part


def read_row(row: Any, number: int) -> Mapping[str, Any]:
    """Return a row in the forms that `produce` takes as a record with `value` and of FIELDS what it
    has; the key is bytes or None. Raises TypeError or ValueError naming the row's number."""
    if isinstance(row, tuple):
        if len(row) != 2:
            raise ValueError(f"row {number} is a tuple of {len(row)}: it must be (key, value)")
        row = {"key": row[0], "value": row[1]}
    elif not (isinstance(row, Mapping) and "value" in row and row.keys() <= FIELDS):
        row = {"value": row}
    key = row.get("key")
    if not (key is None or isinstance(key, bytes | str)):
        raise TypeError(
            f"row {number} has a key of {type(key).__name__}: give bytes, a text or None"
        )
    return {**row, "key": key.encode() if isinstance(key, str) else key}


def _record(given: Any, number: int, now_ms: int) -> Record:
    """Return the record of a row. Raises TypeError or ValueError naming the row's number."""
    from txnlog_kafka.wire.records import Record

    row = read_row(given, number)
    timestamp, headers = row.get("timestamp"), row.get("headers") or ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return Record(
        row["key"],
        _value(row["value"], number),
        now_ms if timestamp is None else int(timestamp),
        tuple((str(name), _value(value, number)) for name, value in pairs),
    )


def _value(value: Any, number: int) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(f"row {number} has a value that JSON cannot say: {error}") from None
