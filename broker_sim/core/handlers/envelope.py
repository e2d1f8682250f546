"""Envelope (key 58): a client's request that another broker has passed on (KIP-590)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker_sim.apis import BROKER_APIS, BrokerApiKey
from broker_sim.core.effects import Effects, Request
from broker_sim.core.endpoint import inter_broker_listener
from broker_sim.core.handlers._access import cluster_allowed
from broker_sim.core.handlers._forwarding import FORWARDED
from broker_sim.core.membership import ClusterMember
from broker_sim.core.parts import BrokerParts, respond
from txnlog_kafka.wire import framing
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.framing import MalformedFrame, UnsupportedVersion
from txnlog_kafka.wire.messages import Message

_Response = BROKER_APIS[BrokerApiKey.ENVELOPE].response


def handle(
    member: ClusterMember, parts: BrokerParts, request: Request, effects: Effects
) -> Message | None:
    """Carried out as the client that has asked. Only a broker may say which that is: by the
    listener of brokers, and as one that may act for the cluster, as in Kafka."""
    if request.listener != inter_broker_listener(parts.config) or not cluster_allowed(
        parts, request
    ):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    message = request.message
    try:
        header, inner = framing.decode_request(bytes(message.request_data))
    except UnsupportedVersion:
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    except MalformedFrame:
        return _refused(ErrorCode.INVALID_REQUEST)
    if header.api_key not in FORWARDED:
        return _refused(ErrorCode.INVALID_REQUEST)
    asked = replace(
        request,
        correlation_id=header.correlation_id,
        api_key=header.api_key,
        api_version=header.api_version,
        client_id=header.client_id,
        client_host=bytes(message.client_host_address).decode("utf-8", "replace"),
        message=inner,
        principal=bytes(message.request_principal or b"").decode("utf-8", "replace"),
    )

    def on_answer(answer: Any, effects: Effects) -> None:
        if isinstance(answer, ErrorCode):
            respond(request, _refused(answer), effects)
            return
        frame = framing.encode_response(
            header.api_key, header.api_version, header.correlation_id, answer
        )
        respond(request, _Response(response_data=frame[4:]), effects)

    member.carry_out(asked, on_answer, effects)
    return None


def _refused(error: ErrorCode) -> Message:
    return _Response(response_data=None, error_code=int(error))
