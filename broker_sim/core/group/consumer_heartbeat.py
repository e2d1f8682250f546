"""ConsumerGroupHeartbeat: one heartbeat, and the topics of the group's regular expressions.

Source: Kafka's `GroupMetadataManager`, the consumer part.
"""

from __future__ import annotations

from dataclasses import replace

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.image import ClusterImage
from broker_sim.core.coordinator.codec import is_storable
from broker_sim.core.effects import Effects
from broker_sim.core.group.classic_group import ClassicGroup
from broker_sim.core.group.consumer_changes import (
    GroupChange,
    beat,
    leaving_member,
    matching,
    preferred_assignor,
    refuse_request,
    resolve,
    set_away,
)
from broker_sim.core.group.consumer_group import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
)
from broker_sim.core.group.consumer_records import EpochPartitions, Partitions
from broker_sim.core.group.consumer_sessions import ConsumerSessions
from broker_sim.core.group.migration import upgrade
from broker_sim.core.group.requests import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    ConsumerReply,
    NewUuid,
)
from broker_sim.core.group.shard import GroupRuntime, GroupShard, answer_with, find_shard, ignore
from txnlog_kafka.wire.error_codes import ErrorCode

REGEX_INTERVAL_MIN_MS = 10_000
"""Least time between two resolutions of a group's expressions; Kafka's constant."""

_E = ErrorCode
_TEXTS = {
    _E.UNKNOWN_MEMBER_ID: "the group has no such member; join again",
    _E.FENCED_MEMBER_EPOCH: "the epoch is not the member's; give up all partitions and join again",
    _E.FENCED_INSTANCE_ID: "another member has the instance id",
    _E.UNRELEASED_INSTANCE_ID: "another member has the instance id and has not left",
    _E.GROUP_MAX_SIZE_REACHED: "the group has as many members as group.consumer.max.size allows",
    _E.INVALID_REGULAR_EXPRESSION: "the regular expression is not one of RE2/J",
}
"""Text of an error for clients, after the names of member and group."""


class ConsumerGroupHandler:
    """Answers heartbeats of consumer groups."""

    def __init__(
        self,
        config: BrokerConfig,
        image: ClusterImage,
        new_uuid: NewUuid,
        runtime: GroupRuntime,
        sessions: ConsumerSessions,
    ) -> None:
        self._config = config
        self._image = image
        self._new_uuid = new_uuid
        self._runtime = runtime
        self._sessions = sessions
        self._newest_topic_ms = 0

    def heartbeat(self, request: ConsumerHeartbeat, reply: ConsumerReply, effects: Effects) -> None:
        """Check in Kafka's order, then join, go on or leave."""
        error, text = refuse_request(request, self._sessions.assignors())
        if error is not _E.NONE:
            return reply(ConsumerHeartbeatResult(error, text), effects)
        shard = find_shard(self._runtime, request.group_id)
        if isinstance(shard, ErrorCode):
            return reply(ConsumerHeartbeatResult(shard), effects)
        if not all(map(is_storable, (request.member_id, request.topic_regex))):
            return reply(ConsumerHeartbeatResult(_E.INVALID_REQUEST), effects)
        change = self._begin_group_change(shard, request, effects)
        if isinstance(change, str):
            return reply(ConsumerHeartbeatResult(_E.GROUP_ID_NOT_FOUND, change), effects)
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(shard, change, request, reply, effects)
        return self._beat(shard, change, request, reply, effects)

    def _begin_group_change(
        self, shard: GroupShard, request: ConsumerHeartbeat, effects: Effects
    ) -> GroupChange | str:
        """A change of the group, which may be new or a classic group until now, or the reason why
        there is no group."""
        group_id, group = request.group_id, shard.group(request.group_id)
        if isinstance(group, ConsumerGroup):
            return GroupChange(group)
        if request.member_epoch != JOIN_EPOCH:
            text = "not found" if group is None else "is not a consumer group"
            return f"Group {group_id} {text}."
        change = GroupChange(ConsumerGroup(group_id))
        if isinstance(group, ClassicGroup) and not group.is_empty:
            reason = upgrade(change, group, self._sessions.settings(group_id, effects))
            if reason is not None:
                return f"Group {group_id} cannot become a consumer group: {reason}."
        return change

    def _beat(
        self,
        shard: GroupShard,
        change: GroupChange,
        request: ConsumerHeartbeat,
        reply: ConsumerReply,
        effects: Effects,
    ) -> None:
        group_id = request.group_id
        if not request.member_id:
            # Version 0 lets the coordinator make the member id.
            request = replace(request, member_id=self._new_uuid())
        before = change.group.members.get(request.member_id)
        member = beat(change, request, self._sessions.settings(group_id, effects))
        if isinstance(member, ErrorCode):
            return reply(_refusal(member, request), effects)
        result = ConsumerHeartbeatResult(
            _E.NONE,
            None,
            member.member_id,
            member.current.epoch,
            self._sessions.setting(group_id, "consumer.heartbeat.interval.ms"),
            _answered_assignment(before, member, request),
        )
        answer = answer_with(reply, result, ConsumerHeartbeatResult)
        if self._sessions.write(shard, change, answer, effects):
            self._sessions.touch(shard, group_id, member, effects)
            self._sessions.follow(shard, group_id, before, member, effects)
            self._resolve(shard, group_id, request, effects)
        return None

    def _leave(
        self,
        shard: GroupShard,
        change: GroupChange,
        request: ConsumerHeartbeat,
        reply: ConsumerReply,
        effects: Effects,
    ) -> None:
        group = shard.consumer_groups[request.group_id]
        member = leaving_member(group, request)
        if isinstance(member, ErrorCode):
            return reply(_refusal(member, request), effects)
        result = ConsumerHeartbeatResult(_E.NONE, None, member.member_id, request.member_epoch)
        answer = answer_with(reply, result, ConsumerHeartbeatResult)
        if request.member_epoch != STATIC_LEAVE_EPOCH:
            self._sessions.remove(shard, group, [member.member_id], answer, effects)
            return None
        set_away(change, member)
        self._sessions.write(shard, change, answer, effects)
        return None

    # ---------------------------------------------------------------- regular expressions

    def on_new_topics(self, effects: Effects) -> None:
        """A topic was created, or groups were loaded that may not know of one."""
        self._newest_topic_ms = effects.now_ms

    def _resolve(
        self, shard: GroupShard, group_id: str, request: ConsumerHeartbeat, effects: Effects
    ) -> None:
        """Look for the topics of the group's expressions again if that is due.

        Kafka does so beside the coordinator, hence the answer to this heartbeat does not have the
        topics yet. Topics that the member of this heartbeat may not describe are left out.
        """
        group = shard.consumer_groups[group_id]
        regexes = group.regex_counts().keys()
        if not regexes:
            return
        since_ms = min((each.timestamp_ms for each in group.regexes.values()), default=None)
        if since_ms is not None and effects.now_ms <= since_ms + REGEX_INTERVAL_MIN_MS:
            return
        interval_ms = self._config.integer("group.consumer.regex.refresh.interval.ms")
        if (
            since_ms is None
            or regexes != group.regexes.keys()
            or since_ms <= self._newest_topic_ms
            or effects.now_ms > since_ms + interval_ms
        ):
            allowed = [name for name in self._image.topics if request.may_read(name)]
            change = GroupChange(group)
            settings = self._sessions.settings(group_id, effects)
            resolve(change, matching(sorted(regexes), allowed), settings)
            self._sessions.write(shard, change, ignore, effects)

    def preferred_assignor(self, group: ConsumerGroup) -> str:
        """The assignor that the members of the group prefer."""
        return preferred_assignor(group, self._sessions.assignors())


def _refusal(error: ErrorCode, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
    text = f"Member {request.member_id} of group {request.group_id}: {_TEXTS[error]}."
    return ConsumerHeartbeatResult(error, text)


def _answered_assignment(
    before: ConsumerMember | None, after: ConsumerMember, request: ConsumerHeartbeat
) -> Partitions | None:
    assigned = after.current.assigned
    is_same = before is not None and before.current.assigned == assigned
    if request.member_epoch == JOIN_EPOCH or request.is_full or not is_same:
        return _plain(assigned)
    return None


def _plain(partitions: EpochPartitions) -> Partitions:
    return {topic_id: frozenset(partitions[topic_id]) for topic_id in partitions}
