"""DescribeClientQuotas (key 48): there are none, which `kafka-configs` asks before users."""

from __future__ import annotations

from broker_sim.core.effects import Request
from broker_sim.core.handlers._access import cluster_allowed
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DESCRIBE_CLIENT_QUOTAS].response


def handle(parts: BrokerParts, request: Request) -> Message:
    """Nobody has a quota."""
    if not cluster_allowed(parts, request):
        refused = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        text = "quotas are not open to this principal"
        return _Response(throttle_time_ms=0, error_code=refused, error_message=text, entries=None)
    return _Response(throttle_time_ms=0, error_code=0, error_message=None, entries=[])
