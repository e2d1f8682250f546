"""Values of the transaction coordinator, as its tests need them."""

from __future__ import annotations

from broker_sim.core.transaction.metadata import (
    TransactionMetadata,
)
from broker_sim.core.transaction.states import (
    TransactionState,
)


def build_metadata(state: TransactionState = TransactionState.EMPTY, **more) -> TransactionMetadata:
    values = {
        "transactional_id": "t", "producer_id": 5, "producer_epoch": 3, "timeout_ms": 1000,
        "state": state, "last_update_ms": 100, "start_ms": 50,
    } | more  # fmt: skip
    return TransactionMetadata(**values)
