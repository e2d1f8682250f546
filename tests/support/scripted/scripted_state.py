"""The model behind the scripted broker: one transactional log store, in plain dictionaries."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from txnlog_kafka.wire.errors import ErrorCode as E
from txnlog_kafka.wire.records import decode_records, increment_sequence, iter_batches

Partition = tuple[str, int]


@dataclass
class FakeTransaction:
    """What the coordinator knows of one transactional id."""

    producer_id: int
    producer_epoch: int = -1
    last_epoch: int = -1
    state: str = "Empty"
    partitions: set[Partition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)


@dataclass
class Appended:
    """One batch in a partition's log; `decided` is None while its transaction is open."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    values: list[bytes]
    raw: bytes
    decided: bool | None = None


class FakeState:
    """Transactions, logs and groups."""

    def __init__(self, transaction_version: int) -> None:
        self.version = transaction_version
        self.transactions: dict[str, FakeTransaction] = {}
        self.logs: dict[Partition, list[Appended]] = defaultdict(list)
        self.offsets: dict[str, dict[Partition, tuple[int, str]]] = defaultdict(dict)
        self.pending: dict[str, dict[tuple[str, Partition], tuple[int, str]]] = defaultdict(dict)
        self.max_message_bytes: int | None = None
        self._next_producer_id = 1000

    # ------------------------------------------------------------ what a reader sees

    def committed_values(self, partition: Partition) -> list[bytes]:
        """The values that read_committed gives."""
        return [v for a in self.logs[partition] if a.decided for v in a.values]

    # ------------------------------------------------------------ transactions

    def init(self, name: str, producer_id: int, producer_epoch: int) -> tuple[int, int, int]:
        """InitProducerId: (error, producer id, epoch)."""
        txn = self.transactions.get(name)
        if txn is None:
            self._next_producer_id += 1
            txn = self.transactions[name] = FakeTransaction(self._next_producer_id)
        expected = None if producer_id < 0 else producer_epoch
        if expected is not None and txn.producer_epoch >= 0 and producer_id != txn.producer_id:
            return E.PRODUCER_FENCED, -1, -1
        if txn.state == "Ongoing":
            txn.producer_epoch, txn.last_epoch = txn.producer_epoch + 1, -1
            self._decide(name, txn, committed=False)
            return E.CONCURRENT_TRANSACTIONS, -1, -1
        if expected is None:
            txn.producer_epoch, txn.last_epoch = txn.producer_epoch + 1, -1
        elif txn.producer_epoch < 0 or expected == txn.producer_epoch:
            txn.producer_epoch, txn.last_epoch = txn.producer_epoch + 1, txn.producer_epoch
        elif expected != txn.last_epoch:
            return E.PRODUCER_FENCED, -1, -1
        txn.state = "Empty"
        return E.NONE, txn.producer_id, txn.producer_epoch

    def check(self, name: str, producer_id: int, producer_epoch: int) -> int:
        """The errors that all transactional requests share."""
        txn = self.transactions.get(name)
        if txn is None or txn.producer_id != producer_id:
            return E.INVALID_PRODUCER_ID_MAPPING
        return E.NONE if txn.producer_epoch == producer_epoch else E.PRODUCER_FENCED

    def check_offsets(self, name: str, producer_id: int, producer_epoch: int, _group: str) -> int:
        """The errors of TxnOffsetCommit."""
        return self.check(name, producer_id, producer_epoch)

    def add(self, name: str, partitions: set[Partition], groups: set[str]) -> None:
        """Make partitions and groups part of the transaction."""
        txn = self.transactions[name]
        if txn.state != "Ongoing":
            txn.state, txn.partitions, txn.groups = "Ongoing", set(), set()
        txn.partitions |= partitions
        txn.groups |= groups

    def end(self, name: str, producer_id: int, epoch: int, *, committed: bool, v2: bool) -> int:
        """EndTxn, by the table in `docs/internals/commit-protocol.md`."""
        txn = self.transactions.get(name)
        if txn is None or txn.producer_id != producer_id:
            return E.INVALID_PRODUCER_ID_MAPPING
        wanted = "CompleteCommit" if committed else "CompleteAbort"
        if v2 and txn.producer_epoch == epoch + 1 and txn.state.startswith("Complete"):
            return E.NONE if txn.state == wanted else E.INVALID_TXN_STATE
        if txn.producer_epoch != epoch:
            return E.PRODUCER_FENCED
        if txn.state != "Ongoing":
            if not v2:
                return E.NONE if txn.state == wanted else E.INVALID_TXN_STATE
            if committed:
                return E.INVALID_TXN_STATE
        self._decide(name, txn, committed=committed)
        if v2:
            txn.last_epoch, txn.producer_epoch = txn.producer_epoch, txn.producer_epoch + 1
        return E.NONE

    def time_out(self, name: str) -> None:
        """The coordinator aborts an open transaction and fences its epoch."""
        txn = self.transactions[name]
        if txn.state == "Ongoing":
            txn.producer_epoch, txn.last_epoch = txn.producer_epoch + 1, -1
            self._decide(name, txn, committed=False)

    def _decide(self, name: str, txn: FakeTransaction, *, committed: bool) -> None:
        for partition in txn.partitions:
            for appended in self.logs[partition]:
                if appended.producer_id == txn.producer_id and appended.decided is None:
                    appended.decided = committed
        for (group, partition), value in self.pending.pop(name, {}).items():
            if committed:
                self.offsets[group][partition] = value
        txn.state = "CompleteCommit" if committed else "CompleteAbort"

    # ------------------------------------------------------------ data

    def append(self, name: str, partition: Partition, records: bytes, *, implicit: bool) -> int:
        """One Produce entry: exactly one batch, checks of the producer state, then the log."""
        batches = list(iter_batches(records))
        if len(batches) != 1:
            return E.INVALID_RECORD
        if self.max_message_bytes is not None and len(records) > self.max_message_bytes:
            return E.MESSAGE_TOO_LARGE
        header = batches[0][0]
        txn = self.transactions.get(name)
        if txn is None or txn.producer_id != header.producer_id:
            return E.INVALID_PRODUCER_ID_MAPPING
        if txn.producer_epoch != header.producer_epoch:
            return E.INVALID_PRODUCER_EPOCH
        mine = [
            a
            for a in self.logs[partition]
            if (a.producer_id, a.producer_epoch) == (header.producer_id, header.producer_epoch)
        ]
        if any((a.base_sequence, a.count) == _range(header) for a in mine[-5:]):
            return E.NONE
        if implicit:
            self.add(name, {partition}, set())
        elif txn.state != "Ongoing" or partition not in txn.partitions:
            return E.INVALID_TXN_STATE
        last = mine[-1] if mine else None
        expected = 0 if last is None else increment_sequence(last.base_sequence, last.count)
        if header.base_sequence != expected and not (last is None and header.base_sequence):
            return E.OUT_OF_ORDER_SEQUENCE_NUMBER
        if last is None and header.base_sequence != self._first_sequence(partition, header):
            return E.OUT_OF_ORDER_SEQUENCE_NUMBER
        values = [r.value or b"" for r in decode_records(records, 0, header)]
        self.logs[partition].append(
            Appended(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.record_count,
                values,
                bytes(records),
            )
        )
        return E.NONE

    def _first_sequence(self, partition: Partition, header) -> int:
        """A new epoch starts at 0; a partition that never saw the producer takes any start."""
        known = any(a.producer_id == header.producer_id for a in self.logs[partition])
        return 0 if known else header.base_sequence


def _range(header) -> tuple[int, int]:
    return header.base_sequence, header.record_count
