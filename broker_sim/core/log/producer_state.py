"""Memory of a partition for each producer: epoch, last batches, open transaction.

Rules for this file
- Checks decide and change nothing; `ProducerStates.replay` alone changes state, live and at
  recovery alike, and it never refuses: what is in the log has happened.
- Of each producer the last 5 batches are kept, so that a retry of any of the five that may be in
  flight is answered with the old offset (Kafka's `ProducerStateEntry.NUM_BATCHES_TO_RETAIN`).
- An undecided transaction is known by the offset of its first batch. A decided one stays unstable
  until the high watermark has passed its marker.

Sources: Kafka's `ProducerStateManager`, `ProducerStateEntry`, `ProducerAppendInfo`; KIP-98, KIP-360
(no state: any sequence), KIP-890 and KIP-1228 (marker epochs under transaction version 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from broker_sim.core.log.values import (
    AbortedTransaction,
    AppendOrigin,
    ProducerStateView,
    Rejection,
)
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.records import (
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PRODUCER_EPOCH_MAX,
    SEQUENCE_MAX,
    BatchHeader,
    MarkerType,
    TransactionMarker,
    increment_sequence,
)

BATCHES_RETAINED = 5
NO_COORDINATOR_EPOCH = -1
NO_TRANSACTION_VERSION = -1
NO_GUARD = 0
"""Nothing was asked, as the transaction was open (Kafka's `VerificationGuard.SENTINEL`)."""


class BatchMetadata(NamedTuple):
    """A remembered batch. `last_sequence`, `last_offset` and `timestamp` are of its last record."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Sequence of the first record, with the wrap from 0 back to 2^31-1."""
        if self.last_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class ProducerStateEntry:
    """State of a producer on a partition. An entry without batches has seen only a marker."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    current_txn_first_offset: int | None = None
    batches: tuple[BatchMetadata, ...] = ()

    @property
    def last_sequence(self) -> int:
        """Last sequence of the newest batch; -1 when there is no batch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def replay_data(self, header: BatchHeader) -> bool:
        """A data batch is in the log. True when it began a transaction."""
        self._move_epoch(header.producer_epoch)
        batch = BatchMetadata(
            header.last_sequence,
            header.last_offset,
            header.last_offset_delta,
            header.max_timestamp,
        )
        self.batches = (*self.batches[-(BATCHES_RETAINED - 1) :], batch)
        self.last_timestamp = header.max_timestamp
        if self.current_txn_first_offset is None and header.is_transactional:
            self.current_txn_first_offset = header.base_offset
            return True
        return False

    def replay_marker(self, marker: TransactionMarker, timestamp: int) -> int | None:
        """A marker is in the log. The first offset of the transaction that it ended, if any."""
        self._move_epoch(marker.producer_epoch)
        self.coordinator_epoch = marker.coordinator_epoch
        self.last_timestamp = timestamp
        first_offset = self.current_txn_first_offset
        self.current_txn_first_offset = None
        return first_offset

    def duplicate_of(self, header: BatchHeader) -> BatchMetadata | None:
        """The remembered batch that `header` repeats: same epoch, first and last sequence."""
        if header.producer_epoch != self.producer_epoch:
            return None
        last_sequence = header.last_sequence
        for batch in self.batches:
            if (
                batch.last_sequence == last_sequence
                and batch.first_sequence == header.base_sequence
            ):
                return batch
        return None

    def _move_epoch(self, producer_epoch: int) -> None:
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.batches = ()


# --------------------------------------------------------------------------- checks


def check_data_batch(
    entry: ProducerStateEntry, header: BatchHeader, origin: AppendOrigin
) -> Rejection | None:
    """May this batch follow what the producer wrote before?"""
    rejection = check_producer_epoch(entry, header.producer_epoch)
    if rejection is None and origin is AppendOrigin.CLIENT:
        rejection = _check_sequence(entry, header)
    if rejection is not None:
        return rejection
    if entry.current_txn_first_offset is not None and not header.is_transactional:
        return Rejection(
            ErrorCode.INVALID_TXN_STATE,
            f"expected a transactional batch: producer {header.producer_id} has a transaction open "
            f"since offset {entry.current_txn_first_offset}",
        )
    return None


def check_producer_epoch(entry: ProducerStateEntry, producer_epoch: int) -> Rejection | None:
    """An older epoch is fenced: INVALID_PRODUCER_EPOCH, not PRODUCER_FENCED, since Kafka 2.7."""
    if producer_epoch >= entry.producer_epoch:
        return None
    return Rejection(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"epoch {producer_epoch} of producer {entry.producer_id} is older than the last seen "
        f"epoch {entry.producer_epoch}",
    )


def _check_sequence(entry: ProducerStateEntry, header: BatchHeader) -> Rejection | None:
    if header.producer_epoch != entry.producer_epoch:
        # KIP-360: a producer nothing is known of (expired, or its data deleted) may go on.
        if header.base_sequence == 0 or entry.producer_epoch == NO_PRODUCER_EPOCH:
            return None
        expected = "0 in a new epoch"
    else:
        next_sequence = increment_sequence(entry.last_sequence, 1)
        if header.base_sequence == next_sequence:
            return None
        expected = str(next_sequence)
    return Rejection(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"sequence {header.base_sequence} of producer {header.producer_id} epoch "
        f"{header.producer_epoch} is out of order, expected {expected}",
    )


def check_marker(
    entry: ProducerStateEntry, marker: TransactionMarker, transaction_version: int
) -> Rejection | None:
    """May this marker end the producer's transaction?

    Under transaction version 2 the coordinator has bumped the epoch before the marker, so it must
    be above the stored one; the same epoch without an open transaction is a retry of a marker that
    was written, and is written again (KAFKA-19999). Older versions repeat the data's epoch.
    """
    rejection = check_producer_epoch(entry, marker.producer_epoch)
    if rejection is not None:
        return rejection
    if transaction_version == NO_TRANSACTION_VERSION:
        text = f"a marker of producer {marker.producer_id} says no transaction version"
        return Rejection(ErrorCode.UNKNOWN_SERVER_ERROR, text)
    is_open = entry.current_txn_first_offset is not None
    # The last epoch cannot rise any more: it may end what it began, or nothing ever would.
    must_rise = marker.producer_epoch == entry.producer_epoch < PRODUCER_EPOCH_MAX
    if transaction_version >= 2 and must_rise and is_open:
        return Rejection(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"marker epoch {marker.producer_epoch} of producer {marker.producer_id} is not above "
            "that of its open transaction (transaction version 2)",
        )
    if marker.coordinator_epoch < entry.coordinator_epoch:
        return Rejection(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"coordinator epoch {marker.coordinator_epoch} is older than {entry.coordinator_epoch} "
            f"known for producer {marker.producer_id}",
        )
    return None


# --------------------------------------------------------------------------- the states


class ProducerStates:
    """Producers of a partition, with its undecided and its not yet replicated transactions."""

    def __init__(self, entries: Iterable[ProducerStateEntry] = ()) -> None:
        self._unreplicated: dict[int, int] = {}
        self._restore_entries(entries)

    def _restore_entries(self, entries: Iterable[ProducerStateEntry]) -> None:
        self.entries = {entry.producer_id: entry for entry in entries}
        open_entries = (
            (entry.current_txn_first_offset, entry.producer_id)
            for entry in self.entries.values()
            if entry.current_txn_first_offset is not None
        )
        # In the order of first offsets: a new transaction always begins above all others.
        self._ongoing: dict[int, int] = dict(sorted(open_entries))

    def truncate(self, entries: Iterable[ProducerStateEntry], end_offset: int) -> None:
        """The log ends at `end_offset` now, where these were the states."""
        self._restore_entries(entries)
        self._unreplicated = {
            first: last for first, last in self._unreplicated.items() if last < end_offset
        }

    def entry(self, producer_id: int) -> ProducerStateEntry:
        """A copy to draft on; an empty one for a producer that is not known."""
        known = self.entries.get(producer_id)
        if known is None:
            return ProducerStateEntry(producer_id)
        # Spelt out: `copy.copy` takes a tenth of the time of a small append.
        return ProducerStateEntry(
            known.producer_id,
            known.producer_epoch,
            known.coordinator_epoch,
            known.last_timestamp,
            known.current_txn_first_offset,
            known.batches,
        )

    def replay(
        self, header: BatchHeader, marker: TransactionMarker | None
    ) -> AbortedTransaction | None:
        """A batch with a producer id is in the log; `marker` is what a control batch carries.

        Return the index entry of an ABORT that ended a transaction with data. A control batch
        without a marker (emptied, or of another type) changes nothing.
        """
        if header.is_control and marker is None:
            return None
        entry = self.entries.get(header.producer_id)
        if entry is None:
            entry = self.entries[header.producer_id] = ProducerStateEntry(header.producer_id)
        if marker is None:
            if entry.replay_data(header):
                self._ongoing[header.base_offset] = header.producer_id
            return None
        first_offset = entry.replay_marker(marker, header.max_timestamp)
        if first_offset is None:
            return None
        ended = self._complete(header.producer_id, first_offset, header.last_offset)
        return ended if marker.marker_type is MarkerType.ABORT else None

    def _complete(self, producer_id: int, first: int, last: int) -> AbortedTransaction:
        """The transaction is decided; it is stable when the high watermark passes the marker.

        Return its index entry for an abort: the LSO after the marker is the first offset of the
        next undecided transaction. Offsets are inclusive.
        """
        owner = self._ongoing.pop(first, None)
        ended = AbortedTransaction(producer_id, first, last, next(iter(self._ongoing), last + 1))
        check(owner == producer_id, "ended a transaction that is not open", txn=ended)
        self._unreplicated[first] = last
        return ended

    def end_open(self, last_offset: int) -> Iterator[AbortedTransaction]:
        """Batches up to the offset are lost, perhaps markers: all undecided transactions end here.

        As aborted, for else a later marker of its producer would decide it: aborted records would
        be read as committed.
        """
        for first_offset, producer_id in list(self._ongoing.items()):
            self.entries[producer_id].current_txn_first_offset = None
            yield self._complete(producer_id, first_offset, last_offset)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget the decided transactions whose marker is replicated."""
        if not self._unreplicated:
            return
        for first_offset, last_offset in list(self._unreplicated.items()):
            if last_offset < high_watermark:
                del self._unreplicated[first_offset]

    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest transaction that is undecided or not replicated."""
        return min((*islice(self._ongoing, 1), *self._unreplicated), default=None)

    def has_open_transaction(self, producer_id: int, producer_epoch: int | None = None) -> bool:
        """An undecided transaction of this producer (in this epoch) has data here."""
        entry = self.entries.get(producer_id)
        if entry is None or entry.current_txn_first_offset is None:
            return False
        return producer_epoch is None or entry.producer_epoch == producer_epoch

    def last_records(self) -> dict[int, tuple[int | None, int]]:
        """(offset of its last data, None when it has none in its epoch, epoch) by producer id."""
        return {
            producer_id: (
                entry.batches[-1].last_offset if entry.batches else None,
                entry.producer_epoch,
            )
            for producer_id, entry in self.entries.items()
        }

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that were idle so long, unless a transaction is open."""
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.current_txn_first_offset is None
            and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self.entries[producer_id]

    def views(self) -> tuple[ProducerStateView, ...]:
        """Return the state of all producers, by id."""
        return tuple(
            ProducerStateView(
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=(
                    -1 if entry.current_txn_first_offset is None else entry.current_txn_first_offset
                ),
            )
            for _, entry in sorted(self.entries.items())
        )
