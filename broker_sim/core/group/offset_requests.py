"""OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete, and the expiry of offsets.

Rules for this file: checks in Kafka's order (`OffsetMetadataManager`, `offset_refusals`), then
records, nothing else. A request for a group is one batch: all its offsets are committed, or none.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from broker_sim.core.config import BrokerConfig
from broker_sim.core.coordinator.runtime import CoordinatorResult
from broker_sim.core.effects import Effects
from broker_sim.core.group.classic_group import ClassicGroup
from broker_sim.core.group.consumer_group import ConsumerGroup
from broker_sim.core.group.log_records import ZERO_ID, OffsetKey, OffsetValue
from broker_sim.core.group.offset_refusals import refuse_commit, refuse_txn_commit
from broker_sim.core.group.offsets import StoredOffset
from broker_sim.core.group.rebalance import Rebalancer
from broker_sim.core.group.requests import (
    FetchedOffset,
    OffsetCommit,
    OffsetDeleteResult,
    OffsetErrors,
    OffsetFetchResult,
    OffsetToCommit,
    TxnOffsetCommit,
)
from broker_sim.core.group.shard import (
    AnyGroup,
    GroupLogRecord,
    GroupRuntime,
    GroupShard,
    OffsetRecord,
    answer_with,
    deletion,
    find_shard,
    ignore,
    write_all,
)
from broker_sim.core.group.states import GroupState
from broker_sim.core.replies import Reply, gather
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import NO_TIMESTAMP
from txnlog_kafka.wire.topic_partition import TopicPartition

TIMESTAMP_MAX_MS = 2**63 - 1
"""The largest that an int64 of a record holds."""
NO_RETENTION = -1
NO_MEMBER = (None, -1)
"""OffsetFetch of a client that is not a member of the group."""

_S = GroupState
_E = ErrorCode
Commit = TypeVar("Commit", OffsetCommit, TxnOffsetCommit)


class OffsetHandler:
    """Answers the offset requests."""

    def __init__(self, config: BrokerConfig, runtime: GroupRuntime, rebalancer: Rebalancer) -> None:
        self._config = config
        self._runtime = runtime
        self._rebalancer = rebalancer

    # ---------------------------------------------------------------- commit

    def commit(self, request: OffsetCommit, reply: Reply[OffsetErrors], effects: Effects) -> None:
        """OffsetCommit; durable before the answer when `flush.on.commit`.

        Kafka accepts the empty group id here, for old clients.
        """
        shard = find_shard(self._runtime, request.group_id)
        if isinstance(shard, ErrorCode):
            return reply(_all(request.offsets, shard), effects)
        group = shard.group(request.group_id)
        error = refuse_commit(group, self._without_refused(request))
        if error is not _E.NONE:
            return reply(_all(request.offsets, error), effects)
        if isinstance(group, ClassicGroup):
            member = group.members.get(request.member_id)
            if member and group.is_in(_S.STABLE, _S.PREPARING_REBALANCE):
                # A commit keeps the session, as a heartbeat of a classic group does.
                self._rebalancer.reset_session(shard, group, member, effects)
        expire_ms = _expire_ms(request.retention_time_ms, effects.now_ms)
        errors, records = self._records(request.group_id, request.offsets, expire_ms, effects)
        if not records:
            return reply(errors, effects)
        result = CoordinatorResult(
            records=records,
            reply=partial(_merge_errors, reply, errors),
            flush=True,
            covered=_accepted(errors),
        )
        self._runtime.write(shard, result, effects)
        return None

    def txn_commit(
        self, request: TxnOffsetCommit, reply: Reply[OffsetErrors], effects: Effects
    ) -> None:
        """TxnOffsetCommit: pending until the marker.

        Before it, the handler has the transaction coordinator verify (request version below 5)
        or add (from 5) the group's partition of `__consumer_offsets`.
        """
        shard = find_shard(self._runtime, request.group_id, may_be_empty=False)
        if isinstance(shard, ErrorCode):
            return reply(_all(request.offsets, shard), effects)
        error = refuse_txn_commit(shard.group(request.group_id), self._without_refused(request))
        if error is not _E.NONE:
            return reply(_all(request.offsets, error), effects)
        errors, records = self._records(request.group_id, request.offsets, NO_TIMESTAMP, effects)
        if not records:
            return reply(errors, effects)
        result = CoordinatorResult(
            records=records,
            reply=partial(_merge_errors, reply, errors),
            flush=False,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            guard=request.guard,
            covered=_accepted(errors),
        )
        self._runtime.write(shard, result, effects)
        return None

    def _without_refused(self, request: Commit) -> Commit:
        """The request without partitions that are refused one by one: their epochs do not count."""
        fine = tuple(each for each in request.offsets if not self._is_too_large(each))
        return replace(request, offsets=fine)

    def _is_too_large(self, offset: OffsetToCommit) -> bool:
        limit = self._config.integer("offset.metadata.max.bytes")
        return _utf16_length(offset.metadata or "") > limit

    def _records(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        expire_ms: int,
        effects: Effects,
    ) -> tuple[OffsetErrors, list[GroupLogRecord]]:
        errors: OffsetErrors = {}
        records: list[GroupLogRecord] = []
        for offset in offsets:
            partition = TopicPartition(offset.topic, offset.partition)
            if self._is_too_large(offset):
                errors[partition] = _E.OFFSET_METADATA_TOO_LARGE
                continue
            errors[partition] = _E.NONE
            value = OffsetValue(
                offset.committed_offset,
                offset.leader_epoch,
                offset.metadata or "",
                effects.now_ms,
                expire_ms,
                offset.topic_id,
            )
            records.append(OffsetRecord(OffsetKey(group_id, *partition), value))
        return errors, records

    # ---------------------------------------------------------------- fetch

    def fetch(
        self,
        group_id: str,
        topic_partitions: Mapping[str, Collection[int]] | None,
        *,
        require_stable: bool,
        topic_ids: Mapping[str, uuid.UUID] = MappingProxyType({}),
        member: tuple[str | None, int] = NO_MEMBER,
    ) -> OffsetFetchResult:
        """OffsetFetch for one group; None asks for all partitions with a committed offset.
        `member` has the id and the epoch of a consumer group's member.

        As in Kafka, "all" means committed ones: a partition that has a pending offset and no
        committed one yet is not in it, also with `require_stable`. An offset of another topic id
        than the one in `topic_ids` is none: the topic was deleted and recreated.
        """
        # The refusals: the group is elsewhere, or the member is not of this epoch.
        shard = find_shard(self._runtime, group_id)
        if isinstance(shard, ErrorCode):
            return OffsetFetchResult(shard)
        group = shard.consumer_groups.get(group_id)
        error = _E.NONE if group is None else group.refuse_fetch(*member)
        if error is not _E.NONE:
            return OffsetFetchResult(error)
        # The partitions that the client names, or all with a committed offset.
        committed = shard.offsets.committed(group_id)
        asked: Iterable[TopicPartition] = sorted(committed)
        if topic_partitions is not None:
            asked = [
                TopicPartition(topic, partition)
                for topic, partitions in topic_partitions.items()
                for partition in partitions
            ]
        # Their offsets: a stable read gets no offset that an open transaction may still change.
        pending = shard.offsets.pending(group_id) if require_stable else set()
        return OffsetFetchResult(
            _E.NONE,
            tuple(
                _fetched(
                    partition,
                    _of_topic(committed.get(partition), topic_ids.get(partition[0], ZERO_ID)),
                    is_pending=partition in pending,
                )
                for partition in asked
            ),
        )

    # ---------------------------------------------------------------- delete

    def delete(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition],
        reply: Reply[OffsetDeleteResult],
        effects: Effects,
    ) -> None:
        """OffsetDelete: not for topics that a living group reads."""
        shard = find_shard(self._runtime, group_id, may_be_empty=False)
        if isinstance(shard, ErrorCode):
            return reply(OffsetDeleteResult(shard), effects)
        group = shard.group(group_id)
        if group is None:
            return reply(OffsetDeleteResult(_E.GROUP_ID_NOT_FOUND), effects)
        if not group.is_empty and not group.uses_consumer_protocol:
            return reply(OffsetDeleteResult(_E.NON_EMPTY_GROUP), effects)
        errors: OffsetErrors = {}
        deleted: list[TopicPartition] = []
        held = shard.offsets.held(group_id)
        for partition in partitions:
            is_read = group.is_subscribed_to(partition[0]) and not group.is_empty
            errors[partition] = _E.GROUP_SUBSCRIBED_TO_TOPIC if is_read else _E.NONE
            if not is_read and partition in held:
                deleted.append(partition)
        answer = answer_with(reply, OffsetDeleteResult(_E.NONE, errors), OffsetDeleteResult)
        records = tombstones(group_id, deleted)
        return write_all(self._runtime, shard, records, answer, effects)

    def delete_groups(
        self, group_ids: Sequence[str], reply: Reply[dict[str, ErrorCode]], effects: Effects
    ) -> None:
        """DeleteGroups: empty groups with all their offsets, pending ones too; each name once.

        Durable before the answer when `flush.on.commit`.
        """
        gather({each: partial(self._delete_group, each) for each in group_ids}, reply, effects)

    def _delete_group(self, group_id: str, reply: Reply[ErrorCode], effects: Effects) -> None:
        shard = find_shard(self._runtime, group_id)
        if isinstance(shard, ErrorCode):
            return reply(shard, effects)
        group = shard.group(group_id)
        if group is None:
            return reply(_E.GROUP_ID_NOT_FOUND, effects)
        if not group.is_empty:
            return reply(_E.NON_EMPTY_GROUP, effects)
        records = tombstones(group_id, sorted(shard.offsets.held(group_id)))
        if isinstance(group, ClassicGroup):
            self._rebalancer.cancel_all(group, effects)
        ends, reply = deletion(shard, group, reply)
        records += ends
        return write_all(self._runtime, shard, records, reply, effects)

    def delete_partitions(self, partitions: Collection[TopicPartition], effects: Effects) -> None:
        """Topics are gone: their offsets must not greet a new topic of the same name."""
        gone = set(partitions)
        for shard in self._runtime.shards():
            records: list[GroupLogRecord] = []
            for group_id in sorted(shard.offsets.group_ids()):
                records += tombstones(group_id, sorted(shard.offsets.held(group_id) & gone))
            write_all(self._runtime, shard, records, ignore, effects)

    # ---------------------------------------------------------------- expiry

    def expire(self, effects: Effects) -> None:
        """Remove what offsets.retention.minutes says, then groups that have nothing left."""
        for shard in self._runtime.shards():
            records: list[GroupLogRecord] = []
            traced: Reply[ErrorCode] = ignore
            for group_id, group in sorted((shard.groups | shard.consumer_groups).items()):
                expired, has_nothing_left = self._expired_offsets(shard, group, effects)
                records += tombstones(group_id, expired)
                if has_nothing_left:
                    ends, traced = deletion(shard, group, traced)
                    records += ends
            if records:
                traced = partial(_trace_expired, len(records), traced)
                write_all(self._runtime, shard, records, traced, effects)

    def _expired_offsets(
        self, shard: GroupShard, group: AnyGroup, effects: Effects
    ) -> tuple[list[TopicPartition], bool]:
        """Partitions whose offsets expire; True if the group is empty and has nothing else."""
        group_id = group.group_id
        committed, pending = shard.offsets.committed(group_id), shard.offsets.pending(group_id)
        expired = [
            partition
            for partition, stored in sorted(committed.items())
            if self._is_expired(group, partition[0], stored, effects.now_ms)
            and partition not in pending
        ]
        has_open = shard.offsets.has_open_transactions(group_id)
        return expired, group.is_empty and len(expired) == len(committed) and not has_open

    def _is_expired(self, group: AnyGroup, topic: str, stored: StoredOffset, now_ms: int) -> bool:
        value = stored.value
        since_ms = value.commit_ms
        if isinstance(group, ConsumerGroup):
            if group.is_subscribed_to(topic):
                return False
        elif group.protocol_type is not None:
            if group.is_in(_S.EMPTY):
                since_ms = value.commit_ms if group.state_ms is None else group.state_ms
            elif not self._may_expire_while_read(group, topic):
                return False
        if value.expire_ms != NO_TIMESTAMP:
            return now_ms >= value.expire_ms
        retention_ms = self._config.integer("offsets.retention.minutes") * 60_000
        return now_ms - since_ms >= retention_ms

    @staticmethod
    def _may_expire_while_read(group: ClassicGroup, topic: str) -> bool:
        """True if the group is stable, of consumers, and known not to read the topic (KIP-496)."""
        return (
            group.is_in(_S.STABLE)
            and group.uses_consumer_protocol
            and group.subscribed_topics is not None
            and topic not in group.subscribed_topics
        )


def tombstones(group_id: str, partitions: Iterable[TopicPartition]) -> list[GroupLogRecord]:
    """Deletions of these offsets."""
    return [OffsetRecord(OffsetKey(group_id, *partition), None) for partition in partitions]


def _of_topic(stored: StoredOffset | None, topic_id: uuid.UUID) -> StoredOffset | None:
    if stored is None or ZERO_ID in (stored.value.topic_id, topic_id):
        return stored
    return stored if stored.value.topic_id == topic_id else None


def _fetched(
    partition: TopicPartition, stored: StoredOffset | None, *, is_pending: bool
) -> FetchedOffset:
    if is_pending:
        return FetchedOffset(*partition, error=_E.UNSTABLE_OFFSET_COMMIT)
    if stored is None:
        return FetchedOffset(*partition)
    value = stored.value
    return FetchedOffset(*partition, value.committed_offset, value.leader_epoch, value.metadata)


def _expire_ms(retention_ms: int, now_ms: int) -> int:
    """When an offset of an old client expires, in an int64; it may ask for "never" as 2^63-1.

    Only -1 means the broker's retention: any other negative one is over already, as in Kafka.
    """
    if retention_ms == NO_RETENTION:
        return NO_TIMESTAMP
    return min(now_ms + retention_ms, TIMESTAMP_MAX_MS)


def _accepted(errors: OffsetErrors) -> list[TopicPartition]:
    return [partition for partition, error in errors.items() if error is _E.NONE]


def _all(offsets: Sequence[OffsetToCommit], error: ErrorCode) -> OffsetErrors:
    return {TopicPartition(offset.topic, offset.partition): error for offset in offsets}


def _merge_errors(
    reply: Reply[OffsetErrors], errors: OffsetErrors, error: ErrorCode, effects: Effects
) -> None:
    """Reply with the write's error, for the partitions that had none of their own."""
    merged = {partition: error if own is _E.NONE else own for partition, own in errors.items()}
    reply(merged, effects)


def _trace_expired(
    count: int, following: Reply[ErrorCode], error: ErrorCode, effects: Effects
) -> None:
    effects.trace("group-offsets-expired", count=count, error=error.name)
    following(error, effects)


def _utf16_length(text: str) -> int:
    """The length that Java's `String.length` gives, which Kafka compares with the limit."""
    return len(text.encode("utf-16-be", "surrogatepass")) // 2
