"""The states of a transaction: one table.

Rules for this file: numbers are persisted in `__transaction_state` and never change; all legal
transitions are in VALID_PREVIOUS and nowhere else. Source: Kafka's `TransactionState`.
"""

from __future__ import annotations

import enum


class TransactionState(enum.IntEnum):
    """Persisted in the transaction log's value; `label` is what the admin APIs show.

    EMPTY: no transaction yet on this epoch.
      AddPartitionsToTxn, AddOffsetsToTxn -> ONGOING; EndTxn(abort) of version 2 -> PREPARE_ABORT;
      InitProducerId -> EMPTY; expiry -> DEAD.
    ONGOING: partitions were added, nothing is decided.
      more partitions -> ONGOING; EndTxn -> PREPARE_COMMIT or PREPARE_ABORT; InitProducerId or the
      timeout -> PREPARE_EPOCH_FENCE, at once followed by PREPARE_ABORT.
    PREPARE_COMMIT, PREPARE_ABORT: decided, for ever; markers are being written.
      the last marker written -> COMPLETE_COMMIT, COMPLETE_ABORT.
    COMPLETE_COMMIT, COMPLETE_ABORT: all markers are written.
      AddPartitionsToTxn -> ONGOING; InitProducerId -> EMPTY; EndTxn(abort) of version 2 ->
      PREPARE_ABORT; expiry -> DEAD.
    DEAD: the id expired; completing it removes the entry, so it is never stored.
    PREPARE_EPOCH_FENCE: the epoch is being raised to stop the producer; never stored.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Kafka's name, such as `PrepareCommit`."""
        return "".join(part.capitalize() for part in self.name.split("_"))


_S = TransactionState

VALID_PREVIOUS: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    # The last three: an empty abort of transaction version 2, which only raises the epoch.
    _S.PREPARE_ABORT: frozenset(
        {_S.ONGOING, _S.PREPARE_EPOCH_FENCE, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}
    ),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset({_S.EMPTY, _S.COMPLETE_ABORT, _S.COMPLETE_COMMIT}),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}

EXPIRABLE = VALID_PREVIOUS[_S.DEAD]
"""States that transactional.id.expiration.ms applies to."""
PREPARED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
BEGUN = PREPARED | {_S.ONGOING}
NEVER_STORED = frozenset({_S.DEAD, _S.PREPARE_EPOCH_FENCE})
COMPLETED = frozenset({_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})

STATE_OF_LABEL: dict[str, TransactionState] = {state.label: state for state in TransactionState}
