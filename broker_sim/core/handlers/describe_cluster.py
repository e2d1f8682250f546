"""DescribeCluster (key 60)."""

from __future__ import annotations

import enum

from broker_sim.core.effects import Request
from broker_sim.core.handlers._access import CLUSTER, authorized_operations
from broker_sim.core.handlers._lookup import brokers_on
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DESCRIBE_CLUSTER].response
FENCED_VERSION = 2
"""From here on brokers that are down can be asked for."""


class EndpointType(enum.IntEnum):
    """Whose addresses are asked for (KIP-919)."""

    BROKERS = 1
    CONTROLLERS = 2


def handle(parts: BrokerParts, request: Request) -> Message:
    """The brokers, also those that are down when they are asked for (KIP-1073); controllers have no
    endpoint of their own here."""
    message = request.message
    endpoint_type = EndpointType.BROKERS if request.api_version == 0 else message.endpoint_type
    if endpoint_type != EndpointType.BROKERS:
        is_known = endpoint_type == EndpointType.CONTROLLERS
        error = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        return _Response(
            error_code=int(ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else error),
            error_message=f"this is an endpoint of brokers, not of type {endpoint_type}",
        )
    listed = brokers_on(parts.image.brokers, request.listener)
    if request.api_version >= FENCED_VERSION and message.include_fenced_brokers:
        listed = brokers_on(parts.image.registered, request.listener)
    answer = _Response(
        endpoint_type=int(EndpointType.BROKERS),
        cluster_id=parts.image.cluster_id,
        controller_id=parts.membership.controller_id,
        brokers=[
            _Response.DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=address.host,
                port=address.port,
                rack=broker.rack,
                is_fenced=broker.broker_id in parts.image.fenced,
            )
            for broker, address in listed
        ],
    )
    if message.include_cluster_authorized_operations:
        answer.cluster_authorized_operations = authorized_operations(parts, request, CLUSTER)
    return answer
