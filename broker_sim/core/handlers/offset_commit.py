"""OffsetCommit (key 8): topics by name, from version 10 on by id."""

from __future__ import annotations

from dataclasses import replace

from broker_sim.core.effects import Effects, Request
from broker_sim.core.group.requests import OffsetCommit
from broker_sim.core.handlers._offsets import commit_topics, split_known, topic_names
from broker_sim.core.parts import BrokerParts
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.OFFSET_COMMIT].response
_Topic = _Response.OffsetCommitResponseTopic

GROUP_ID_NOT_FOUND_VERSION = 9
TOPIC_ID_VERSION = 10


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Partitions that do not exist are refused one by one, the others as a whole."""
    message = request.message
    by_id = request.api_version >= TOPIC_ID_VERSION
    names = topic_names(parts, message.topics, by_id=by_id)
    known, errors = split_known(parts, message.topics, names, by_id=by_id)
    if known:
        # The id is stored also when the request has names only: it guards against reading the
        # offset of a topic that was deleted and recreated.
        topics = parts.image.topics
        offsets = tuple(replace(offset, topic_id=topics[offset.topic].topic_id) for offset in known)
        errors.update(
            parts.groups.offset_commit(
                OffsetCommit(
                    group_id=message.group_id,
                    offsets=offsets,
                    generation_id=message.generation_id_or_member_epoch,
                    member_id=message.member_id,
                    group_instance_id=message.group_instance_id,
                    retention_time_ms=message.retention_time_ms,
                    knows_group_id_not_found=request.api_version >= GROUP_ID_NOT_FOUND_VERSION,
                ),
                effects,
            )
        )
    answered = commit_topics(_Topic, message.topics, names, errors)
    return _Response(throttle_time_ms=0, topics=answered)
