"""OffsetCommit (key 8): topics by name, from version 10 on by id."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.group.requests import OffsetCommit, OffsetErrors
from broker_sim.core.handlers._access import group_allowed
from broker_sim.core.handlers._offsets import (
    all_partitions,
    commit_topics,
    split_known,
    topic_names,
)
from broker_sim.core.parts import BrokerParts, respond
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey

_Response = APIS[ApiKey.OFFSET_COMMIT].response
_Topic = _Response.OffsetCommitResponseTopic

GROUP_ID_NOT_FOUND_VERSION = 9
TOPIC_ID_VERSION = 10


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Partitions that do not exist are refused one by one, the others as a whole."""
    message = request.message
    by_id = request.api_version >= TOPIC_ID_VERSION
    names = topic_names(parts, message.topics, by_id=by_id)
    known, errors = split_known(parts, request, names, by_id=by_id)

    def answer(committed: OffsetErrors, effects: Effects) -> None:
        answered = commit_topics(_Topic, message.topics, names, errors | committed)
        respond(request, _Response(topics=answered), effects)

    if not group_allowed(parts, request, message.group_id):
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return answer(all_partitions(message.topics, names, refused), effects)
    if not known:
        return answer({}, effects)
    commit = OffsetCommit(
        group_id=message.group_id,
        offsets=tuple(known),
        generation_id=message.generation_id_or_member_epoch,
        member_id=message.member_id,
        group_instance_id=message.group_instance_id,
        retention_time_ms=message.retention_time_ms,
        knows_group_id_not_found=request.api_version >= GROUP_ID_NOT_FOUND_VERSION,
    )
    return parts.groups.offset_commit(commit, answer, effects)
