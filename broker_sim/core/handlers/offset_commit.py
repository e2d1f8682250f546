"""OffsetCommit (key 8)."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.group.requests import OffsetCommit
from broker_sim.core.handlers.offsets import commit_topics, offsets_to_commit, split_known
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.OFFSET_COMMIT].response
_Topic = _Response.OffsetCommitResponseTopic

GROUP_ID_NOT_FOUND_VERSION = 9


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """Partitions that do not exist are refused one by one, the others as a whole."""
    message = request.message
    known, errors = split_known(state, offsets_to_commit(message.topics))
    if known:
        errors.update(
            state.groups.offset_commit(
                OffsetCommit(
                    group_id=message.group_id,
                    offsets=tuple(known),
                    generation_id=message.generation_id_or_member_epoch,
                    member_id=message.member_id,
                    group_instance_id=message.group_instance_id,
                    retention_time_ms=message.retention_time_ms,
                    knows_group_id_not_found=request.api_version >= GROUP_ID_NOT_FOUND_VERSION,
                ),
                effects,
            )
        )
    return _Response(throttle_time_ms=0, topics=commit_topics(_Topic, message.topics, errors))
