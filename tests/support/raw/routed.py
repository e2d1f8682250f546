"""Requests by hand where there are several brokers: each goes to the one that it is for.

As a real client does: to the leader of its partition or the coordinator of its transactional id or
group, to that broker whose options it is about, else to any. A broker that says it is not the one,
or does not know yet what another one knows, is asked again, and so is another one when it has
gone; what is answered at last is the answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from support.brokers.coordinators_ready import GROUP, TRANSACTION
from support.brokers.probe import ports_of
from support.core.plain_messages import error_codes, plain
from support.raw.raw import Connection, attempts
from support.raw.requests import find_coordinator, request

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import ApiKey, api_of

Topic = str | uuid.UUID
BROKER = 4
"""The type of a broker's configuration resource."""
METADATA_VERSION = 12
NO_PARTITION = -2
"""Value in place of a leader's id if the partition is unknown; -1 is a partition without a
leader."""
NOT_YET = {
    "NOT_LEADER_OR_FOLLOWER",
    "LEADER_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_CONTROLLER",
    "NOT_ENOUGH_REPLICAS",
}
"""Another broker is the right one, or this one in a moment."""
UNHEARD = {"UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID"}

PARTITIONS: dict[ApiKey, Callable[[Any], tuple[Topic, int]]] = {
    ApiKey.PRODUCE: lambda m: (
        m.topic_data[0].name or m.topic_data[0].topic_id,
        m.topic_data[0].partition_data[0].index,
    ),
    ApiKey.LIST_OFFSETS: lambda m: (m.topics[0].name, m.topics[0].partitions[0].partition_index),
    ApiKey.DELETE_RECORDS: lambda m: (m.topics[0].name, m.topics[0].partitions[0].partition_index),
    ApiKey.DESCRIBE_PRODUCERS: lambda m: (m.topics[0].name, m.topics[0].partition_indexes[0]),
    ApiKey.WRITE_TXN_MARKERS: lambda m: (
        m.markers[0].topics[0].name,
        m.markers[0].topics[0].partition_indexes[0],
    ),
}
"""Requests that go to a leader, and the partition that each of them names."""
NAMED: dict[ApiKey, Callable[[Any], tuple[Topic, int]]] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda m: (
        m.v3_and_below_topics[0].name,
        m.v3_and_below_topics[0].partitions[0],
    ),
    ApiKey.TXN_OFFSET_COMMIT: lambda m: (
        m.topics[0].name,
        m.topics[0].partitions[0].partition_index,
    ),
}
"""Requests that go to a coordinator that must have heard of a partition, and that partition."""
COORDINATED: dict[ApiKey, Callable[[Any], tuple[int, str | None]]] = {
    ApiKey.INIT_PRODUCER_ID: lambda m: (TRANSACTION, m.transactional_id),
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda m: (TRANSACTION, m.v3_and_below_transactional_id),
    ApiKey.ADD_OFFSETS_TO_TXN: lambda m: (TRANSACTION, m.transactional_id),
    ApiKey.END_TXN: lambda m: (TRANSACTION, m.transactional_id),
    ApiKey.DESCRIBE_TRANSACTIONS: lambda m: (TRANSACTION, m.transactional_ids[0]),
    ApiKey.TXN_OFFSET_COMMIT: lambda m: (GROUP, m.group_id),
    ApiKey.OFFSET_FETCH: lambda m: (GROUP, m.groups[0].group_id),
    ApiKey.OFFSET_COMMIT: lambda m: (GROUP, m.group_id),
    ApiKey.JOIN_GROUP: lambda m: (GROUP, m.group_id),
    ApiKey.SYNC_GROUP: lambda m: (GROUP, m.group_id),
    ApiKey.LEAVE_GROUP: lambda m: (GROUP, m.group_id),
    ApiKey.DELETE_GROUPS: lambda m: (GROUP, m.groups_names[0]),
}
"""Requests that go to a coordinator, and the key that each of them names."""


def connect(broker: Any) -> Connection | RoutedConnection:
    """Return a connection to a broker, or to the brokers of a cluster. A context manager."""
    ports = ports_of(broker.bootstrap_servers)
    if len(ports) == 1:
        return Connection(ports[0])
    return RoutedConnection(ports, has_kill=broker.has_kill)


def leader(broker: Any, topic: str, partition: int = 0) -> Connection:
    """A connection to who leads a partition now. A context manager."""
    with RoutedConnection(ports_of(broker.bootstrap_servers)) as all_of_them:
        return Connection(all_of_them.leader(topic, partition))


class RoutedConnection:
    """Has the methods of one connection. What is for any broker goes to the same one while it is
    up, so that nothing is seen and then unseen."""

    def __init__(self, ports: list[int], *, has_kill: bool = False) -> None:
        self._ports = ports
        self._connections: dict[int, Connection] = {}
        self.lost_answers = 0
        """Number of brokers that went away with an answer, so that a request may have been carried
        out."""
        self.has_kill = has_kill
        """True if a broker is killed meanwhile: brokers then lose answers of each other, too."""

    def __enter__(self) -> RoutedConnection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for each in self._connections.values():
            each.socket.close()

    def ask(self, message: Any, version: int) -> Any:
        """Send one request to the broker that it is for, return the answer's message."""
        answer: Any = None
        for _ in attempts():
            try:
                if api_of(message).key is ApiKey.LIST_TRANSACTIONS:
                    answer = self._of_all(message, version)
                else:
                    answer = self._to(self._port_for(message)).ask(message, version)
                if not self._comes_too_soon(message, answer):
                    return answer
            except (OSError, EOFError):
                self._forget()
        raise AssertionError(f"no final answer to {message}, the last one was {answer}")

    def _of_all(self, message: Any, version: int) -> Any:
        """Ask all brokers, and return one answer with the transactions that each of them lists."""
        answers = [self._to(port).ask(message, version) for port in self._ports]
        first = next((each for each in answers if each.error_code), answers[0])
        first.transaction_states = [t for each in answers for t in each.transaction_states]
        return first

    def _to(self, port: int) -> Connection:
        if port not in self._connections:
            self._connections[port] = Connection(port)
        return self._connections[port]

    def _forget(self) -> None:
        """Ask another broker first from now on: a broker has gone."""
        self.lost_answers += 1
        for each in self._connections.values():
            each.socket.close()
        self._connections = {}
        self._ports = [*self._ports[1:], self._ports[0]]

    def _port_for(self, message: Any) -> int:
        key = api_of(message).key
        if key in PARTITIONS:
            return self.leader(*PARTITIONS[key](message))
        if key in COORDINATED:
            return self._coordinator(*COORDINATED[key](message))
        if key in (ApiKey.DESCRIBE_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
            return self._with_options_of(message.resources)
        return self._ports[0]

    def _with_options_of(self, resources: list[Any]) -> int:
        named = [each.resource_name for each in resources if each.resource_type == BROKER]
        brokers = {str(each.node_id): each.port for each in self._metadata([]).brokers}
        return next((brokers[name] for name in named if name in brokers), self._ports[0])

    def _metadata(self, topics: list[Any]) -> Any:
        message = request(ApiKey.METADATA, topics=topics, allow_auto_topic_creation=False)
        return self._to(self._ports[0]).ask(message, METADATA_VERSION)

    def _known(self, topic: Topic, partition: int) -> tuple[Any, int]:
        """Return what the first broker knows: (all brokers, the leader's id or NO_PARTITION)."""
        by_name = isinstance(topic, str)
        found = self._metadata([{"name": topic} if by_name else {"name": None, "topic_id": topic}])
        places = found.topics[0].partitions
        leaders = [each.leader_id for each in places if each.partition_index == partition]
        return found.brokers, leaders[0] if leaders else NO_PARTITION

    def leader(self, topic: Topic, partition: int) -> int:
        """The port of who leads it; of any broker when there is no such partition."""
        for _ in attempts():
            brokers, leader = self._known(topic, partition)
            ports = [each.port for each in brokers if each.node_id == leader]
            if ports or leader == NO_PARTITION:
                return ports[0] if ports else self._ports[0]
        raise AssertionError(f"nobody leads {topic}-{partition}")

    def _coordinator(self, key_type: int, name: str | None) -> int:
        if not name:
            return self._ports[0]
        message = find_coordinator(key_type, name)
        for _ in attempts():
            (found,) = self._to(self._ports[0]).ask(message, 4).coordinators
            if error_name(found.error_code) not in NOT_YET:
                return found.port if found.error_code == 0 else self._ports[0]
        raise AssertionError(f"nobody coordinates {name!r}")

    def _comes_too_soon(self, message: Any, answer: Any) -> bool:
        errors = {error_name(code) for code in error_codes(plain(answer))}
        if errors & UNHEARD:
            key = api_of(message).key
            place = (PARTITIONS | NAMED).get(key)
            return place is not None and self._known(*place(message))[1] != NO_PARTITION
        return bool(errors & NOT_YET)
