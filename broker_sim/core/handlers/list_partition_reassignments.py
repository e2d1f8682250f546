"""ListPartitionReassignments (key 46): those in progress (KIP-455)."""

from __future__ import annotations

from typing import Any

from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.effects import Request
from broker_sim.core.handlers._access import cluster_allowed
from broker_sim.core.handlers._controller import grouped
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import CLUSTER_APIS, ApiKey, Message

_Response = CLUSTER_APIS[ApiKey.LIST_PARTITION_REASSIGNMENTS].response
_Topic = _Response.OngoingTopicReassignment


def handle(parts: BrokerParts, request: Request) -> Message:
    """List the reassignments of these partitions, or of all for a null list."""
    wanted = request.message.topics
    if not cluster_allowed(parts, request):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return _Response(error_code=int(error), error_message=error.name, topics=[])
    partitions = None
    if wanted is not None:
        partitions = [(each.name, number) for each in wanted for number in each.partition_indexes]
    ongoing = parts.control.list_reassignments(partitions)
    by_topic = grouped(ongoing, lambda each: each[0], _ongoing)
    return _Response(
        error_message=None,
        topics=[_Topic(name=name, partitions=made) for name, made in by_topic.items()],
    )


def _ongoing(found: tuple[str, int, PartitionRegistration]) -> Any:
    _, number, held = found
    return _Topic.OngoingPartitionReassignment(
        partition_index=number,
        replicas=list(held.replicas),
        adding_replicas=list(held.adding),
        removing_replicas=list(held.removing),
    )
