"""ListTransactions (key 66)."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import transactional_id_allowed
from broker_sim.core.parts import BrokerParts
from broker_sim.core.transaction import TransactionFilters
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.LIST_TRANSACTIONS].response


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """List all transactional ids, or the ids that pass the filters (KIP-664, KIP-994)."""
    message = request.message
    filters = TransactionFilters(
        states=message.state_filters,
        producer_ids=frozenset(message.producer_id_filters),
        running_for_ms=message.duration_filter,
        id_pattern=message.transactional_id_pattern,
    )
    listing = parts.transactions.list_transactions(effects.now_ms, filters)
    return _Response(
        error_code=int(listing.error),
        unknown_state_filters=list(listing.unknown_state_filters),
        transaction_states=[
            _Response.TransactionState(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state,
            )
            for each in listing.transactions
            if transactional_id_allowed(parts, request, each.transactional_id)
        ],
    )
