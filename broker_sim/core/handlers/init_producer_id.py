"""InitProducerId (key 22)."""

from __future__ import annotations

from functools import partial

from broker_sim.core.controller.acls import AclOperation
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import (
    TOPIC,
    cluster_allowed,
    may_any,
    transactional_id_allowed,
)
from broker_sim.core.handlers._verification import respond_with_ids
from broker_sim.core.parts import BrokerParts
from broker_sim.core.transaction import ProducerIdResult
from txnlog_kafka.wire.error_codes import ErrorCode


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """A producer id and epoch; versions 3 and up may carry the ones the client holds (KIP-360)."""
    message = request.message
    answer = partial(respond_with_ids, request)
    refused = _refused(parts, request)
    if refused is not ErrorCode.NONE:
        return answer(ProducerIdResult(refused), effects)
    return parts.transactions.init_producer_id(
        message.transactional_id,
        message.transaction_timeout_ms,
        answer,
        effects,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
    )


def _refused(parts: BrokerParts, request: Request) -> ErrorCode:
    """Without a transactional id a client that may write to any topic may be idempotent, too
    (KIP-679)."""
    transactional_id = request.message.transactional_id
    if transactional_id is not None:
        if not transactional_id_allowed(parts, request, transactional_id):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not cluster_allowed(parts, request) and not may_any(
        parts, request, AclOperation.WRITE, TOPIC
    ):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ErrorCode.NONE
