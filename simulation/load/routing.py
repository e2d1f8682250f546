"""Route of a plain client: the leader of a partition, or the coordinator of a group.

This is part of the simulator's own client, which shares no code with the connector's. With a single
broker no question is asked: it has everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from txnlog_kafka.operations.effects import ANY_NODE, Call, Calls, Operation, Reply, Sleep
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

READ_TIMEOUT_MS = 2_000
RETRY_MS = 200
METADATA_VERSION_MAX = 9
FIND_COORDINATOR_VERSION_MAX = 3
"""The last versions with names in place of ids, and with one key a request."""
NO_EPOCH = -1
GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators."""

_METADATA = APIS[ApiKey.METADATA].request
_FIND = APIS[ApiKey.FIND_COORDINATOR].request

Where = Callable[[], Operation[int]]
"""Finds the node to ask, when it is asked."""


@dataclass(slots=True)
class Routing:
    """Knowledge that a client has of a cluster of so many brokers."""

    brokers: int
    _leaders: dict[tuple[str, int], int] = field(default_factory=dict)
    _coordinators: dict[tuple[int, str], int] = field(default_factory=dict)
    _epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    """The highest leader epoch that was heard of; never forgotten."""

    def forget(self) -> None:
        """Forget the leaders and coordinators: they may have changed."""
        self._leaders.clear()
        self._coordinators.clear()

    def epoch(self, topic: str, partition: int) -> int:
        """Return the epoch for a request to the leader; -1 where there is one broker.

        No former leader answers a request that names the epoch (KIP-320).
        """
        return self._epochs.get((topic, partition), NO_EPOCH)

    def leader(self, topic: str, partition: int) -> Operation[int]:
        """The partition's leader, as soon as it has one."""
        if self.brokers == 1:
            return 0
        place = topic, partition
        while place not in self._leaders:
            yield from self._look_up_leaders(topic)
            if place not in self._leaders:
                yield Sleep(RETRY_MS)
        return self._leaders[place]

    def leaders(self, topic: str, partitions: Iterable[int]) -> Operation[dict[int, list[int]]]:
        """The partitions, by the node that leads them."""
        found: dict[int, list[int]] = {}
        for partition in partitions:
            found.setdefault((yield from self.leader(topic, partition)), []).append(partition)
        return found

    def coordinator(self, kind: int, key: str) -> Operation[int]:
        """The coordinator of a group or a transactional id."""
        if self.brokers == 1:
            return 0
        while (kind, key) not in self._coordinators:
            request = _FIND(key=key, key_type=kind)
            found = yield from ask_once(ANY_NODE, request, FIND_COORDINATOR_VERSION_MAX)
            if found is not None and found.error_code == 0:
                self._coordinators[kind, key] = int(found.node_id)
            else:
                yield Sleep(RETRY_MS)
        return self._coordinators[kind, key]

    def coordinators(self, kind: int, keys: Iterable[str]) -> Operation[dict[int, list[str]]]:
        """The groups or transactional ids, by the node that coordinates them."""
        found: dict[int, list[str]] = {}
        for key in keys:
            found.setdefault((yield from self.coordinator(kind, key)), []).append(key)
        return found

    def ask(
        self, message: Message, version_max: int | None = None, where: Where | None = None
    ) -> Operation[Message]:
        """Ask until there is an answer; the simulation ends a reader that asks for ever."""
        while True:
            node = ANY_NODE if where is None else (yield from where())
            answer = yield from ask_once(node, message, version_max)
            if answer is not None:
                return answer
            self.forget()
            yield Sleep(RETRY_MS)

    def _look_up_leaders(self, topic: str) -> Operation[None]:
        wanted = _METADATA.MetadataRequestTopic(name=topic)
        request = _METADATA(topics=[wanted], allow_auto_topic_creation=False)
        answer = yield from ask_once(ANY_NODE, request, METADATA_VERSION_MAX)
        for found in answer.topics if answer is not None else ():
            for each in found.partitions:
                place = topic, each.partition_index
                is_led = each.error_code == 0 and each.leader_id >= 0
                # A broker that stood still says what was.
                if is_led and each.leader_epoch >= self.epoch(*place):
                    self._leaders[place] = int(each.leader_id)
                    self._epochs[place] = int(each.leader_epoch)


def ask_once(
    node: int,
    message: Message,
    version_max: int | None = None,
    timeout_ms: int = READ_TIMEOUT_MS,
) -> Operation[Message | None]:
    """The answer of a node; None when there was none."""
    outcome = yield Calls((Call(node, message, timeout_ms, version_max),))
    answer = outcome[0] if isinstance(outcome, tuple) else None
    return answer.message if isinstance(answer, Reply) else None
