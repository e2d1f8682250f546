"""Give the client libraries under test one shape, so that a story is written once for all of them.

An adapter changes the names of calls and results, and nothing of what the library does: the
library's errors pass through, and `Client.error_of` names them. Settings have Kafka's names with
underscores.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import pytest
from support.brokers.prepared import wait_until_marked
from support.brokers.probe import NotReady, pause
from support.clients.librdkafka import Seen

T = TypeVar("T")
Place = tuple[str, int]
Headers = Sequence[tuple[str, bytes | None]]
BEGINNING, END = -2, -1
"""Positions that `seek` accepts besides offsets."""
TIMEOUT_S = 600.0
SHORT_S = 0.05
LONG_S = 5.0
"""Longer than a broker that died holds up a group's assignment: a poll of kafka-python that ends
before SyncGroup is answered leaves it waiting until its session is over."""
HEARTBEAT_MS = 200
TRANSACTION_TIMEOUT_MS = 600_000
"""Timeout that ends no transaction before its test does, unless the test is about timeouts."""


@dataclass(frozen=True)
class Sent:
    """Offset and time that a producer learns of its record; no offset without acks."""

    offset: int | None
    timestamp: int


@dataclass(frozen=True)
class Record:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    appended: bool
    """True if the broker set the timestamp."""
    headers: list[tuple[str, bytes | None]]


Told = Callable[[str, list[Place]], None]
"""Is told of "assigned", "revoked" or "lost", and of the partitions."""


class _Closing(AbstractContextManager):
    @abstractmethod
    def close(self) -> None:
        """Close the client; a second close does nothing."""

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Writer(_Closing):
    @abstractmethod
    def send(
        self, topic: str, value: bytes | str | None, key: bytes | None = None,
        partition: int | None = None, headers: Headers = (), timestamp: int | None = None,
    ) -> Callable[[], Sent]:  # fmt: skip
        """Send a record; what this returns waits for its acknowledgement, or raises."""

    @abstractmethod
    def flush(self) -> None:
        """Wait for all that was sent."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def send_offsets(self, offsets: Mapping[Place, tuple[int, str]], reader: Reader) -> None:
        """Hand offsets of the reader's group, with metadata, to the transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Commit it."""

    @abstractmethod
    def abort(self) -> None:
        """Abort it."""

    def sent(self, topic: str, value: bytes | str | None, *more: Any, **named: Any) -> Sent:
        return self.send(topic, value, *more, **named)()

    def send_all(
        self, topic: str, values: Iterable[str], partition: int | None = None
    ) -> list[Sent]:
        """Send each value with itself as the key, and wait for all of them."""
        waits = [self.send(topic, each, each.encode(), partition) for each in values]
        self.flush()
        return [wait() for wait in waits]

    def transact(self, topic: str, *values: str, commits: bool = True, partition: int = 0) -> None:
        self.begin()
        self.send_all(topic, values, partition)
        (self.commit if commits else self.abort)()


class Reader(_Closing):
    """A consumer; `group` is its group's name."""

    group: str | None

    @abstractmethod
    def subscribe(self, *topics: str, pattern: str | None = None, told: Told | None = None) -> None:
        """Join the group."""

    @abstractmethod
    def assign(self, places: Sequence[Place]) -> None:
        """Read these, without a group's membership."""

    @abstractmethod
    def poll(self, wait_s: float = SHORT_S) -> list[Record]:
        """Return the records that have come, at most `max_poll_records`."""

    @abstractmethod
    def assignment(self) -> set[Place]:
        """Return the partitions that the consumer reads now."""

    @abstractmethod
    def position(self, place: Place) -> int:
        """Return the next offset to read; markers and aborted records count."""

    @abstractmethod
    def seek(self, place: Place, offset: int) -> None:
        """Go on from there."""

    @abstractmethod
    def committed(self, place: Place) -> tuple[int, str | None] | None:
        """The group's offset and metadata; aiokafka tells no metadata."""

    @abstractmethod
    def commit(self, offsets: Mapping[Place, tuple[int, str]] | None = None) -> None:
        """Commit these, or the positions."""

    @abstractmethod
    def ends(self, place: Place) -> tuple[int, int]:
        """The first offset, and the one after the last that the isolation level shows."""

    @abstractmethod
    def at_time(self, place: Place, timestamp: int) -> tuple[int, int | None] | None:
        """Offset and time of the first record from a time on; librdkafka tells no time."""

    def generation(self) -> int | None:
        """Generation of the group, or None if the library does not tell it."""
        return None

    def take(self, count: int) -> list[Record]:
        return self._poll_until(lambda got: len(got) >= count, f"{count} records", LONG_S)

    def read_to_ends(self, places: Sequence[Place], start: int = 0) -> list[Record]:
        """Return the records of these partitions from `start` up to their present ends."""
        self.assign(places)
        for place in places:
            self.seek(place, start)
        ends = {place: self.ends(place)[1] for place in places}

        def ended(_: list[Record]) -> bool:
            return all(self.position(place) >= end for place, end in ends.items())

        return self._poll_until(ended, f"the ends {ends}", SHORT_S)

    def _poll_until(
        self, ended: Callable[[list[Record]], bool], what: str, wait_s: float
    ) -> list[Record]:
        got: list[Record] = []
        deadline = time.monotonic() + TIMEOUT_S
        while not ended(got):
            got += self.poll(wait_s)
            if time.monotonic() > deadline:
                raise NotReady(f"waited {TIMEOUT_S} s for {what}")
        return got


class Admin(_Closing):
    @abstractmethod
    def create_topic(
        self, topic: str, partitions: int = 1, replication: int = 1,
        configs: Mapping[str, str] = MappingProxyType({}), *, only_validates: bool = False,
    ) -> None:  # fmt: skip
        """CreateTopics."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """DeleteTopics."""

    @abstractmethod
    def topics(self) -> set[str]:
        """Return the names of all topics."""

    @abstractmethod
    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic."""

    @abstractmethod
    def add_partitions(self, topic: str, count: int, *, only_validates: bool = False) -> None:
        """CreatePartitions."""

    @abstractmethod
    def configs(self, topic: str) -> dict[str, tuple[str | None, str]]:
        """Value and source by option."""

    @abstractmethod
    def alter_configs(self, topic: str, *changes: tuple[str, str, str | None]) -> None:
        """IncrementalAlterConfigs: option, operation, value."""

    @abstractmethod
    def delete_records(self, place: Place, before: int) -> int:
        """DeleteRecords; the first offset that is left."""

    @abstractmethod
    def offset(self, place: Place, spec: str | int, *, committed: bool = False) -> int:
        """ListOffsets: "earliest", "latest", "max_timestamp" or a time; -1 for none."""

    @abstractmethod
    def group_offsets(self, group: str) -> dict[Place, tuple[int, str]]:
        """Return all committed offsets of a group, with their metadata."""

    @abstractmethod
    def move_offsets(self, group: str, offsets: Mapping[Place, tuple[int, str]]) -> None:
        """Set the offsets of a group without members."""

    @abstractmethod
    def groups(self) -> dict[str, str]:
        """Return all groups, with their states."""

    @abstractmethod
    def members(self, group: str) -> list[tuple[str, str]]:
        """Client id and host of each."""

    @abstractmethod
    def delete_group(self, group: str) -> None:
        """DeleteGroups."""

    @abstractmethod
    def addresses(self) -> list[str]:
        """Return the addresses of the brokers, sorted."""


class Client(AbstractContextManager):
    """A library, as far as one test uses it: what the test leaves open is closed at its end."""

    name: str

    def __init__(self) -> None:
        self._made: list[_Closing] = []

    def __exit__(self, *exc_info: object) -> None:
        for each in reversed(self._made):
            each.close()

    def producer(self, bootstrap: str, **settings: Any) -> Writer:
        """Return a producer. With several brokers one may be killed, so the producer is idempotent:
        an unanswered batch is not written twice."""
        safe = {"enable_idempotence": True} if "," in bootstrap else {}
        return self.kept(self.new_writer({"bootstrap_servers": bootstrap} | safe | settings))

    def transactional(self, bootstrap: str, transactional_id: str, **settings: Any) -> Writer:
        """A producer whose transactional id is initialized."""
        own = {"bootstrap_servers": bootstrap, "transactional_id": transactional_id}
        own |= {"transaction_timeout_ms": TRANSACTION_TIMEOUT_MS}
        return self.kept(self.new_writer(own | settings))

    def consumer(self, bootstrap: str, group: str | None = None, **settings: Any) -> Reader:
        """Return a consumer that starts at the earliest offset, commits on demand, and polls one by
        one."""
        own = {
            "bootstrap_servers": bootstrap,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "max_poll_records": 1,
        }
        # A new topic, and who leads another one now, are known after this.
        own |= {"metadata_max_age_ms": 1000}
        return self.kept(self.new_reader(group, own | settings))

    def admin(self, bootstrap: str) -> Admin:
        """An administrator."""
        return self.kept(self.new_admin(bootstrap))

    def new_admin(self, bootstrap: str) -> Admin:
        """The library's."""
        raise AssertionError(f"{type(self).__name__}: no test asks this library's administrator")

    def kept(self, made: T) -> T:
        """Keep a client: it is closed at the end, before those that were made earlier."""
        self._made.append(made)  # type: ignore[arg-type]
        return made

    @abstractmethod
    def new_writer(self, settings: dict[str, Any]) -> Writer:
        """The library's producer."""

    @abstractmethod
    def new_reader(self, group: str | None, settings: dict[str, Any]) -> Reader:
        """The library's consumer."""

    @abstractmethod
    def name_of(self, error: BaseException) -> str | None:
        """Kafka's name of an error, or the library's where it is its own; None for any other."""

    def error_of(self, call: Callable[[], object]) -> str:
        """The name of the error that a call ends with, or "none"."""
        try:
            call()
        except Exception as error:
            name = self.name_of(error)
            if name is None:
                raise
            return name
        return "none"

    def read(
        self, bootstrap: str, topic: str, partitions: int = 1, *,
        isolation: str = "read_committed", start: int = 0, **settings: Any,
    ) -> list[Seen]:  # fmt: skip
        """Return every record from an offset to the end that this isolation level has now.

        Under read_committed that end is after all committed records, not only after those whose
        markers are written already.
        """
        if isolation == "read_committed":
            wait_until_marked(bootstrap)
        own = {"isolation_level": isolation, "max_poll_records": 500, "fetch_max_wait_ms": 50}
        settings = own | settings
        places = [(topic, number) for number in range(partitions)]
        with self.consumer(bootstrap, **settings) as reader:
            got = reader.read_to_ends(places, start)
        return sorted(Seen(each.partition, each.offset, each.key, each.value) for each in got)


class Member(_Closing):
    """A member of a group that a thread of its own polls, and what it was told."""

    def __init__(
        self, client: Client, bootstrap: str, group: str, *topics: str, **settings: Any
    ) -> None:
        self._reader = client.consumer(bootstrap, group, **settings)
        self._turn = threading.Lock()
        self._stopped = threading.Event()
        self.events: list[tuple[str, list[Place]]] = []
        self.share: set[Place] = set()
        self.records: list[Record] = []
        self.failed: BaseException | None = None
        self._reader.subscribe(*topics, told=self._told)
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()
        client.kept(self)

    def _told(self, what: str, places: list[Place]) -> None:
        if places:
            self.events.append((what, sorted(places)))

    def _poll(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._turn:
                    self.records += self._reader.poll()
                    self.share = self._reader.assignment()
            except Exception as failed:
                self.failed = failed
                return
            pause(0.001)

    def ask(self, call: Callable[[Reader], T]) -> T:
        """Call a method of the consumer between two polls, and return its result."""
        with self._turn:
            return call(self._reader)

    def stop_polling(self) -> None:
        """Be silent; the library's own heartbeats go on."""
        self._stopped.set()
        self._thread.join(TIMEOUT_S)

    def close(self) -> None:
        """Leave, as far as the library does so at a close."""
        self.stop_polling()
        self._reader.close()


HANGS = {
    "kafka_python": pytest.mark.no_kill("kafka-python hangs when a poll ends before SyncGroup does")
}
WAITS = {
    "kafka_python": pytest.mark.no_kill(
        "kafka-python waits for a killed coordinator, on Apache Kafka too"
    )
}


def params_of(*names: str, **marks: pytest.MarkDecorator) -> list[Any]:
    """Return these clients, or all, as parameters; a mark applies to the client of its name."""
    wanted = names or ("aiokafka", "kafka-python", "librdkafka", "java")
    marks_of = {
        name: [marks[key]] if (key := name.replace("-", "_")) in marks else [] for name in wanted
    }
    if "java" in marks_of:
        marks_of["java"].append(pytest.mark.kafka)
    return [pytest.param(name, marks=found) for name, found in marks_of.items()]


def told_by(*names: str, **marks: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """Mark a story for these clients, or for all."""
    return pytest.mark.parametrize("client", params_of(*names, **marks), indirect=True)
