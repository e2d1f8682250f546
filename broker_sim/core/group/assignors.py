"""The assignors of consumer groups, `uniform` and `range`: pure functions of members and topics.

Members are taken in the order of their ids (static ones by instance id first for `range`), topics
in the order of their ids, so that a run can be repeated. Kafka takes both in the order of hash
maps, so another member may get the odd partition there. Source: Kafka's `UniformAssignor` and
`RangeAssignor`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from broker_sim.core.group.consumer_records import Partitions

TopicPartitionId = tuple[uuid.UUID, int]
PartitionCounts = Mapping[uuid.UUID, int]

BALANCE_ROUNDS_MAX = 16
"""Times that the topics are balanced one after the other; Kafka's constant."""


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member as an assignor sees it: topics that it reads, and its target until now."""

    instance_id: str | None = None
    topics: frozenset[uuid.UUID] = frozenset()
    assigned: Partitions = field(default_factory=dict)


Members = Mapping[str, MemberSpec]
Assignor = Callable[[Members, PartitionCounts], dict[str, Partitions]]


def assign_range(members: Members, counts: PartitionCounts) -> dict[str, Partitions]:
    """Divide each topic into ranges for its subscribers, in their order."""
    order = sorted(members, key=lambda name: _range_order(name, members[name]))
    assignment: dict[str, dict[uuid.UUID, frozenset[int]]] = {name: {} for name in order}
    for topic_id in sorted(counts):
        readers = [name for name in order if topic_id in members[name].topics]
        start = 0
        for place, name in enumerate(readers):
            end = start + _quota(counts[topic_id], len(readers), place)
            if end > start:
                assignment[name][topic_id] = frozenset(range(start, end))
            start = end
    return dict(assignment)


def _range_order(member_id: str, member: MemberSpec) -> tuple[bool, str]:
    is_dynamic = member.instance_id is None
    return is_dynamic, member_id if member.instance_id is None else member.instance_id


def _quota(partitions: int, members: int, place: int) -> int:
    return partitions // members + (1 if place < partitions % members else 0)


def assign_uniform(members: Members, counts: PartitionCounts) -> dict[str, Partitions]:
    """Give members equal numbers of partitions, and leave them what they have if possible."""
    if len({member.topics for member in members.values()}) == 1:
        return _Uniform(members, counts).assign_equal_subscriptions()
    return _Uniform(members, counts).assign_different_subscriptions()


class _Uniform:
    """The assignment while it is made: the owner of each partition."""

    def __init__(self, members: Members, counts: PartitionCounts) -> None:
        self._members = members
        self._counts = counts
        self._order = sorted(members)
        self._owned: dict[str, list[TopicPartitionId]] = {name: [] for name in self._order}
        self._readers = {
            topic_id: [name for name in self._order if topic_id in members[name].topics]
            for topic_id in counts
        }

    def assign_equal_subscriptions(self) -> dict[str, Partitions]:
        """Assign when all members read the same topics: their numbers differ by one at most.

        A member that has one partition more keeps it; else the last members get the odd ones.
        """
        total = sum(self._counts[topic_id] for topic_id in self._counts if self._readers[topic_id])
        least, odd = divmod(total, len(self._order))
        for name in self._order:
            self._owned[name] = self._kept(name)
        free, missing = self._unassigned(), dict.fromkeys(self._order, 0)
        for place, name in enumerate(self._order):
            kept, must_take_odd = self._owned[name], len(self._order) - place <= odd
            quota = least + (odd > 0 and (len(kept) > least or must_take_odd))
            odd -= quota - least
            self._owned[name] = kept[:quota]
            free += kept[quota:]
            missing[name] = max(quota - len(kept), 0)
        left = iter(free)
        for name in self._order:
            self._owned[name] += islice(left, missing[name])
        return self._result()

    def assign_different_subscriptions(self) -> dict[str, Partitions]:
        """Members read different topics: each partition to its reader with the fewest, then move
        partitions from readers with many to readers with few."""
        for name in self._order:
            self._owned[name] = self._kept(name)
        unassigned = self._unassigned()
        for topic_id in self._hardest_first():
            for partition in [each for each in unassigned if each[0] == topic_id]:
                self._owned[self._fewest(topic_id)].append(partition)
        for _ in range(BALANCE_ROUNDS_MAX):
            moves = [self._balance(topic_id) for topic_id in self._hardest_first()]
            if not any(moves):
                break
        return self._result()

    def _kept(self, name: str) -> list[TopicPartitionId]:
        """Partitions of its old target that it still reads, and that exist."""
        member = self._members[name]
        return [
            (topic_id, partition)
            for topic_id in sorted(member.assigned)
            if topic_id in member.topics
            for partition in sorted(member.assigned[topic_id])
            if partition < self._counts.get(topic_id, 0)
        ]

    def _unassigned(self) -> list[TopicPartitionId]:
        owned = {each for partitions in self._owned.values() for each in partitions}
        return [
            (topic_id, partition)
            for topic_id in sorted(self._counts)
            if self._readers[topic_id]
            for partition in range(self._counts[topic_id])
            if (topic_id, partition) not in owned
        ]

    def _hardest_first(self) -> list[uuid.UUID]:
        """Topics with many partitions for each reader first; of equals those with few readers."""

        def difficulty(topic_id: uuid.UUID) -> tuple[float, int, uuid.UUID]:
            readers = len(self._readers[topic_id])
            return -self._counts[topic_id] / readers, readers, topic_id

        return sorted((each for each in self._counts if self._readers[each]), key=difficulty)

    def _fewest(self, topic_id: uuid.UUID) -> str:
        return min(self._readers[topic_id], key=lambda name: len(self._owned[name]))

    def _balance(self, topic_id: uuid.UUID) -> bool:
        """Move partitions of one topic while this makes its readers more equal; True if any."""
        moved = False
        while True:
            owners = {
                name: [each for each in self._owned[name] if each[0] == topic_id]
                for name in self._readers[topic_id]
            }
            givers = [name for name, partitions in owners.items() if partitions]
            if not givers:
                return moved
            most = max(givers, key=lambda name: len(self._owned[name]))
            fewest = self._fewest(topic_id)
            if len(self._owned[most]) - len(self._owned[fewest]) <= 1:
                return moved
            partition = max(owners[most])
            self._owned[most].remove(partition)
            self._owned[fewest].append(partition)
            moved = True

    def _result(self) -> dict[str, Partitions]:
        result: dict[str, Partitions] = {}
        for name, partitions in self._owned.items():
            by_topic: dict[uuid.UUID, set[int]] = {}
            for topic_id, partition in partitions:
                by_topic.setdefault(topic_id, set()).add(partition)
            result[name] = {topic_id: frozenset(found) for topic_id, found in by_topic.items()}
        return result


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""By Kafka's names."""
