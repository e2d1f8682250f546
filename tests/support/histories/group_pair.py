"""Ask one group on two brokers the same: the core of broker_sim in this process, and Apache Kafka.

broker_sim answers within the step, so the test knows at once which requests are parked, and which
parked requests a request releases. It then reads exactly these answers from Kafka. Nothing waits
for time: Kafka runs with one network and one request thread (`ORDERED`), so it carries out requests
sent before a round trip before those sent after it, and `Pair.settle` asks for the group and its
offsets until both brokers say the same.

Member ids, topic ids and producer ids differ, so they are replaced by their order before answers
are compared.

Without a port only broker_sim is asked. Its `transcript` then equals that of both when they agree.
"""

from __future__ import annotations

import re
import select
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from support.brokers.probe import pause, read_exactly
from support.core.broker_build import BrokerOnDisk, request
from support.harness.transcripts import digest
from support.raw.raw import Connection

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.framing import decode_response, encode_request
from txnlog_kafka.wire.messages import ApiKey, api_of
from txnlog_kafka.wire.structs import StructValue

K = ApiKey
GROUPS = {
    "group.min.session.timeout.ms": "6000",
    "group.max.size": "3",
    "group.consumer.max.size": "3",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.migration.policy": "disabled",
    "offsets.topic.num.partitions": "1",
}
"""Configurations of both brokers."""
ORDERED = {"num.network.threads": "1", "num.io.threads": "1"}
ADMIN = "admin"
RETRIES = 1_300
"""A minute: a busy machine may take seconds for what one request began."""
TRIES_WITHOUT_PAUSE = 100
UUID_LENGTH = 36
MEMBER_ID = re.compile(r".*-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NOT_YET = {
    "CONCURRENT_TRANSACTIONS",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
}

OWN_WORDS = {("ConsumerGroupHeartbeatResponse", "error_message")}
"""Fields that are not compared: each broker says why in its own words."""

Plain = Any
"""A message as dicts, lists and plain values, ids replaced."""


class OtherLeader(Exception):
    """Kafka chose another of the remaining members as leader: from here on the groups differ."""


def tries() -> Iterator[int]:
    """Count up to RETRIES, the first ones without pauses."""
    for attempt in range(RETRIES):
        yield attempt
        if attempt > TRIES_WITHOUT_PAUSE:
            pause()


class Wire(Connection):
    """A connection on which an answer may come much later than its request."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._waiting: tuple[Any, int] | None = None

    def send(self, message: Any, version: int) -> None:
        """Send one request; the next is allowed once its answer was read."""
        assert self._waiting is None
        self._correlation_id += 1
        self.send_bytes(encode_request(message, version, self._correlation_id, "raw"))
        self._waiting = (api_of(message), version)

    def receive(self) -> Any:
        assert self._waiting is not None
        try:
            (size,) = struct.unpack(">i", read_exactly(self.socket, 4))
            answer = read_exactly(self.socket, size)
        except (TimeoutError, EOFError) as error:
            raise AssertionError(f"Apache Kafka, asked {self._waiting}: {error}") from None
        assert struct.unpack_from(">i", answer) == (self._correlation_id,)
        (api, version), self._waiting = self._waiting, None
        return decode_response(api, version, answer)

    def has_answer(self) -> bool:
        return bool(select.select([self.socket], [], [], 0)[0])


@dataclass
class Names:
    """Ids of one broker, in the order in which the broker gave them out."""

    members: list[str] = field(default_factory=list)
    topics: dict[str, uuid.UUID] = field(default_factory=dict)

    def learn(self, answer: Any) -> None:
        """A member id that its owner is told."""
        member_id = getattr(answer, "member_id", None)
        if member_id and member_id not in self.members:
            self.members.append(member_id)

    def member(self, index: int | None) -> str:
        """Return the member id given out as the `index`-th; for -1 an unknown one, for None ""."""
        if index is None:
            return ""
        return self.members[index] if index >= 0 else "nobody"

    def plain(self, value: Any) -> Plain:
        """A message without what may differ: ids by their order, lists of structs sorted."""
        if isinstance(value, str) and value in self.members:
            return f"<member {self.members.index(value)}>"
        if isinstance(value, str) and MEMBER_ID.fullmatch(value):
            # Of a member whose first JoinGroup is parked: nobody was told it.
            return f"<member of {value[:-UUID_LENGTH]}>"
        if isinstance(value, uuid.UUID):
            known = {topic_id: name for name, topic_id in self.topics.items()}
            return f"<topic {known.get(value)}>"
        if isinstance(value, list):
            plain = [self.plain(each) for each in value]
            return sorted(plain, key=repr)
        if not isinstance(value, StructValue):
            return value
        own = type(value).__name__
        return {
            name: self.plain(getattr(value, name))
            for name in value.DEFAULTS
            if (own, name) not in OWN_WORDS
        }


class Pair:
    """The same requests to both, or to ours alone; `connection` names one at each."""

    def __init__(self, ours: BrokerOnDisk, port: int | None) -> None:
        self.ours, self._port = ours, port
        self._wires: dict[str, Wire] = {}
        self._numbers: dict[str, int] = {}
        self._parked: dict[str, tuple[int, int]] = {}
        self.names = (Names(),) if port is None else (Names(), Names())
        self.answers: dict[str, Plain] = {}
        """Answers that the last request brought, by connection, without the parked requests."""
        self.leader_is_open = False
        """The leader is gone: who is the next one depends on Kafka's random member ids."""
        self.transcript: list[str] = []
        """A digest of each request with what both told; may be taken away by its reader."""
        self.ends_at: int | None = None
        """Length of the transcript at which Kafka chose another leader, if broker_sim is asked
        alone."""

    def close(self) -> None:
        for wire in self._wires.values():
            wire.socket.close()

    def forget_parked(self) -> None:
        """Give up the connections on which an answer is awaited."""
        for connection in list(self._parked):
            del self._parked[connection]
            self._drop(connection)

    def _drop(self, connection: str) -> None:
        if self._port is not None:
            self._wires.pop(connection).socket.close()

    def wire(self, connection: str) -> Wire:
        assert self._port is not None
        if connection not in self._wires:
            self._wires[connection] = Wire(self._port)
        return self._wires[connection]

    def is_waiting(self, connection: str) -> bool:
        return connection in self._parked

    # ------------------------------------------------------------------ ask

    def ask(
        self, connection: str, make: Callable[[Names], Any], version: int, *, forgets: str = ""
    ) -> Plain | None:
        """Send `make(names)` to both; the answer, None when it is parked.

        All answers that this releases are compared. `forgets` is a connection whose parked request
        Kafka never answers, where ours does.
        """
        message, *twins = (make(names) for names in self.names)
        asked = connection, version, self.names[0].plain(message)
        number = self._numbers.setdefault(connection, len(self._numbers) + 1)
        assert connection not in self._parked
        self._parked[connection] = self.ours.send(message, version, connection_id=number)
        self.ours.advance(1)
        for twin in twins:
            self.wire(connection).send(twin, version)
        self._read_released(forgets)
        self.transcript.append(digest((asked, self.answers)))
        return self.answers.get(connection)

    def _read_released(self, forgets: str) -> None:
        asked = self.ours.asked.answers
        released = {name: asked.pop(key) for name, key in self._parked.items() if key in asked}
        for connection in released:
            del self._parked[connection]
        if forgets in released:
            del released[forgets]
            self._drop(forgets)
        both = {name: [answer] for name, answer in released.items()}
        if self._port is not None:
            for name, answers in both.items():
                answers.append(self.wire(name).receive())
        for answers in both.values():
            for names, answer in zip(self.names, answers, strict=True):
                names.learn(answer)
        self.answers = {}
        self._check_leaders(list(both.values()))
        self.answers = {name: self._agreed(answers) for name, answers in both.items()}

    def _check_leaders(self, both: list[list[Any]]) -> None:
        if len(self.transcript) == self.ends_at:
            raise OtherLeader
        for answers in both:
            leaders = [getattr(answer, "leader", "") for answer in answers]
            if not all(leaders):
                continue
            indexes = {
                names.members.index(leader)
                for names, leader in zip(self.names, leaders, strict=True)
            }
            if len(indexes) > 1 and self.leader_is_open:
                raise OtherLeader
            self.leader_is_open = False

    def _agreed(self, answers: list[Any]) -> Plain:
        """Return what all answers say; fail if they differ."""
        told = [names.plain(each) for names, each in zip(self.names, answers, strict=True)]
        assert all(each == told[0] for each in told), f"{answers[0]} but Kafka: {answers[1:]}"
        return told[0]

    def retry(
        self, make: Callable[[Names], Any], version: int, code: Callable[[Any], int]
    ) -> list[Any]:
        """Ask both until Kafka's coordinator is there and idle; the answers as they are."""
        message, *twins = (make(names) for names in self.names)
        answers = [self.ours.ask(message, version, connection_id=0)]
        return answers + [self._retry_on_kafka(twin, version, code) for twin in twins]

    def _retry_on_kafka(self, twin: Any, version: int, code: Callable[[Any], int]) -> Any:
        for _ in tries():
            theirs = self.wire(ADMIN).ask(twin, version)
            if error_name(code(theirs)) not in NOT_YET:
                return theirs
        raise AssertionError(f"Apache Kafka stays at {error_name(code(theirs))}")

    def agree(self, what: str, told: list[Plain]) -> Plain:
        """Return what both brokers said of `what`; fail if they differ. The transcript gets it
        too."""
        assert all(each == told[0] for each in told), f"{told[0]} but Kafka: {told[1:]}"
        self.transcript.append(digest((what, told[0])))
        return told[0]

    # ------------------------------------------------------------------ settle

    def settle(self, views: list[tuple[Callable[[Names], Any], int]]) -> list[Plain]:
        """Ask for `views` until both tell the same; what they tell."""
        told: list[Plain] = []
        for make, version in views:
            ours = self.ours.ask(make(self.names[0]), version, connection_id=0)
            told.append(self.names[0].plain(ours))
            for names in self.names[1:]:
                self._wait_to_tell(told[-1], make(names), version)
        if self._port is not None:
            for connection in self._parked:
                assert not self.wire(connection).has_answer(), f"Kafka answered {connection}"
        self.transcript.append(digest(told))
        return told

    def _wait_to_tell(self, expected: Plain, twin: Any, version: int) -> None:
        for _ in tries():
            theirs = self.names[1].plain(self.wire(ADMIN).ask(twin, version))
            if theirs == expected:
                return
        raise AssertionError(f"{expected} but Kafka: {theirs}")


def find_coordinators(pair: Pair, group: str, transactional_id: str) -> None:
    """Have both brokers make their internal topics, and wait for all of Kafka's coordinators."""
    for key_type, key in ((0, group), (1, transactional_id)):
        message = request(K.FIND_COORDINATOR, key_type=key_type, coordinator_keys=[key])
        pair.retry(lambda _, m=message: m, 4, lambda answer: answer.coordinators[0].error_code)
    probes = request(K.DESCRIBE_GROUPS, groups=[f"probe-{number}" for number in range(64)])
    pair.retry(lambda _: probes, 5, lambda answer: max(g.error_code for g in answer.groups))
