"""Metadata of a transactional id: its committed value, and the only change under way.

Rules for this file: `TransactionMetadata` is a value and never changes; a `plan_*` function makes
the next value and nothing else. `TransactionEntry` holds the committed value beside the pending
one: prepare -> append the record -> complete, with the table of states checked on each side
(source: Kafka's `TransactionMetadata`).

Unlike Kafka, a failed append leaves no trace in memory: there a fence that could not be written
stays in the cache as a raised epoch with a flag against raising it twice. Here the next fence
starts from the same committed epoch, so it is the same number again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from broker_sim.core.transaction.states import (
    NEVER_STORED,
    PREPARED,
    VALID_PREVIOUS,
    TransactionState,
)
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    PRODUCER_EPOCH_MAX,
)
from txnlog_kafka.wire.topic_partition import TopicPartition

EPOCH_LAST = PRODUCER_EPOCH_MAX - 1
"""The last epoch a client may hold; after it comes a new producer id."""
TRANSACTION_VERSION_2 = 2
"""From this transaction version on, ending a transaction raises the epoch (KIP-890)."""

_S = TransactionState


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """The value of one transactional id. Times are ms since the epoch; -1 is "none" throughout.

    `last_producer_epoch` is not in the log (KIP-360 keeps it in memory): it is -1 after a load.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    last_update_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    client_transaction_version: int = 0

    @property
    def is_epoch_exhausted(self) -> bool:
        """True if this producer id has no epoch left for a client."""
        return is_epoch_exhausted(self.producer_epoch)


def is_epoch_exhausted(producer_epoch: int) -> bool:
    """True if a client that holds this epoch must get a new producer id next."""
    return producer_epoch >= EPOCH_LAST


def new_transaction(
    transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    """An id that has nothing in the log yet: it has no epoch, so its first one will be 0."""
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        state=_S.EMPTY,
        last_update_ms=now_ms,
    )


def plan_producer_epoch_bump(
    current: TransactionMetadata, timeout_ms: int, now_ms: int, *, expected_epoch: int | None
) -> TransactionMetadata | None:
    """InitProducerId without an open transaction; None when `expected_epoch` is fenced.

    The epoch is not exhausted: then there is `plan_producer_id_rotation`, or no answer.

    No expected epoch: a new producer instance, which fences the older one and forgets its epoch.
    The current one: the same instance goes on after an error (KIP-360). The last one: its retry,
    answered again without another bump.
    """
    epoch, last_epoch = current.producer_epoch + 1, NO_PRODUCER_EPOCH
    if expected_epoch is not None:
        if expected_epoch == current.producer_epoch or current.producer_epoch == NO_PRODUCER_EPOCH:
            last_epoch = current.producer_epoch
        elif expected_epoch == current.last_producer_epoch:
            epoch, last_epoch = current.producer_epoch, current.last_producer_epoch
        else:
            return None
    check(not current.is_epoch_exhausted, "the last epoch is never handed out", current=current)
    return replace(
        current,
        state=_S.EMPTY,
        previous_producer_id=current.producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
        last_update_ms=now_ms,
    )


def plan_producer_id_rotation(
    current: TransactionMetadata,
    new_producer_id: int,
    timeout_ms: int,
    now_ms: int,
    *,
    keep_last_epoch: bool,
) -> TransactionMetadata:
    """InitProducerId with the epoch used up: a new producer id at epoch 0."""
    check(current.state not in PREPARED, "a decided transaction keeps its producer id")
    return replace(
        current,
        state=_S.EMPTY,
        previous_producer_id=current.producer_id,
        producer_id=new_producer_id,
        producer_epoch=0,
        last_producer_epoch=current.producer_epoch if keep_last_epoch else NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
        last_update_ms=now_ms,
    )


def plan_add_partitions(
    current: TransactionMetadata,
    added: Iterable[TopicPartition],
    now_ms: int,
    *,
    client_transaction_version: int,
) -> TransactionMetadata:
    """Begin a transaction or widen it. The timeout clock starts with its first partition."""
    is_first = current.state is not _S.ONGOING
    return replace(
        current,
        state=_S.ONGOING,
        previous_producer_id=current.producer_id,
        partitions=current.partitions | frozenset(added),
        start_ms=now_ms if is_first else current.start_ms,
        last_update_ms=now_ms,
        client_transaction_version=client_transaction_version,
    )


def plan_end(
    current: TransactionMetadata,
    state: TransactionState,
    now_ms: int,
    *,
    client_transaction_version: int,
    next_producer_id: int = NO_PRODUCER_ID,
) -> TransactionMetadata:
    """Decide: PREPARE_COMMIT or PREPARE_ABORT. Version 2 raises the epoch with every end.

    An abort without a transaction (version 2 only) has no start time; it gets the present one.
    An abort at the epoch reserved for fencing cannot raise it; it goes on to a new producer id.
    """
    epoch, last_epoch = current.producer_epoch, current.last_producer_epoch
    if client_transaction_version >= TRANSACTION_VERSION_2:
        epoch, last_epoch = current.producer_epoch + 1, current.producer_epoch
        if state is _S.PREPARE_ABORT:
            epoch = min(epoch, PRODUCER_EPOCH_MAX)
    check(epoch <= PRODUCER_EPOCH_MAX, "an epoch would overflow", current=current)
    return replace(
        current,
        state=state,
        previous_producer_id=current.producer_id,
        next_producer_id=next_producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        start_ms=current.start_ms if current.state is _S.ONGOING else now_ms,
        last_update_ms=now_ms,
        client_transaction_version=client_transaction_version,
    )


def plan_fencing_abort(
    current: TransactionMetadata,
    now_ms: int,
    *,
    transaction_version: int,
    next_producer_id: int = NO_PRODUCER_ID,
) -> TransactionMetadata:
    """PREPARE_ABORT by InitProducerId or the timeout, with one bump of the epoch in all.

    The fence itself (Kafka's PREPARE_EPOCH_FENCE) is never stored: before version 2 the abort has
    its raised epoch. Version 2 bumps by ending the transaction, so the bump of the fence is not
    added to it (KAFKA-19367); with the epoch used up it goes on to `next_producer_id`
    (KAFKA-20090).
    """
    if transaction_version >= TRANSACTION_VERSION_2:
        return plan_end(
            current,
            _S.PREPARE_ABORT,
            now_ms,
            client_transaction_version=transaction_version,
            next_producer_id=next_producer_id,
        )
    epoch = min(current.producer_epoch + 1, PRODUCER_EPOCH_MAX)
    raised = replace(current, producer_epoch=epoch, last_producer_epoch=NO_PRODUCER_EPOCH)
    return plan_end(raised, _S.PREPARE_ABORT, now_ms, client_transaction_version=0)


def plan_complete(current: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Plan COMPLETE after all markers are written.

    With `next_producer_id` set, the client goes on with that id, at epoch 0. `last_producer_epoch`
    stays at the last epoch that the client saw.
    """
    rotates = (
        current.client_transaction_version >= TRANSACTION_VERSION_2
        and current.next_producer_id != NO_PRODUCER_ID
    )
    return replace(
        current,
        state=_S.COMPLETE_COMMIT if current.state is _S.PREPARE_COMMIT else _S.COMPLETE_ABORT,
        previous_producer_id=current.producer_id,
        producer_id=current.next_producer_id if rotates else current.producer_id,
        producer_epoch=0 if rotates else current.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        last_update_ms=now_ms,
    )


def plan_dead(current: TransactionMetadata) -> TransactionMetadata:
    """The id expired: a tombstone is to be written."""
    return replace(current, state=_S.DEAD, partitions=frozenset())


class TransactionEntry:
    """The committed value of one transactional id and the one change under way.

    `committed` is what the log says. `pending` is what was prepared and is not yet in the log;
    while it is there every other change is answered CONCURRENT_TRANSACTIONS. Between PREPARE and
    COMPLETE the pending value is the COMPLETE one and `unmarked` are the partitions whose marker
    is still to be written. `started_monotonic_ms` is where an ongoing transaction began on the
    process's own clock: its timeout must not depend on a wall clock that may jump.
    """

    def __init__(self, committed: TransactionMetadata) -> None:
        self.committed = committed
        self.started_monotonic_ms: int | None = None
        self.pending: TransactionMetadata | None = None
        self.unmarked: set[TopicPartition] = set()

    def prepare(self, target: TransactionMetadata) -> TransactionMetadata:
        """Note `target` as the change under way. The caller appends it and does nothing else."""
        check(self.pending is None, "one transition in flight at a time", pending=self.pending)
        check(
            self.committed.state in VALID_PREVIOUS[target.state],
            "illegal transition",
            current=self.committed,
            target=target,
        )
        check(target.producer_id >= 0, "illegal producer id", target=target)
        check(target.producer_epoch >= 0 or target.state is _S.DEAD, "illegal epoch", target=target)
        self.pending = target
        return target

    def cancel(self) -> None:
        """The change will not happen: the append failed, or a fence goes on as an abort."""
        self.pending = None

    def complete(self, record: TransactionMetadata) -> None:
        """`record` is in the log: it is the committed value now."""
        check(record == self.pending, "completed what was not prepared", record=record)
        check(record.state not in NEVER_STORED, "this state is never stored", record=record)
        check_next_value(self.committed, record)
        self.committed, self.pending = record, None

    def note_start(self, record: TransactionMetadata, now_ms: int, monotonic_ms: int) -> None:
        """`record` is about to be the committed value: when did its transaction begin?

        Live that is now. A load has only the stored wall time to tell how long ago it was, and
        takes one of the future for the present.
        """
        if record.state is not _S.ONGOING:
            self.started_monotonic_ms = None
            return
        is_known = self.committed.state is _S.ONGOING and self.committed.start_ms == record.start_ms
        if self.started_monotonic_ms is None or not is_known:
            self.started_monotonic_ms = monotonic_ms - max(0, now_ms - record.start_ms)


def check_next_value(current: TransactionMetadata, record: TransactionMetadata) -> None:
    """The second look before a change counts (source: Kafka's `completeTransitionTo`)."""
    if record.state is _S.EMPTY:
        ok = not record.partitions and record.start_ms == NO_TIMESTAMP
    elif record.state is _S.ONGOING:
        ok = record.partitions >= current.partitions and _same_producer(current, record)
        ok = ok and record.timeout_ms == current.timeout_ms
    elif record.state in PREPARED:
        ok = record.partitions == current.partitions and record.timeout_ms == current.timeout_ms
        ok = ok and record.producer_id == current.producer_id
        ok = ok and current.producer_epoch <= record.producer_epoch <= current.producer_epoch + 1
    else:
        ok = record.start_ms != NO_TIMESTAMP and record.timeout_ms == current.timeout_ms
        ok = ok and (_same_producer(current, record) or record.producer_epoch == 0)
    check(ok, "a transition changed what it must keep", current=current, record=record)


def _same_producer(current: TransactionMetadata, record: TransactionMetadata) -> bool:
    return (current.producer_id, current.producer_epoch) == (
        record.producer_id,
        record.producer_epoch,
    )
