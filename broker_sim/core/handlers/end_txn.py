"""EndTxn (key 26): commit or abort; from version 5 with the next producer epoch (KIP-890)."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import transactional_id_allowed
from broker_sim.core.handlers._verification import fenced_error
from broker_sim.core.parts import BrokerParts, respond
from broker_sim.core.transaction import ProducerIdResult
from broker_sim.core.transaction.metadata import TRANSACTION_VERSION_2
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, END_TXN_BUMPS_EPOCH_FROM, ApiKey, Message

_Response = APIS[ApiKey.END_TXN].response

FENCED_VERSION = 2


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """The answer means that the decision is in the transaction log."""
    message = request.message
    bumps = request.api_version >= END_TXN_BUMPS_EPOCH_FROM
    if not transactional_id_allowed(parts, request, message.transactional_id):
        refused = ProducerIdResult(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return respond(request, _answer(request, refused), effects)
    return parts.transactions.end_txn(
        message.transactional_id,
        lambda result, effects: respond(request, _answer(request, result), effects),
        effects,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        committed=bool(message.committed),
        client_transaction_version=TRANSACTION_VERSION_2 if bumps else 0,
    )


def _answer(request: Request, result: ProducerIdResult) -> Message:
    error = fenced_error(result.error, request.api_version, known_from=FENCED_VERSION)
    return _Response(
        error_code=int(error), producer_id=result.producer_id, producer_epoch=result.producer_epoch
    )
