"""DescribeCluster (key 60)."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DESCRIBE_CLUSTER].response

BROKERS = 1


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """The brokers; controllers are no endpoint of their own here."""
    del effects
    endpoint_type = request.message.endpoint_type
    error, text = ErrorCode.NONE, None
    if endpoint_type != BROKERS:
        error, text = ErrorCode.INVALID_REQUEST, f"endpoint type {endpoint_type} is not there"
    return _Response(
        throttle_time_ms=0,
        error_code=int(error),
        error_message=text,
        endpoint_type=BROKERS,
        cluster_id=state.image.cluster_id,
        controller_id=state.node_id,
        brokers=[
            _Response.DescribeClusterBroker(
                broker_id=state.node_id,
                host=state.endpoint.host,
                port=state.endpoint.port,
                rack=None,
            )
        ],
    )
