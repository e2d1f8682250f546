"""Group of the consumer protocol (KIP-848): epochs, members, target and current assignments.

Rules for this file: state changes in `apply` only, by a record, live and at load alike. It has no
timer and no request; it answers questions about the group. A change is made on a `copy`, which
takes the group's place when the log has its records. Source: Kafka's `ConsumerGroup`.
"""

from __future__ import annotations

import copy
import enum
import hashlib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from broker_sim.core.controller.image import Topic
from broker_sim.core.group.classic_group import CONSUMER_PROTOCOL_TYPE
from broker_sim.core.group.consumer_records import (
    ConsumerGroupRecord,
    Current,
    EpochPartitions,
    GroupEpoch,
    Partitions,
    RecordKind,
    ResolvedRegex,
    Subscription,
    Target,
    TargetEpoch,
)
from broker_sim.core.group.reconciliation import is_reconciled
from txnlog_kafka.wire.error_codes import ErrorCode

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
"""Epoch of a static member that is away and keeps its assignment until its session ends."""
NO_EPOCH = -1
FIRST_EPOCH = 1
"""Epoch of a new group and of its empty target assignment; the first change begins epoch 2."""

_MAPPINGS = ("members", "static_members", "targets", "regexes", "owners")
_K = RecordKind
_E = ErrorCode


class ConsumerGroupState(enum.Enum):
    """The value is Kafka's name. The state follows from epochs and members.

    EMPTY: no member. A member joins -> ASSIGNING.
    ASSIGNING: the group epoch is ahead of the target assignment. The assignor ran -> RECONCILING.
    RECONCILING: some member does not have its target yet. All have -> STABLE.
    STABLE: every member has its target.
    DEAD: shown for groups that do not exist.
    """

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


_S = ConsumerGroupState


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """Member: what its heartbeats said, and where it stands."""

    member_id: str
    subscription: Subscription = field(default_factory=Subscription)
    current: Current = field(default_factory=Current)

    @property
    def is_classic(self) -> bool:
        """True if the member speaks the classic protocol."""
        return self.subscription.classic is not None

    @property
    def stale_epoch(self) -> ErrorCode:
        """Error of a request with another epoch, in the words of the member's protocol."""
        return _E.ILLEGAL_GENERATION if self.is_classic else _E.STALE_MEMBER_EPOCH


class ConsumerGroup:
    """The group; see the module's docstring."""

    uses_consumer_protocol = True
    protocol_type = CONSUMER_PROTOCOL_TYPE

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.target_epoch = FIRST_EPOCH
        self.target_ms = 0
        """When the target was made; 0 if there is none yet."""
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        self.targets: dict[str, Partitions] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.owners: dict[tuple[uuid.UUID, int], str] = {}
        """Member that owns a partition, also as one that it must give up."""

    def copy(self) -> ConsumerGroup:
        """Return a group that can be changed while this one stays as it is."""
        other = copy.copy(self)
        for name in _MAPPINGS:
            setattr(other, name, dict(getattr(self, name)))
        return other

    # ---------------------------------------------------------------- questions

    @property
    def state(self) -> ConsumerGroupState:
        """The state, from epochs and members."""
        if not self.members:
            return _S.EMPTY
        if self.epoch > self.target_epoch:
            return _S.ASSIGNING
        members = self.members.values()
        if all(is_reconciled(member.current, self.target_epoch) for member in members):
            return _S.STABLE
        return _S.RECONCILING

    @property
    def is_empty(self) -> bool:
        """True if the group has no member."""
        return not self.members

    def is_free(self, topic_id: uuid.UUID, partition: int) -> bool:
        """True if no member owns the partition, also as one that it must revoke."""
        return (topic_id, partition) not in self.owners

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """The member that has the instance id."""
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def topics_of(self, subscription: Subscription) -> frozenset[str]:
        """Names of the topics that a member reads. An unresolved expression matches no topic."""
        resolved = self.regexes.get(subscription.topic_regex)
        return subscription.topic_names | (resolved.topics if resolved else frozenset())

    def subscribed_topics(self) -> set[str]:
        """Names of the topics that some member reads."""
        return {
            topic
            for member in self.members.values()
            for topic in self.topics_of(member.subscription)
        }

    def is_subscribed_to(self, topic: str) -> bool:
        """True if some member reads the topic."""
        return topic in self.subscribed_topics()

    def regex_counts(self) -> dict[str, int]:
        """Number of members by their regular expression."""
        counts: dict[str, int] = {}
        for member in self.members.values():
            regex = member.subscription.topic_regex
            if regex:
                counts[regex] = counts.get(regex, 0) + 1
        return counts

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """True if another member owns a partition of the member's target."""
        assigned, target = member.current.assigned, self.targets.get(member.member_id, {})
        return any(
            not self.is_free(topic_id, partition)
            for topic_id, partitions in target.items()
            for partition in partitions
            if partition not in assigned.get(topic_id, {})
        )

    def refuse_commit(
        self, member_id: str, epoch: int, partitions: Iterable[tuple[uuid.UUID, int]]
    ) -> ErrorCode:
        """Return the error of a wrong epoch: newer, or older than the member's time with some
        partition.

        An older epoch passes for partitions that the member has had since: the answer with its new
        epoch may be on its way (KIP-1251).
        """
        member = self.members[member_id]
        current = member.current
        if epoch == current.epoch:
            return _E.NONE
        if epoch > current.epoch:
            return member.stale_epoch
        for topic_id, partition in partitions:
            since = _epoch_of(current.assigned, topic_id, partition)
            if since is None:
                since = _epoch_of(current.pending_revocation, topic_id, partition)
            if since is None or epoch < since:
                return member.stale_epoch
        return _E.NONE

    def refuse_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Return the error that refuses an OffsetFetch; without a member it always passes."""
        if member_id is None and epoch < 0:
            return _E.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return _E.UNKNOWN_MEMBER_ID
        return _E.NONE if epoch == member.current.epoch else member.stale_epoch

    # ---------------------------------------------------------------- changes

    def apply(self, record: ConsumerGroupRecord) -> None:
        """Change the group as the record says. A tombstone of an unknown member changes nothing."""
        name, value = record.name, record.value
        match record.kind:
            case _K.GROUP_EPOCH:
                made = value if isinstance(value, GroupEpoch) else GroupEpoch(0)
                self.epoch, self.metadata_hash = made.epoch, made.metadata_hash
            case _K.TARGET_EPOCH:
                target = value if isinstance(value, TargetEpoch) else TargetEpoch(NO_EPOCH)
                self.target_epoch, self.target_ms = target.epoch, target.timestamp_ms
            case _K.TARGET:
                self.targets.pop(name, None)
                if isinstance(value, Target):
                    self.targets[name] = value.partitions
            case _K.REGEX:
                self.regexes.pop(name, None)
                if isinstance(value, ResolvedRegex):
                    self.regexes[name] = value
            case _K.MEMBER:
                self._set_subscription(name, value if isinstance(value, Subscription) else None)
            case _K.CURRENT:
                self._set_current(name, value if isinstance(value, Current) else None)

    def _set_subscription(self, member_id: str, value: Subscription | None) -> None:
        member = self.members.get(member_id, ConsumerMember(member_id))
        instance_id = member.subscription.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]
        if value is not None:
            self.members[member_id] = replace(member, subscription=value)
            if value.instance_id is not None:
                self.static_members[value.instance_id] = member_id
            return
        self._set_current(member_id, None)
        self.members.pop(member_id, None)

    def _set_current(self, member_id: str, value: Current | None) -> None:
        member = self.members.get(member_id)
        if member is None:
            if value is None:
                return
            member = ConsumerMember(member_id)
        following = value or Current(LEAVE_EPOCH, LEAVE_EPOCH)
        for place in _places(member.current):
            if self.owners.get(place) == member_id:
                del self.owners[place]
        for place in _places(following):
            self.owners[place] = member_id
        self.members[member_id] = replace(member, current=following)

    def tombstones(self) -> list[ConsumerGroupRecord]:
        """Return the records that delete the group with its members, in Kafka's order."""
        members = sorted(self.members)
        names = [(_K.CURRENT, name) for name in members]
        names += [(_K.TARGET, name) for name in sorted({*self.targets, *members})]
        names += [(_K.TARGET_EPOCH, ""), *((_K.MEMBER, name) for name in members)]
        names += [*((_K.REGEX, name) for name in sorted(self.regexes)), (_K.GROUP_EPOCH, "")]
        return [ConsumerGroupRecord(kind, self.group_id, name, None) for kind, name in names]


def _places(current: Current) -> list[tuple[uuid.UUID, int]]:
    owned = current.owned
    return [(topic_id, partition) for topic_id in owned for partition in owned[topic_id]]


def _epoch_of(partitions: EpochPartitions, topic_id: uuid.UUID, partition: int) -> int | None:
    return partitions.get(topic_id, {}).get(partition)


def topic_digest(topic: Topic, racks: Mapping[int, str]) -> bytes:
    """Return a digest of what an assignment depends on: id, partitions, and their racks.

    `racks` has the racks of brokers, by id, without brokers that have none.
    """
    lines = [f"{topic.name} {topic.topic_id} {topic.partition_count}"]
    for partition in topic.partitions if racks else ():
        lines.append(repr(sorted(racks[each] for each in partition.replicas if each in racks)))
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).digest()


def metadata_hash(digests: Mapping[str, bytes]) -> int:
    """Return a signed 64-bit hash of topics, by name their digest; 0 for none.

    Another hash than Kafka's: it is only compared with itself.
    """
    if not digests:
        return 0
    parts = b"".join(digests[name] for name in sorted(digests))
    return int.from_bytes(hashlib.blake2b(parts, digest_size=8).digest(), "big", signed=True)
