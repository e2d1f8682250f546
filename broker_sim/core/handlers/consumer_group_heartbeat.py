"""ConsumerGroupHeartbeat (key 68): the whole membership protocol of KIP-848."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.group.consumer_records import Partitions
from broker_sim.core.group.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from broker_sim.core.handlers._access import group_allowed, topic_allowed
from broker_sim.core.parts import BrokerParts, respond
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey

_Response = APIS[ApiKey.CONSUMER_GROUP_HEARTBEAT].response
_Assignment = _Response.Assignment

MEMBER_ID_VERSION = 1
"""From here on the client makes the member id (KIP-1082)."""


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """A member joins, lives or leaves."""
    message = request.message

    def answer(result: ConsumerHeartbeatResult, effects: Effects) -> None:
        respond(request, _response(result), effects)

    refused = _refused(parts, request)
    if refused is not ErrorCode.NONE:
        return answer(ConsumerHeartbeatResult(refused), effects)
    names, owned = message.subscribed_topic_names, message.topic_partitions
    heartbeat = ConsumerHeartbeat(
        group_id=message.group_id,
        member_id=message.member_id,
        member_epoch=message.member_epoch,
        instance_id=message.instance_id,
        rack_id=message.rack_id,
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        topic_names=None if names is None else frozenset(names),
        topic_regex=message.subscribed_topic_regex,
        server_assignor=message.server_assignor,
        owned=None if owned is None else _partitions(owned),
        client_id=request.client_id or "",
        client_host=f"/{request.client_host}",
        requires_member_id=request.api_version >= MEMBER_ID_VERSION,
        may_read=lambda topic: topic_allowed(parts, request, topic),
    )
    return parts.groups.consumer_heartbeat(heartbeat, answer, effects)


def _refused(parts: BrokerParts, request: Request) -> ErrorCode:
    message = request.message
    if parts.config.integer("group.version") < 1:
        return ErrorCode.UNSUPPORTED_VERSION
    if not group_allowed(parts, request, message.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    names = message.subscribed_topic_names or ()
    if not all(topic_allowed(parts, request, name) for name in names):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def _partitions(topics: Iterable[Any]) -> Partitions:
    found: dict[uuid.UUID, frozenset[int]] = {}
    for topic in topics:
        if topic.partitions:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | {*topic.partitions}
    return found


def _response(result: ConsumerHeartbeatResult) -> Any:
    response = _Response(
        error_code=int(result.error),
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
    )
    assignment = result.assignment
    if assignment is not None:
        topics = [
            _Assignment.TopicPartitions(topic_id=topic_id, partitions=sorted(assignment[topic_id]))
            for topic_id in sorted(assignment)
        ]
        response.assignment = _Assignment(topic_partitions=topics)
    return response
