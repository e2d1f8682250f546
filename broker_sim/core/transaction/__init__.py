"""The transaction coordinator: states, decisions, markers, the transaction log, producer ids."""

from broker_sim.core.transaction.coordinator import TransactionCoordinator
from broker_sim.core.transaction.results import (
    ListedTransaction,
    ProducerIdResult,
    TransactionDescription,
    TransactionFilters,
    TransactionListing,
)
from broker_sim.core.transaction.states import TransactionState

__all__ = [
    "ListedTransaction",
    "ProducerIdResult",
    "TransactionCoordinator",
    "TransactionDescription",
    "TransactionFilters",
    "TransactionListing",
    "TransactionState",
]
