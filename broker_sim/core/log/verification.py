"""Batches that begin a transaction and wait until the coordinator has said that they may (KIP-890).

Kept in memory only. Source: Kafka's `VerificationStateEntry` and `ProducerStateManager`.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_sim.core.log.producer_state import (
    NO_GUARD,
    ProducerStateEntry,
    ProducerStates,
    check_producer_epoch,
)
from broker_sim.core.log.values import Rejection
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import BatchHeader


@dataclass(slots=True)
class VerificationState:
    """A producer whose first batch of a transaction waits for the coordinator's word.

    `guard` tells one wait from the next one; `lowest_sequence` is of the batches it sent in
    `producer_epoch`; `supports_epoch_bump` what the first of them said of its transaction version.
    """

    guard: int
    started_ms: int
    producer_epoch: int
    lowest_sequence: int
    supports_epoch_bump: bool


class VerificationStates:
    """First batches of producers whose transaction is not known here yet (KIP-890).

    Without these states, a later batch of the same producer, verified in the meantime, could enter
    the log first while an earlier batch was refused: a hole that no later check would see.
    """

    def __init__(self, producers: ProducerStates) -> None:
        """`producers` is what the log knows of its producers."""
        self._producers = producers
        self._states: dict[int, VerificationState] = {}
        self._last_guard = NO_GUARD

    def begin(
        self,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        now_ms: int,
        *,
        supports_epoch_bump: bool,
    ) -> Rejection | None:
        """A batch that begins a transaction here has come, and the coordinator is asked next.

        Its sequence is remembered, so that none after it can be the first when it is refused. An
        epoch that is older than what the log knows need not be asked about (KAFKA-18042).
        """
        rejection = check_producer_epoch(self._producers.entry(producer_id), producer_epoch)
        if rejection is not None:
            return rejection
        state = self._states.get(producer_id)
        if state is None:
            self._last_guard += 1
            state = self._states[producer_id] = VerificationState(
                self._last_guard, now_ms, producer_epoch, sequence, supports_epoch_bump
            )
        if producer_epoch > state.producer_epoch:
            state.producer_epoch, state.lowest_sequence = producer_epoch, sequence
        elif producer_epoch == state.producer_epoch:
            state.lowest_sequence = min(state.lowest_sequence, sequence)
        return None

    def guard(self, producer_id: int) -> int:
        """Return the guard of the wait that is under way, else NO_GUARD."""
        state = self._states.get(producer_id)
        return NO_GUARD if state is None else state.guard

    def check_guard(
        self, entry: ProducerStateEntry, header: BatchHeader, guard: int | None
    ) -> Rejection | None:
        """A batch is in the transaction that is open, or in the one that the coordinator was asked
        about, with no marker since: else it would begin one that nobody ever ends. `guard` is from
        when it was asked, None where nothing needs to be verified.
        """
        if guard is None or not header.is_transactional:
            return None
        is_open = entry.current_txn_first_offset is not None
        if is_open and entry.producer_epoch == header.producer_epoch:
            return None
        if guard != NO_GUARD and guard == self.guard(header.producer_id):
            return None
        text = f"a batch of producer {header.producer_id} is not part of an ongoing transaction"
        return Rejection(ErrorCode.INVALID_TXN_STATE, text)

    def check_sequence(self, entry: ProducerStateEntry, header: BatchHeader) -> Rejection | None:
        """The first batch of a transaction may not overtake one that was refused.

        With transaction version 2 a producer that nothing is known of starts at sequence 0.
        """
        state = self._states.get(header.producer_id)
        if state is None:
            return None
        expected = state.lowest_sequence
        if state.supports_epoch_bump and not entry.batches:
            expected = min(expected, 0)
        if header.base_sequence <= expected:
            return None
        return Rejection(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"sequence {header.base_sequence} of producer {header.producer_id} epoch "
            f"{header.producer_epoch} is out of order, expected at most {expected}",
        )

    def replay(self, header: BatchHeader) -> None:
        """A batch is in the log: nothing is waited for, unless the next transaction is.

        With version 2 a marker has the epoch of the transaction after it, whose first batch may
        have come before the marker.
        """
        state = self._states.get(header.producer_id)
        if state is None or not header.is_transactional:
            return
        is_next = header.is_control and header.producer_epoch == state.producer_epoch
        if not (state.supports_epoch_bump and is_next):
            del self._states[header.producer_id]

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Forget what is older than a producer id may be idle."""
        self._states = {
            producer_id: state
            for producer_id, state in self._states.items()
            if now_ms - state.started_ms < expiration_ms
        }
