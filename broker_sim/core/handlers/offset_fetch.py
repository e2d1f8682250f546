"""OffsetFetch (key 9): one group below version 8, several from then on; by topic id from 10 on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker_sim.core.effects import Request
from broker_sim.core.group.requests import FetchedOffset, OffsetFetchResult
from broker_sim.core.handlers._access import group_allowed, topic_allowed
from broker_sim.core.handlers._lookup import ZERO_ID
from broker_sim.core.handlers._offsets import UNKNOWN_TOPIC, topic_names
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.OFFSET_FETCH].response
_Topic = _Response.OffsetFetchResponseTopic
_Group = _Response.OffsetFetchResponseGroup
_GroupTopic = _Group.OffsetFetchResponseTopics

_GROUP_REFUSED = OffsetFetchResult(ErrorCode.GROUP_AUTHORIZATION_FAILED)

GROUP_ERROR_VERSION = 2
GROUPS_VERSION = 8
TOPIC_ID_VERSION = 10


def handle(parts: BrokerParts, request: Request) -> Message:
    """A null list of topics means every offset of the group."""
    message = request.message
    require_stable = bool(message.require_stable)
    if request.api_version < GROUPS_VERSION:
        return _single(parts, request, require_stable)
    by_id = request.api_version >= TOPIC_ID_VERSION
    groups = []
    answered_whole: set[str] = set()
    for group in message.groups:
        if group.topics is None:
            if group.group_id in answered_whole:
                continue  # once: or a small request could ask for gigabytes
            answered_whole.add(group.group_id)
        if not group_allowed(parts, request, group.group_id):
            result, topics = _GROUP_REFUSED, []
        elif group.topics is None:
            result = parts.groups.offset_fetch(
                group.group_id, None, require_stable=require_stable, member=_member(group)
            )
            topics = _all_topics(parts, request, result, by_id=by_id)
        else:
            result, topics = _named_topics(parts, request, group, require_stable)
        groups.append(_Group(group_id=group.group_id, topics=topics, error_code=int(result.error)))
    return _Response(groups=groups)


def _member(group: Any) -> tuple[str | None, int]:
    """Id and epoch of a consumer group's member, from version 9 on."""
    return group.member_id, group.member_epoch


def _all_topics(
    parts: BrokerParts, request: Request, result: OffsetFetchResult, *, by_id: bool
) -> list[Any]:
    """By id, topics that are gone are left out: they have none any more."""
    answered = []
    for name, offsets in _by_topic(_readable(parts, request, result.offsets)).items():
        topic = _topic(_GroupTopic, name, offsets)
        known = parts.image.topics.get(name)
        if by_id and known is not None:
            topic.topic_id = known.topic_id
        if known is not None or not by_id:
            answered.append(topic)
    return answered


def _named_topics(
    parts: BrokerParts, request: Request, group: Any, require_stable: bool
) -> tuple[OffsetFetchResult, list[Any]]:
    by_id = request.api_version >= TOPIC_ID_VERSION
    names = topic_names(parts, group.topics, by_id=by_id)
    asked: dict[str, list[int]] = {}
    topic_ids = {}
    refused = {name for name in names if not _may_read(parts, request, name, by_id=by_id)}
    for topic, name in zip(group.topics, names, strict=True):
        if name not in refused and (name != UNKNOWN_TOPIC or not by_id):
            asked.setdefault(name, []).extend(topic.partition_indexes)
            topic_ids[name] = topic.topic_id if by_id else ZERO_ID
    result = parts.groups.offset_fetch(
        group.group_id,
        asked,
        require_stable=require_stable,
        topic_ids=topic_ids,
        member=_member(group),
    )
    if result.error is not ErrorCode.NONE:
        return result, []
    found = {(offset.topic, offset.partition): offset for offset in result.offsets}
    answered = []
    for topic, name in zip(group.topics, names, strict=True):
        # What was not asked for may not be, or has no name: its id is unknown.
        error = ErrorCode.UNKNOWN_TOPIC_ID
        if name in refused:
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        offsets = [
            found.get((name, index)) or FetchedOffset(name, index, error=error)
            for index in topic.partition_indexes
        ]
        answer = _topic(_GroupTopic, name, offsets)
        if by_id:
            answer.topic_id = topic.topic_id
        answered.append(answer)
    return result, answered


def _single(parts: BrokerParts, request: Request, require_stable: bool) -> Message:
    message = request.message
    asked: dict[str, list[int]] | None = None
    if message.topics is not None:
        asked = {}
        for topic in message.topics:
            asked.setdefault(topic.name, []).extend(topic.partition_indexes)
    refused: list[FetchedOffset] = []
    if not group_allowed(parts, request, message.group_id):
        result = _GROUP_REFUSED
    else:
        allowed = asked
        if asked is not None:
            allowed, refused = _split_allowed(parts, request, asked)
        result = parts.groups.offset_fetch(message.group_id, allowed, require_stable=require_stable)
    offsets = result.offsets
    if asked is None:
        offsets = tuple(_readable(parts, request, offsets))
    elif result.error is ErrorCode.NONE:
        offsets += tuple(refused)
    if asked and result.error is not ErrorCode.NONE and request.api_version < GROUP_ERROR_VERSION:
        offsets = tuple(
            FetchedOffset(name, partition, error=result.error)
            for name, partitions in asked.items()
            for partition in partitions
        )
    return _Response(
        topics=[_topic(_Topic, name, members) for name, members in _by_topic(offsets).items()],
        error_code=int(result.error),
    )


def _may_read(parts: BrokerParts, request: Request, name: str, *, by_id: bool) -> bool:
    return (by_id and name == UNKNOWN_TOPIC) or topic_allowed(parts, request, name)


def _readable(
    parts: BrokerParts, request: Request, offsets: Sequence[FetchedOffset]
) -> list[FetchedOffset]:
    allowed = {n for n in {o.topic for o in offsets} if topic_allowed(parts, request, n)}
    return [offset for offset in offsets if offset.topic in allowed]


def _split_allowed(
    parts: BrokerParts, request: Request, asked: dict[str, list[int]]
) -> tuple[dict[str, list[int]], list[FetchedOffset]]:
    allowed = {n: indexes for n, indexes in asked.items() if topic_allowed(parts, request, n)}
    refused = [
        FetchedOffset(name, index, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for name, indexes in asked.items()
        if name not in allowed
        for index in indexes
    ]
    return allowed, refused


def _by_topic(offsets: Sequence[FetchedOffset]) -> dict[str, list[FetchedOffset]]:
    found: dict[str, list[FetchedOffset]] = {}
    for offset in offsets:
        found.setdefault(offset.topic, []).append(offset)
    return found


def _topic(topic_class: Any, name: str, offsets: Sequence[FetchedOffset]) -> Any:
    partition_class = getattr(topic_class, "OffsetFetchResponsePartitions", None)
    if partition_class is None:
        partition_class = topic_class.OffsetFetchResponsePartition
    return topic_class(
        name=name,
        partitions=[
            partition_class(
                partition_index=offset.partition,
                committed_offset=offset.committed_offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                error_code=int(offset.error),
            )
            for offset in offsets
        ],
    )
