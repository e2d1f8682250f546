"""OffsetFetch (key 9): one group below version 8, several from then on."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.group.requests import FetchedOffset, OffsetFetchResult
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.OFFSET_FETCH].response
_Topic = _Response.OffsetFetchResponseTopic
_Group = _Response.OffsetFetchResponseGroup
_GroupTopic = _Group.OffsetFetchResponseTopics

GROUPS_VERSION = 8
GROUP_ERROR_VERSION = 2


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """A null list of topics means every offset of the group."""
    del effects
    message = request.message
    require_stable = bool(message.require_stable)
    if request.api_version < GROUPS_VERSION:
        return _single(state, request, require_stable)
    groups = []
    for group in message.groups:
        result = _fetch(state, group.group_id, group.topics, require_stable)
        topics = _topics(_GroupTopic, _GroupTopic.OffsetFetchResponsePartitions, result.offsets)
        groups.append(_Group(group_id=group.group_id, topics=topics, error_code=int(result.error)))
    return _Response(throttle_time_ms=0, groups=groups)


def _single(state: BrokerState, request: Request, require_stable: bool) -> Message:
    message = request.message
    result = _fetch(state, message.group_id, message.topics, require_stable)
    offsets = result.offsets
    if result.error is not ErrorCode.NONE and request.api_version < GROUP_ERROR_VERSION:
        offsets = tuple(
            FetchedOffset(topic.name, partition, error=result.error)
            for topic in message.topics
            for partition in topic.partition_indexes
        )
    return _Response(
        throttle_time_ms=0,
        topics=_topics(_Topic, _Topic.OffsetFetchResponsePartition, offsets),
        error_code=int(result.error),
    )


def _fetch(
    state: BrokerState, group_id: str, topics: Any, require_stable: bool
) -> OffsetFetchResult:
    wanted = None
    if topics is not None:
        wanted = {topic.name: list(topic.partition_indexes) for topic in topics}
    return state.groups.offset_fetch(group_id, wanted, require_stable=require_stable)


def _topics(
    topic_class: Any, partition_class: Any, offsets: tuple[FetchedOffset, ...]
) -> list[Any]:
    by_topic = groupby(sorted(offsets, key=lambda o: (o.topic, o.partition)), lambda o: o.topic)
    return [
        topic_class(
            name=topic,
            partitions=[
                partition_class(
                    partition_index=offset.partition,
                    committed_offset=offset.committed_offset,
                    committed_leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                    error_code=int(offset.error),
                )
                for offset in members
            ],
        )
        for topic, members in by_topic
    ]
