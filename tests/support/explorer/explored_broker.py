"""The scripted broker as a finite automaton: states by number, each step computed once.

Beside the rules of `FakeState` it keeps Prepare states: a transaction is decided when EndTxn or
InitProducerId is carried out, and its markers are written by a step of their own (`complete`), at
any later time. Meanwhile a leader goes on taking what the deciding epoch sends, as Kafka's does: it
learns from the marker that the transaction is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

from support.scripted.scripted_broker import ScriptedCluster
from support.scripted.scripted_state import FakeState, FakeTransaction, Partition

from txnlog_kafka.operations.effects import Call, Reply, Unanswered
from txnlog_kafka.wire.errors import ErrorCode as E
from txnlog_kafka.wire.records import iter_batches

PREPARED = ("PrepareCommit", "PrepareAbort")


class LateMarkerState(FakeState):
    """`FakeState` with a Prepare state between the decision and the markers."""

    def __init__(self, transaction_version: int) -> None:
        super().__init__(transaction_version)
        self.deciding_epochs: dict[str, int] = {}
        """Of the transactions whose markers are missing."""

    def copy(self) -> LateMarkerState:
        """Another state that can be changed."""
        made = LateMarkerState(self.version)
        for name, txn in self.transactions.items():
            made.transactions[name] = replace(
                txn, partitions=set(txn.partitions), groups=set(txn.groups)
            )
        for partition, log in self.logs.items():
            made.logs[partition] = [replace(appended) for appended in log]
        for group, offsets in self.offsets.items():
            made.offsets[group] = dict(offsets)
        for name, pending in self.pending.items():
            made.pending[name] = dict(pending)
        made.deciding_epochs = dict(self.deciding_epochs)
        made._next_producer_id = self._next_producer_id
        return made

    def key(self) -> str:
        """Equal for equal states."""
        transactions = [
            sorted(each) if isinstance(each, set) else each
            for name, txn in sorted(self.transactions.items())
            for each in (name, *astuple(txn))
        ]
        parts = (self.logs, self.offsets, self.pending)
        nested = [sorted((k, v) for k, v in part.items() if v) for part in parts]
        ordered = [
            [(k, sorted(v.items()) if isinstance(v, dict) else v) for k, v in part]
            for part in nested
        ]
        return repr((transactions, ordered, sorted(self.deciding_epochs.items())))

    # ------------------------------------------------------------ the rules that differ

    def init(self, name: str, producer_id: int, producer_epoch: int) -> tuple[int, int, int]:
        """As `FakeState`; CONCURRENT_TRANSACTIONS while markers are missing."""
        txn = self.transactions.get(name)
        is_holder = txn is not None and producer_id in (-1, txn.producer_id)
        if txn is not None and is_holder and txn.state in PREPARED:
            return E.CONCURRENT_TRANSACTIONS, -1, -1
        if txn is not None and txn.state == "Ongoing":
            self.deciding_epochs[name] = txn.producer_epoch
        return super().init(name, producer_id, producer_epoch)

    def check(self, name: str, producer_id: int, producer_epoch: int) -> int:
        """As `FakeState`; CONCURRENT_TRANSACTIONS while markers are missing."""
        txn = self.transactions.get(name)
        code = super().check(name, producer_id, producer_epoch)
        is_prepared = txn is not None and txn.state in PREPARED
        return E.CONCURRENT_TRANSACTIONS if is_prepared and code == E.NONE else code

    def check_offsets(self, name: str, producer_id: int, producer_epoch: int, group: str) -> int:
        """As `check`; a group that knows the transaction as open asks no coordinator."""
        txn = self.transactions.get(name)
        is_open = any(g == group for g, _ in self.pending.get(name, ()))
        if txn is not None and txn.state in PREPARED and is_open:
            deciding = (txn.producer_id, self.deciding_epochs[name])
            return E.NONE if (producer_id, producer_epoch) == deciding else E.PRODUCER_FENCED
        return self.check(name, producer_id, producer_epoch)

    def end(self, name: str, producer_id: int, epoch: int, *, committed: bool, v2: bool) -> int:
        """EndTxn, by the table in `docs/internals/commit-protocol.md`."""
        txn = self.transactions.get(name)
        if txn is None or txn.producer_id != producer_id or txn.state not in PREPARED:
            code = super().end(name, producer_id, epoch, committed=committed, v2=v2)
            if txn is not None and txn.state in PREPARED:
                self.deciding_epochs[name] = epoch
            return code
        current = txn.producer_epoch - 1 if v2 else txn.producer_epoch
        if epoch != current:
            return E.PRODUCER_FENCED
        is_same = (txn.state == "PrepareCommit") == committed
        return E.CONCURRENT_TRANSACTIONS if is_same else E.INVALID_TXN_STATE

    def add(self, name: str, partitions: set[Partition], groups: set[str]) -> None:
        """What comes between the decision and the markers belongs to what was decided."""
        if self.transactions[name].state not in PREPARED:
            super().add(name, partitions, groups)

    def append(self, name: str, partition: Partition, records: bytes, *, implicit: bool) -> int:
        """As `FakeState`; a leader that knows the transaction as open asks no coordinator."""
        txn = self.transactions.get(name)
        header = next(iter_batches(records))[0]
        if txn is None or txn.producer_id != header.producer_id or txn.state not in PREPARED:
            return super().append(name, partition, records, implicit=implicit)
        is_open = any(
            (a.producer_id, a.producer_epoch, a.decided)
            == (header.producer_id, header.producer_epoch, None)
            for a in self.logs[partition]
        )
        if not is_open:
            is_current = txn.producer_epoch == header.producer_epoch
            return E.CONCURRENT_TRANSACTIONS if is_current else E.INVALID_PRODUCER_EPOCH
        epoch, state = txn.producer_epoch, txn.state
        txn.producer_epoch, txn.state = header.producer_epoch, "Ongoing"
        code = super().append(name, partition, records, implicit=implicit)
        txn.producer_epoch, txn.state = epoch, state
        return code

    # ------------------------------------------------------------ decision and markers

    def _decide(self, name: str, txn: FakeTransaction, *, committed: bool) -> None:
        del name
        txn.state = "PrepareCommit" if committed else "PrepareAbort"

    def undecided(self) -> list[str]:
        """The transactional ids whose markers are missing."""
        return sorted(n for n, txn in self.transactions.items() if txn.state in PREPARED)

    def ongoing(self) -> list[str]:
        """The transactional ids with an open transaction."""
        return sorted(n for n, txn in self.transactions.items() if txn.state == "Ongoing")

    def time_out(self, name: str) -> None:
        """As `FakeState`."""
        self.deciding_epochs[name] = self.transactions[name].producer_epoch
        super().time_out(name)

    def complete(self, name: str) -> None:
        """Write the markers."""
        txn = self.transactions[name]
        super()._decide(name, txn, committed=txn.state == "PrepareCommit")
        del self.deciding_epochs[name]


class BrokerAutomaton:
    """States are numbers, 0 the first; `ask` and `complete` lead from one to another."""

    def __init__(self, transaction_version: int) -> None:
        self.cluster = _Cluster(transaction_version)
        self.states: list[LateMarkerState] = []
        """By number; not to be changed."""
        self._numbers: dict[str, int] = {}
        self._steps: dict[tuple[int, bytes], tuple[int, Reply, str]] = {}
        self._changes: dict[Any, int] = {}
        self._undecided: list[list[str]] = []
        self._number_of(LateMarkerState(transaction_version))

    def ask(self, number: int, call: Call, key: bytes) -> tuple[int, Reply, str]:
        """Carry a request out; `key` names it. The state after it, the answer, and its name."""
        step = self._steps.get((number, key))
        if step is None:
            changed = self.states[number].copy()
            reply = self.cluster.answer_in(changed, call)
            step = self._steps[number, key] = (self._number_of(changed), reply, repr(reply))
        return step

    def undecided(self, number: int) -> list[str]:
        """The transactional ids whose markers are missing."""
        return self._undecided[number]

    def complete(self, number: int, name: str) -> int:
        """Write a transaction's markers."""
        return self._changed(number, name, LateMarkerState.complete)

    def time_out(self, number: int, name: str) -> int:
        """A transaction has been open for too long."""
        return self._changed(number, name, LateMarkerState.time_out)

    def _changed(
        self, number: int, name: str, change: Callable[[LateMarkerState, str], None]
    ) -> int:
        key = (number, name, change)
        if key not in self._changes:
            changed = self.states[number].copy()
            change(changed, name)
            self._changes[key] = self._number_of(changed)
        return self._changes[key]

    def _number_of(self, state: LateMarkerState) -> int:
        number = self._numbers.setdefault(state.key(), len(self.states))
        if number == len(self.states):
            self.states.append(state)
            self._undecided.append(state.undecided())
        return number


class _Cluster(ScriptedCluster):
    """The scripted broker, which answers in any state."""

    def answer_in(self, state: FakeState, call: Call) -> Reply:
        """Carry a request out in this state."""
        self.state = state
        reply = self._call(call)
        self.asked.clear()
        if isinstance(reply, Unanswered):
            raise AssertionError("no fault is scripted")
        return reply
