"""EndTxn (key 26): commit or abort; from version 5 with the next producer epoch (KIP-890)."""

from __future__ import annotations

from functools import partial

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import transactional_id_allowed
from broker_sim.core.handlers._verification import respond_with_ids
from broker_sim.core.parts import BrokerParts
from broker_sim.core.transaction import ProducerIdResult
from broker_sim.core.transaction.metadata import TRANSACTION_VERSION_2
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import END_TXN_BUMPS_EPOCH_FROM


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """The answer means that the decision is in the transaction log."""
    message = request.message
    answer = partial(respond_with_ids, request)
    bumps = request.api_version >= END_TXN_BUMPS_EPOCH_FROM
    if not transactional_id_allowed(parts, request, message.transactional_id):
        refused = ProducerIdResult(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return answer(refused, effects)
    return parts.transactions.end_txn(
        message.transactional_id,
        answer,
        effects,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        committed=bool(message.committed),
        client_transaction_version=TRANSACTION_VERSION_2 if bumps else 0,
    )
