"""AddOffsetsToTxn (key 25): the group's offsets partition joins the transaction."""

from __future__ import annotations

from functools import partial

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import group_allowed, transactional_id_allowed
from broker_sim.core.handlers._verification import fenced_error
from broker_sim.core.parts import BrokerParts, respond
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.topic_partition import GROUP_METADATA_TOPIC

_Response = APIS[ApiKey.ADD_OFFSETS_TO_TXN].response


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Adds the partition of `__consumer_offsets` that holds the group."""
    message = request.message
    if not transactional_id_allowed(parts, request, message.transactional_id):
        return _answer(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, effects)
    if not group_allowed(parts, request, message.group_id):
        return _answer(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, effects)
    if not parts.topics.ensure_internal(GROUP_METADATA_TOPIC, effects):
        return _answer(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, effects)
    return parts.transactions.add_offsets(
        message.transactional_id,
        message.group_id,
        partial(_answer, request),
        effects,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
    )


def _answer(request: Request, error: ErrorCode, effects: Effects) -> None:
    respond(request, _Response(error_code=int(fenced_error(error, request))), effects)
