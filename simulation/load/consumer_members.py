"""Members of a consumer group of KIP-848: the coordinator assigns, and heartbeats reconcile.

A member reads, commits and heartbeats in turn, so a partition that a heartbeat takes away is not
read after that answer, and the next heartbeat reports what is left. A member that does not know its
epoch any more joins again. What it commits carries its epoch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simulation.checkers.group_history import GroupHistory
from simulation.load.group_members import GROUP_ID, Copier, Joined, Member
from simulation.load.routing import GROUP, RETRY_MS, Routing, ask_once
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

REBALANCE_MS = 3_000
"""Time that a member has to give partitions up."""
LOST_HEARTBEATS_MAX = 5
JOIN_EPOCH, LEAVE_EPOCH = 0, -1

_BEAT = APIS[ApiKey.CONSUMER_GROUP_HEARTBEAT].request
_DESCRIBE = APIS[ApiKey.CONSUMER_GROUP_DESCRIBE].request


@dataclass(slots=True)
class ConsumerHistory(GroupHistory):
    """History of such a group. Members are in epochs of their own; a partition goes to another
    member in a newer epoch alone."""

    topic_id: uuid.UUID | None = None
    ids: int = 0
    """Count of the member ids that were made."""
    _newest: dict[int, int] = field(default_factory=dict)
    """By partition: the epoch in which it went to another member."""
    _readers: dict[int, str] = field(default_factory=dict)
    """By partition: the member that was answered last that it reads it."""

    def on_assigned(self, generation: int, owner: str, partitions: Iterable[int]) -> None:
        """A member was answered what it has to read. Raises Violation (74)."""
        answered = list(partitions)
        GroupHistory.on_assigned(self, generation, owner, answered)
        for partition in answered:
            if self._readers.get(partition) != owner:
                self._readers[partition] = owner
                self._newest[partition] = max(generation, self._newest.get(partition, 0))

    def on_commit_sent(self, generation: int, offsets: Mapping[int, int]) -> int:
        """A commit leaves; returns the newest epoch in which its partitions changed hands."""
        GroupHistory.on_commit_sent(self, generation, offsets)
        return max(self._newest.get(partition, 0) for partition in offsets)


class ConsumerMember(Member):
    """A member of the group, from its start on; see the module."""

    __slots__ = ()
    anew = Member.anew | {ErrorCode.UNRELEASED_INSTANCE_ID}

    def _leave(self) -> Operation[None]:
        if self._member_id:
            yield from self._once(self._request(LEAVE_EPOCH))

    @property
    def _consumers(self) -> ConsumerHistory:
        history = self.history
        if not isinstance(history, ConsumerHistory):
            raise TypeError(f"a member of a consumer group has the history {history}")
        return history

    def _request(self, epoch: int, **more: object) -> Message:
        return _BEAT(
            group_id=GROUP_ID, member_id=self._member_id, member_epoch=epoch,
            instance_id=self.instance_id, **more,
        )  # fmt: skip

    def _join(self) -> Operation[Joined | None]:
        if not self._member_id:
            self._consumers.ids += 1
            self._member_id = f"{self.name}-{self._consumers.ids}"
        request = self._request(
            JOIN_EPOCH, rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=[self.topic],
            topic_partitions=[],
        )  # fmt: skip
        answer = yield from self._once(request)
        if answer is None or not self._is_right(answer.error_code):
            return None
        return self._answered(answer, ())

    def _answered(self, answer: Message, before: Iterable[int]) -> Joined:
        """The membership that an answer tells; without an assignment it is that of before."""
        partitions = [*before]
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            partitions = sorted(number for each in topics for number in each.partitions)
            if topics:
                self._consumers.topic_id = topics[0].topic_id
        owner = self.instance_id or self._member_id
        self.history.on_assigned(answer.member_epoch, owner, partitions)
        return Joined(answer.member_epoch, self._member_id, partitions)

    def _beat(self, joined: Joined) -> Operation[Joined | None]:
        owned_type = _BEAT.TopicPartitions
        owned = [owned_type(topic_id=self._consumers.topic_id, partitions=[*joined.partitions])]
        more: dict[str, Any] = {"topic_partitions": owned if joined.partitions else []}
        for _ in range(LOST_HEARTBEATS_MAX):
            answer = yield from self._once(self._request(joined.generation, **more))
            if answer is not None and answer.error_code == ErrorCode.NONE:
                return self._answered(answer, joined.partitions)
            if answer is not None:
                self._is_right(answer.error_code)
                if answer.error_code in self.anew | {ErrorCode.FENCED_MEMBER_EPOCH}:
                    return None
            # The answer to a full request has the assignment, which the lost answer may have had.
            more |= {"rebalance_timeout_ms": REBALANCE_MS, "subscribed_topic_names": [self.topic]}
            yield Sleep(RETRY_MS)
        return None


class ConsumerCopier(ConsumerMember, Copier):
    """A member that copies what it reads, each record once."""

    __slots__ = ()


def describe_consumers(places: Routing) -> Operation[tuple[str, int] | None]:
    """The group's state and how many members it has; None when that is not known."""
    node = yield from places.coordinator(GROUP, GROUP_ID)
    request = _DESCRIBE(group_ids=[GROUP_ID], include_authorized_operations=False)
    answer = yield from ask_once(node, request)
    found = None if answer is None else answer.groups[0]
    if found is not None and found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return "Dead", 0
    if found is None or found.error_code:
        places.forget()
        return None
    return found.group_state, len(found.members)
