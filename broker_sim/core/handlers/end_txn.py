"""EndTxn (key 26): commit or abort; from version 5 with the next producer epoch (KIP-890)."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers.transactional import fenced_error
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.END_TXN].response

FENCED_VERSION = 2
EPOCH_BUMP_VERSION = 5


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """The answer means that the decision is in the transaction log."""
    message = request.message
    bumps = request.api_version >= EPOCH_BUMP_VERSION
    result = state.transactions.end_txn(
        message.transactional_id,
        effects,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        committed=bool(message.committed),
        client_transaction_version=2 if bumps else 0,
    )
    error = fenced_error(result.error, request.api_version, known_from=FENCED_VERSION)
    return _Response(
        throttle_time_ms=0,
        error_code=int(error),
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
    )
