"""The group coordinator: the surface that handlers call; the work is in the modules beside it.

What waits for others, or changes the log, takes a `reply` that is called exactly once, in this
step or in a later one: JoinGroup when all members have joined or the timeout has passed, SyncGroup
when the leader's assignment is stored. The other requests are answered at once. Groups are of
Kafka's classic protocol or of its consumer protocol (KIP-848); offsets, their expiry and the shards
are shared (`GroupCoordinatorService`).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from types import MappingProxyType

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.image import ClusterImage
from broker_sim.core.coordinator.partition_writer import PartitionWriter
from broker_sim.core.coordinator.timers import KeyedTimers
from broker_sim.core.effects import Effects
from broker_sim.core.group.classic_group import ClassicGroup
from broker_sim.core.group.classic_members import ClassicMemberHandler
from broker_sim.core.group.consumer_group import ConsumerGroup
from broker_sim.core.group.consumer_heartbeat import ConsumerGroupHandler
from broker_sim.core.group.consumer_sessions import ConsumerSessions
from broker_sim.core.group.joining import JoinHandler
from broker_sim.core.group.membership import MembershipHandler
from broker_sim.core.group.offset_requests import NO_MEMBER, OffsetHandler
from broker_sim.core.group.rebalance import Rebalancer
from broker_sim.core.group.requests import (
    DescribedMember,
    GroupDescription,
    GroupListing,
    JoinGroupResult,
    ListedGroup,
    NewUuid,
    OffsetFetchResult,
    SyncGroupResult,
)
from broker_sim.core.group.shard import GroupShard, find_shard, group_runtime
from broker_sim.core.group.states import GroupState
from broker_sim.core.log import PartitionLog
from txnlog_kafka.wire.error_codes import ErrorCode

OFFSETS_EXPIRATION_TIMER = ("group-offsets-expiration",)
CLASSIC_TYPE, CONSUMER_TYPE = "classic", "consumer"


class GroupCoordinator:
    """Coordinates the groups of the `__consumer_offsets` partitions that were loaded."""

    def __init__(
        self,
        config: BrokerConfig,
        image: ClusterImage,
        writer: PartitionWriter,
        new_uuid: NewUuid,
    ) -> None:
        self._config = config
        self._timers = KeyedTimers()
        self._runtime = group_runtime(config, writer, self._timers)
        self._rebalancer = Rebalancer(config, self._runtime, self._timers)
        self._sessions = ConsumerSessions(
            config, image, self._runtime, self._timers, self._rebalancer
        )
        members = ClassicMemberHandler(image, new_uuid, self._runtime, self._sessions)
        joining = JoinHandler(config, new_uuid, self._runtime, self._rebalancer, members)
        membership = MembershipHandler(self._runtime, self._rebalancer, members)
        consumers = ConsumerGroupHandler(config, image, new_uuid, self._runtime, self._sessions)
        self._offsets = OffsetHandler(config, self._runtime, self._rebalancer)
        self.on_timer = self._timers.fire
        self.resize = self._runtime.resize
        self.is_loading = self._runtime.is_loading
        self.partition_for = self._runtime.partition_for
        # Requests that a handler answers alone.
        self.join_group = joining.handle
        self.sync_group = membership.sync
        self.heartbeat = membership.heartbeat
        self.leave_group = membership.leave
        self.consumer_heartbeat = consumers.heartbeat
        self.preferred_assignor = consumers.preferred_assignor
        self.on_topic_created = consumers.on_new_topics
        self.offset_commit = self._offsets.commit
        self.txn_offset_commit = self._offsets.txn_commit
        self.offset_delete = self._offsets.delete
        self.delete_groups = self._offsets.delete_groups
        self.on_partitions_deleted = self._offsets.delete_partitions

    # ---------------------------------------------------------------- life

    def start(self, effects: Effects) -> None:
        """Begin the periodic expiry of offsets."""
        self._timers.schedule(
            OFFSETS_EXPIRATION_TIMER,
            self._config.integer("offsets.retention.check.interval.ms"),
            self._expiration_sweep,
            effects,
        )

    def _expiration_sweep(self, effects: Effects) -> None:
        self._offsets.expire(effects)
        self.start(effects)

    def load(self, partition: int, log: PartitionLog, effects: Effects) -> None:
        """This broker leads the partition: replay its log, and when that is committed give every
        member a session.

        Must come before the transaction coordinator's loads, whose markers arrive at once.
        """
        self._runtime.load(partition, log, self._start_sessions, effects)

    def _start_sessions(self, shard: GroupShard, effects: Effects) -> None:
        for _, group in sorted(shard.groups.items()):
            for member in group.members.values():
                self._rebalancer.reset_session(shard, group, member, effects)
            if len(group.members) > self._config.integer("group.max.size"):
                self._rebalancer.prepare(shard, group, effects)
        self._sessions.start(shard, effects)
        self.on_topic_created(effects)

    def announce(self, partition: int, log: PartitionLog, effects: Effects) -> None:
        """This broker leads the partition from here on: it will be loaded."""
        self.unload(partition, effects)
        self._runtime.announce(partition, partial(self.load, partition, log), effects)

    def unload(self, partition: int, effects: Effects) -> None:
        """Another broker leads the partition now: send waiting members there, forget it."""
        shard = self._runtime.unload(partition, effects)
        if shard is None:
            return
        self._sessions.cancel_all(shard, effects)
        for group in shard.groups.values():
            self._rebalancer.cancel_all(group, effects)
            for member in group.members.values():
                join = JoinGroupResult(ErrorCode.NOT_COORDINATOR, member.member_id)
                group.complete_join(member, join, effects)
                sync = SyncGroupResult(ErrorCode.NOT_COORDINATOR)
                group.complete_sync(member, sync, effects)

    # ---------------------------------------------------------------- offsets

    def offset_fetch(
        self,
        group_id: str,
        topic_partitions: Mapping[str, Collection[int]] | None,
        *,
        require_stable: bool,
        topic_ids: Mapping[str, uuid.UUID] = MappingProxyType({}),
        member: tuple[str | None, int] = NO_MEMBER,
    ) -> OffsetFetchResult:
        """OffsetFetch for one group; None means all partitions with a committed offset."""
        return self._offsets.fetch(
            group_id,
            topic_partitions,
            require_stable=require_stable,
            topic_ids=topic_ids,
            member=member,
        )

    def on_marker(
        self, partition: int, producer_id: int, committed: bool, effects: Effects
    ) -> None:
        """A marker was appended to this partition of `__consumer_offsets`.

        Called before the marker is acknowledged, so that a client that learns that the transaction
        is complete also sees its offsets (KAFKA-17507).
        """
        shard = self._runtime.shard(partition)
        if shard is None:
            return
        materialised = shard.replay_marker(producer_id, committed)
        effects.trace(
            "group-offsets-decided",
            partition=partition,
            producer_id=producer_id,
            committed=committed,
            offsets=materialised,
        )

    # ---------------------------------------------------------------- admin

    def list_groups(
        self, *, state_filters: Collection[str] = (), type_filters: Collection[str] = ()
    ) -> GroupListing:
        """ListGroups; filters compare without case, empty ones let all through."""
        if self._runtime.is_loading():
            return GroupListing(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {name.lower().strip() for name in state_filters}
        types = {name.lower() for name in type_filters}
        rows = (row for shard in self._runtime.shards() for row in _listed(shard))
        return GroupListing(
            ErrorCode.NONE,
            tuple(
                row
                for row in rows
                if (not types or row.group_type in types)
                and (not states or row.state.lower() in states)
            ),
        )

    def describe_group(self, group_id: str) -> GroupDescription:
        """DescribeGroups, for one group.

        An unknown group, or a consumer group, is GROUP_ID_NOT_FOUND with state Dead; below version
        6 the handler answers NONE for it (KIP-1043).
        """
        shard = find_shard(self._runtime, group_id)
        if isinstance(shard, ErrorCode):
            return GroupDescription(shard, group_id)
        group = shard.group(group_id)
        if not isinstance(group, ClassicGroup):
            text = "not found" if group is None else "is not a classic group"
            return GroupDescription(
                ErrorCode.GROUP_ID_NOT_FOUND,
                group_id,
                state=GroupState.DEAD.value,
                message=f"Group {group_id} {text}.",
            )
        is_stable = group.is_in(GroupState.STABLE)
        return GroupDescription(
            ErrorCode.NONE,
            group_id,
            state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol_name or "") if is_stable else "",
            members=_described_members(group, is_stable=is_stable),
        )

    def describe_consumer_group(self, group_id: str) -> ConsumerGroup | ErrorCode:
        """ConsumerGroupDescribe, for one group: the group, which the caller only reads."""
        shard = find_shard(self._runtime, group_id)
        if isinstance(shard, ErrorCode):
            return shard
        return shard.consumer_groups.get(group_id, ErrorCode.GROUP_ID_NOT_FOUND)


def _listed(shard: GroupShard) -> Iterator[ListedGroup]:
    for group_id, group in sorted((shard.groups | shard.consumer_groups).items()):
        kind = CLASSIC_TYPE if isinstance(group, ClassicGroup) else CONSUMER_TYPE
        yield ListedGroup(group_id, group.protocol_type or "", group.state.value, kind)


def _described_members(group: ClassicGroup, *, is_stable: bool) -> tuple[DescribedMember, ...]:
    return tuple(
        DescribedMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            metadata=member.metadata(group.protocol_name) if is_stable else b"",
            assignment=member.assignment,
        )
        for member in group.members.values()
    )
