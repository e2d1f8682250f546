"""Log and timers of consumer groups, for the requests of both protocols.

Rules for this file: a group is replaced by its changed copy when the log has taken the records, and
answers wait until the records are committed. Timers, by key, each of which removes the member:
`group-consumer-session` (no sign of life), `group-consumer-rebalance` (the member did not give up
partitions in time), and for members of the classic protocol `group-consumer-join` (did not join
again) and `group-consumer-sync` (did not ask for its assignment).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from broker_sim.core.config import BrokerConfig, group_config_value
from broker_sim.core.controller.image import ClusterImage, Topic
from broker_sim.core.coordinator.runtime import CoordinatorResult
from broker_sim.core.coordinator.timers import KeyedTimers
from broker_sim.core.effects import Effects, TimerKey
from broker_sim.core.group.classic_group import ClassicGroup
from broker_sim.core.group.consumer_changes import GroupChange, Settings
from broker_sim.core.group.consumer_group import ConsumerGroup, ConsumerMember, topic_digest
from broker_sim.core.group.consumer_records import MemberState
from broker_sim.core.group.log_records import GroupKey
from broker_sim.core.group.migration import remove
from broker_sim.core.group.rebalance import Rebalancer
from broker_sim.core.group.shard import (
    AnyGroup,
    GroupLogRecord,
    GroupRecord,
    GroupRuntime,
    GroupShard,
    group_value,
    ignore,
)
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode

RETRY_MS = 500
"""A removal that the log did not take is tried again after this time, as in Kafka."""
_TIMERS = ("session", "rebalance", "join", "sync")


class ConsumerSessions:
    """Writes changes of consumer groups, and watches over their members."""

    def __init__(
        self,
        config: BrokerConfig,
        image: ClusterImage,
        runtime: GroupRuntime,
        timers: KeyedTimers,
        rebalancer: Rebalancer,
    ) -> None:
        self._config = config
        self._image = image
        self._runtime = runtime
        self._timers = timers
        self._rebalancer = rebalancer
        self._digests: dict[str, tuple[Topic, bytes]] = {}

    def assignors(self) -> tuple[str, ...]:
        """Names of the assignors; the first is the default."""
        return tuple(self._config.text("group.consumer.assignors").split(","))

    def setting(self, group_id: str, option: str) -> int:
        """The value of a group's option: its own within the broker's limits, or the broker's."""
        own = self._image.group_configs.get(group_id, {})
        return group_config_value(option, own, self._config)

    def settings(self, group_id: str, effects: Effects) -> Settings:
        """Options of a group as of now."""
        return Settings(
            topics=self._image.topics,
            now_ms=effects.now_ms,
            assignors=self.assignors(),
            max_size=self._config.integer("group.consumer.max.size"),
            classic_max_size=self._config.integer("group.max.size"),
            migration=self._config.text("group.consumer.migration.policy").lower(),
            assignment_interval_ms=self.setting(group_id, "consumer.assignment.interval.ms"),
            digest=self._digest,
        )

    def _digest(self, topic: Topic) -> bytes:
        """The digest of a topic, as of its last change: a broker may have many partitions."""
        known = self._digests.get(topic.name)
        if known is not None and known[0] is topic:
            return known[1]
        if len(self._digests) > len(self._image.topics):
            self._digests.clear()
        brokers = self._image.registered.items()
        racks = {broker: each.rack for broker, each in brokers if each.rack is not None}
        digest = topic_digest(topic, racks)
        self._digests[topic.name] = (topic, digest)
        return digest

    # ---------------------------------------------------------------- log

    def write(
        self, shard: GroupShard, change: GroupChange, reply: Reply[ErrorCode], effects: Effects
    ) -> bool:
        """Append the records and put the changed group in its place; False if the log refused."""
        if not change.records:
            self._runtime.settle(shard, reply, effects)
            return True
        group_id = change.group.group_id
        key, former = GroupKey(group_id), shard.group(group_id)
        records: list[GroupLogRecord] = [*change.records]
        if isinstance(former, ClassicGroup):
            records.insert(0, GroupRecord(key, None, is_applied=True))
        if change.classic is not None:
            records.append(GroupRecord(key, group_value(change.classic)))
        shard.install(group_id, change.classic or change.group)
        result = CoordinatorResult(records=records, reply=reply, flush=False)
        written = self._runtime.write(shard, result, effects)
        if written:
            self._move_timers(shard, former, change, effects)
        else:
            shard.install(group_id, former)
        return written

    def _move_timers(
        self, shard: GroupShard, former: AnyGroup | None, change: GroupChange, effects: Effects
    ) -> None:
        """Watch over members in the way of the protocol that their group speaks now."""
        classic = change.classic
        if isinstance(former, ClassicGroup):
            self._rebalancer.end(former, effects)
            for member in change.group.members.values():
                if member.is_classic:
                    self.touch(shard, change.group.group_id, member, effects)
        elif former is not None:
            self._cancel_gone(former, None if classic else change.group, effects)
        if classic is not None:
            for each in classic.members.values():
                self._rebalancer.reset_session(shard, classic, each, effects)
            if change.rebalances:
                self._rebalancer.prepare(shard, classic, effects)

    def remove(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        member_ids: Collection[str],
        reply: Reply[ErrorCode],
        effects: Effects,
    ) -> bool:
        """Remove members; a group without a member of KIP-848 becomes a classic group."""
        change = GroupChange(group)
        remove(change, member_ids, self.settings(group.group_id, effects))
        return self.write(shard, change, reply, effects)

    # ---------------------------------------------------------------- timers

    def start(self, shard: GroupShard, effects: Effects) -> None:
        """The shard was loaded: give every member a session, and time to give up partitions."""
        for group_id, group in sorted(shard.consumer_groups.items()):
            for member in group.members.values():
                self.touch(shard, group_id, member, effects)
                if member.current.state is MemberState.UNREVOKED:
                    self._await_revocation(shard, group_id, member, effects)

    def cancel_all(self, shard: GroupShard, effects: Effects) -> None:
        """The shard is another broker's now."""
        for group in shard.consumer_groups.values():
            self._cancel_gone(group, None, effects)

    def _cancel_gone(
        self, before: ConsumerGroup, after: ConsumerGroup | None, effects: Effects
    ) -> None:
        for member_id in before.members:
            if after is None or member_id not in after.members:
                for kind in _TIMERS:
                    self.cancel(kind, before.group_id, member_id, effects)

    def cancel(self, kind: str, group_id: str, member_id: str, effects: Effects) -> None:
        """Cancel one of the member's timers."""
        self._timers.cancel(_key(kind, group_id, member_id), effects)

    def touch(
        self, shard: GroupShard, group_id: str, member: ConsumerMember, effects: Effects
    ) -> None:
        """The member is alive: its session begins again."""
        classic = member.subscription.classic
        session_ms = self.setting(group_id, "consumer.session.timeout.ms")
        if classic is not None:
            session_ms = classic.session_timeout_ms
        self._schedule("session", shard, group_id, member, session_ms, effects)

    def follow(
        self,
        shard: GroupShard,
        group_id: str,
        before: ConsumerMember | None,
        member: ConsumerMember,
        effects: Effects,
    ) -> None:
        """Give a member of KIP-848 time to give up partitions, if it has to."""
        if before is not None and before.is_classic:
            for kind in ("join", "sync"):
                self.cancel(kind, group_id, member.member_id, effects)
        elif before is not None and before.current == member.current:
            return
        if member.current.state is MemberState.UNREVOKED:
            self._await_revocation(shard, group_id, member, effects)
        else:
            self.cancel("rebalance", group_id, member.member_id, effects)

    def _await_revocation(
        self, shard: GroupShard, group_id: str, member: ConsumerMember, effects: Effects
    ) -> None:
        after_ms = member.subscription.rebalance_timeout_ms
        epoch = member.current.epoch
        self._schedule("rebalance", shard, group_id, member, after_ms, effects, epoch=epoch)

    def await_join(
        self, shard: GroupShard, group_id: str, member: ConsumerMember, effects: Effects
    ) -> None:
        """A member of the classic protocol is to join again."""
        if _key("join", group_id, member.member_id) not in self._timers:
            after_ms = member.subscription.rebalance_timeout_ms
            self._schedule("join", shard, group_id, member, after_ms, effects)

    def await_sync(
        self, shard: GroupShard, group_id: str, member: ConsumerMember, effects: Effects
    ) -> None:
        """A member of the classic protocol has joined, and asks for its assignment next."""
        for kind in ("join", "rebalance"):
            self.cancel(kind, group_id, member.member_id, effects)
        self.touch(shard, group_id, member, effects)
        after_ms = member.subscription.rebalance_timeout_ms
        self._schedule("sync", shard, group_id, member, after_ms, effects)

    def _schedule(
        self,
        kind: str,
        shard: GroupShard,
        group_id: str,
        member: ConsumerMember,
        after_ms: int,
        effects: Effects,
        *,
        epoch: int | None = None,
    ) -> None:
        key = _key(kind, group_id, member.member_id)
        action = partial(self._expire, shard, group_id, member.member_id, key, epoch)
        self._timers.schedule(key, max(after_ms, 0), action, effects)

    def _expire(
        self,
        shard: GroupShard,
        group_id: str,
        member_id: str,
        key: TimerKey,
        epoch: int | None,
        effects: Effects,
    ) -> None:
        """Remove a member that is late; with `epoch`, unless it has left that epoch."""
        group = shard.consumer_groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None or epoch not in (None, member.current.epoch):
            return
        effects.trace("group-member-expired", group_id=group_id, member_id=member_id)
        if not self.remove(shard, group, [member_id], ignore, effects):
            action = partial(self._expire, shard, group_id, member_id, key, epoch)
            self._timers.schedule(key, RETRY_MS, action, effects)


def _key(kind: str, group_id: str, member_id: str) -> TimerKey:
    return (f"group-consumer-{kind}", group_id, member_id)
