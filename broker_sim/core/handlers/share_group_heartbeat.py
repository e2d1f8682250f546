"""ShareGroupHeartbeat (key 76): refused, as by a Kafka whose feature `share.version` is 0.

The API is advertised for the sake of librdkafka, whose share consumer waits without a message for a
broker that lacks the API, and stops with this error.
"""

from __future__ import annotations

from broker_sim.core.effects import Request
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.SHARE_GROUP_HEARTBEAT].response


def handle(_parts: BrokerParts, _request: Request) -> Message:
    """Refuse the member."""
    return _Response(
        error_code=int(ErrorCode.UNSUPPORTED_VERSION),
        error_message="This broker has no share groups.",
        member_epoch=0,
        heartbeat_interval_ms=0,
    )
