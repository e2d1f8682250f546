"""AlterPartitionReassignments (key 45): other replicas for partitions (KIP-455)."""

from __future__ import annotations

from collections.abc import Iterable

from broker_sim.core.controller.replication_control import PartitionResult, Reassignment
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import cluster_allowed
from broker_sim.core.handlers._controller import committed, results_by_topic
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import CLUSTER_APIS, ApiKey, Message

_Response = CLUSTER_APIS[ApiKey.ALTER_PARTITION_REASSIGNMENTS].response
_Topic = _Response.ReassignableTopicResponse
FACTOR_CHANGE_VERSION = 1


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Each partition on its own."""
    message = request.message
    if not cluster_allowed(parts, request):
        return _answer(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ())
    asked = [
        Reassignment(topic.name, each.partition_index, _replicas(each.replicas))
        for topic in message.topics
        for each in topic.partitions
    ]
    allowed = request.api_version < FACTOR_CHANGE_VERSION or bool(
        message.allow_replication_factor_change
    )
    decision = parts.control.alter_reassignments(asked, allow_factor_change=allowed)
    results = committed(parts, decision, effects)
    return _answer(ErrorCode.NONE, results)


def _replicas(given: list[int] | None) -> tuple[int, ...] | None:
    return None if given is None else tuple(given)


def _answer(error: ErrorCode, results: Iterable[PartitionResult]) -> Message:
    by_topic = results_by_topic(results, _Topic.ReassignablePartitionResponse, "partition_index")
    return _Response(
        error_code=int(error),
        error_message=None if error is ErrorCode.NONE else error.name,
        responses=[_Topic(name=name, partitions=made) for name, made in by_topic.items()],
    )
