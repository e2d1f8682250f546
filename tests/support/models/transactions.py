"""Kafka's transactions as plain rules: what every request is to be answered, and what readers see.

Written from Kafka's rules, independently of the broker: no log, no effects. One object holds all
transactional ids, partitions and groups; time is a number. When markers are written is not decided
here: a transaction that is decided waits for `mark`.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Mapping, Set
from typing import NamedTuple

LAST = 32766
Place = tuple[str, int]
Identity = tuple[int, int]
Offset = tuple[int, str]
"""An offset and its metadata."""

FENCED, MAPPING = "PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING"
CONCURRENT, BAD_STATE = "CONCURRENT_TRANSACTIONS", "INVALID_TXN_STATE"
OLD_EPOCH, GAP = "INVALID_PRODUCER_EPOCH", "OUT_OF_ORDER_SEQUENCE_NUMBER"
ABORTABLE = "TRANSACTION_ABORTABLE"


class Txn(NamedTuple):
    """State of one transactional id. `waiting` are partitions that still need the decision's
    marker."""

    pid: int
    epoch: int = -1
    last_epoch: int = -1
    previous_pid: int = -1
    next_pid: int = -1
    state: str = "Empty"
    timeout_ms: int = 0
    started_ms: int = 0
    updated_ms: int = 0
    version: int = 0
    places: frozenset[Place] = frozenset()
    waiting: frozenset[Place] = frozenset()

    @property
    def pending(self) -> bool:
        return self.state.startswith("Prepare")


class Producer(NamedTuple):
    """State of one producer id in one partition; `last` holds the sequences of its last batch,
    first and last."""

    epoch: int = -1
    last: tuple[int, int] | None = None
    open: bool = False


class Asked(NamedTuple):
    """A first batch of a transaction that came to a place and is not in it yet."""

    epoch: int
    lowest: int
    bumps: bool


class Batch(NamedTuple):
    """Records on one place; `status` is open, committed or aborted."""

    pid: int
    values: tuple[bytes, ...]
    status: str = "open"


class Reference:
    """The whole broker. What its dictionaries hold is never changed, only replaced: a copy is
    cheap."""

    def __init__(self, server_version: int) -> None:
        self.server_version = server_version
        self.txns: dict[str, Txn] = {}
        self.producers: dict[tuple[Place, int], Producer] = {}
        self.asked: dict[tuple[Place, int], Asked] = {}
        self.batches: dict[Place, tuple[Batch, ...]] = {}
        self.pending_offsets: dict[tuple[str, Place, int], Offset] = {}
        """Pending offsets by group, partition and producer id."""
        self.offsets: dict[tuple[str, Place], Offset] = {}
        self.group_place: dict[str, Place] = {}
        self.now_ms = 0
        self._next, self._end, self._blocks = 0, 0, 0

    def copy(self) -> Reference:
        """Another broker in the same state."""
        made = Reference(self.server_version)
        vars(made).update({name: copy.copy(value) for name, value in vars(self).items()})
        return made

    def key(self) -> Hashable:
        """Equal for equal states."""
        return tuple(
            frozenset(value.items()) if isinstance(value, dict) else value
            for value in vars(self).values()
        )

    # ------------------------------------------------------------ producer ids

    def new_pid(self) -> int:
        if self._next == self._end:
            self._next, self._blocks = self._blocks * 1000, self._blocks + 1
            self._end = self._next + 1000
        self._next += 1
        return self._next - 1

    # ------------------------------------------------------------ InitProducerId

    def init(self, name: str, timeout_ms: int, held: Identity | None) -> tuple[str, Identity]:
        txn = self.txns.get(name)
        if txn is None:
            txn = Txn(self.new_pid())
            return "NONE", self._begin_epoch(name, txn, (txn.pid, 0), -1, timeout_ms)
        if txn.pending:
            return CONCURRENT, (-1, -1)
        if held and held[0] != txn.pid and not (held[0] == txn.previous_pid and held[1] >= LAST):
            return FENCED, (-1, -1)
        if txn.state == "Ongoing":
            self.fence(name)
            return CONCURRENT, (-1, -1)
        epoch = txn.epoch if held is None else held[1]
        last = -1 if held is None else txn.epoch
        if txn.epoch >= LAST:
            if epoch != txn.epoch:
                return "UNKNOWN_SERVER_ERROR", (-1, -1)
            begun, last_epoch = (self.new_pid(), 0), last
        elif epoch == txn.epoch:
            begun, last_epoch = (txn.pid, txn.epoch + 1), last
        elif epoch == txn.last_epoch:
            begun, last_epoch = (txn.pid, txn.epoch), txn.last_epoch
        else:
            return FENCED, (-1, -1)
        return "NONE", self._begin_epoch(name, txn, begun, last_epoch, timeout_ms)

    def _begin_epoch(
        self, name: str, txn: Txn, begun: Identity, last_epoch: int, timeout_ms: int
    ) -> Identity:
        self.txns[name] = txn._replace(
            previous_pid=txn.pid, pid=begun[0], epoch=begun[1], last_epoch=last_epoch,
            state="Empty", timeout_ms=timeout_ms, updated_ms=self.now_ms, places=frozenset(),
        )  # fmt: skip
        return begun

    def fence(self, name: str) -> None:
        """Abort an open transaction as the coordinator does: its epoch is never used again."""
        if self.server_version >= 2:
            self._decide(name, False, 2)
        else:
            txn = self.txns[name]
            self.txns[name] = txn._replace(epoch=min(txn.epoch + 1, LAST + 1), last_epoch=-1)
            self._decide(name, False, 0)

    # ------------------------------------------------------------ joining

    def _refuse(self, name: str, held: Identity) -> str:
        txn = self.txns.get(name)
        if txn is None or txn.pid != held[0]:
            return MAPPING
        return "NONE" if txn.epoch == held[1] else FENCED

    def add(self, name: str, held: Identity, places: Set[Place], version: int) -> str:
        txn = self.txns.get(name)
        if txn is not None and txn.pending:
            return CONCURRENT
        refusal = self._refuse(name, held)
        if refusal != "NONE" or txn is None:
            return refusal
        if txn.state == "Ongoing" and places <= txn.places:
            return "NONE"
        if txn.state != "Ongoing":
            txn = txn._replace(state="Ongoing", started_ms=self.now_ms, places=frozenset())
        self.txns[name] = txn._replace(
            places=txn.places | places, previous_pid=txn.pid, updated_ms=self.now_ms,
            version=version,
        )  # fmt: skip
        return "NONE"

    def verify(self, name: str, held: Identity, place: Place) -> str:
        refusal = self._refuse(name, held)
        if refusal != "NONE":
            return refusal
        txn = self.txns[name]
        if txn.pending:
            return CONCURRENT
        return "NONE" if place in txn.places else ABORTABLE

    def _join(self, name: str, held: Identity, place: Place, sequence: int, adds: bool) -> str:
        """Return what the partition and then the coordinator say to a transaction's first write."""
        pid, epoch = held
        known = self.producers.get((place, pid), Producer())
        if known.open and known.epoch == epoch:
            return "NONE"
        if epoch < known.epoch:
            return OLD_EPOCH
        asked = self.asked.get((place, pid), Asked(epoch, sequence, adds))
        if epoch > asked.epoch:
            asked = asked._replace(epoch=epoch, lowest=sequence)
        elif epoch == asked.epoch:
            asked = asked._replace(lowest=min(asked.lowest, sequence))
        self.asked[place, pid] = asked
        answer = self.add(name, held, {place}, 2) if adds else self.verify(name, held, place)
        return OLD_EPOCH if answer == FENCED else answer

    # ------------------------------------------------------------ writing

    def produce(
        self, name: str, held: Identity, place: Place, first: int, values: Iterable[bytes],
        version: int,
    ) -> str:  # fmt: skip
        """`first` is the sequence of the first of the batch's values."""
        values = tuple(values)
        span = first, first + len(values) - 1
        answer = self._join(name, held, place, first, version >= 12)
        if answer == CONCURRENT and version < 12:
            return "NOT_ENOUGH_REPLICAS"
        if answer == ABORTABLE and version < 11:
            return BAD_STATE
        if answer != "NONE":
            return answer
        known = self.producers.get((place, held[0]), Producer())
        if known.epoch == held[1] and known.last == span:
            return "NONE"  # a duplicate
        refusal = self._refuse_sequence(place, held, known, first)
        if refusal:
            return refusal
        self._wrote(place, held, span)
        self.batches[place] = (*self.batches.get(place, ()), Batch(held[0], values))
        return "NONE"

    def _refuse_sequence(self, place: Place, held: Identity, known: Producer, first: int) -> str:
        asked = self.asked.get((place, held[0]))
        if asked and ((asked.bumps and not known.last and first) or first > asked.lowest):
            return GAP
        if known.epoch == -1:
            return ""
        if known.epoch != held[1]:
            return GAP if first else ""
        return "" if first == (known.last[1] + 1 if known.last else 0) else GAP

    def _wrote(self, place: Place, held: Identity, span: tuple[int, int] | None) -> None:
        self.producers[place, held[0]] = Producer(held[1], span, open=True)
        self.asked.pop((place, held[0]), None)

    def commit_offsets(
        self, name: str, held: Identity, group: str, offsets: Mapping[Place, Offset], version: int
    ) -> str:
        place = self.group_place[group]
        answer = self._join(name, held, place, -1, version >= 5)
        if answer == ABORTABLE and version < 4:
            return BAD_STATE
        if answer != "NONE":
            return answer
        known = self.producers.get((place, held[0]))
        if known and known.epoch > held[1]:
            return OLD_EPOCH
        self._wrote(place, held, None)
        for partition, offset in offsets.items():
            self.pending_offsets[group, partition, held[0]] = offset
        return "NONE"

    # ------------------------------------------------------------ EndTxn

    def end(self, name: str, held: Identity, commit: bool, version: int) -> tuple[str, Identity]:
        """(error, identity to go on with: (-1, -1) from version 4 down and on errors)."""
        bumps = version >= 5
        error, decides = (
            self._judge_v2(name, held, commit) if bumps else (self._judge_v1(name, held, commit))
        )
        if error != "NONE":
            return error, (-1, -1)
        if decides:
            self._decide(name, commit, 2 if bumps else 0)
        if not bumps:
            return "NONE", (-1, -1)
        txn = self.txns[name]
        return "NONE", ((txn.next_pid, 0) if txn.next_pid >= 0 else (txn.pid, txn.epoch))

    def _judge_v1(self, name: str, held: Identity, commit: bool) -> tuple[str, bool]:
        refusal = self._refuse(name, held)
        if refusal != "NONE":
            return refusal, False
        txn = self.txns[name]
        if txn.pending:
            return CONCURRENT, False
        if txn.state == "Ongoing":
            return "NONE", True
        same = txn.state == ("CompleteCommit" if commit else "CompleteAbort")
        return ("NONE" if same else BAD_STATE), False

    def _judge_v2(self, name: str, held: Identity, commit: bool) -> tuple[str, bool]:
        txn = self.txns.get(name)
        if txn is None:
            return MAPPING, False
        if txn.pending:
            return CONCURRENT, False
        overflowed = held == (txn.previous_pid, LAST) and txn.epoch == 0
        if held[0] != txn.pid and not overflowed:
            return MAPPING, False
        retry = overflowed or txn.epoch == held[1] + 1
        current = held[1] == txn.epoch
        if not current and (txn.state in ("Empty", "Ongoing") or not retry):
            return FENCED, False
        if txn.state == "Ongoing":
            if commit and txn.epoch > LAST:
                return "UNKNOWN_SERVER_ERROR", False
            return "NONE", True
        if not retry and not commit:
            return "NONE", True
        same = txn.state == ("CompleteCommit" if commit else "CompleteAbort")
        return ("NONE" if retry and same else BAD_STATE), False

    def _decide(self, name: str, commit: bool, version: int) -> None:
        txn = self.txns[name]
        touched = txn.places if txn.state == "Ongoing" else frozenset()
        if version >= 2:
            next_pid = self.new_pid() if txn.epoch >= LAST else -1
            epochs = {"last_epoch": txn.epoch, "epoch": min(txn.epoch + 1, LAST + 1)}
            txn = txn._replace(next_pid=next_pid, **epochs)
        self.txns[name] = txn._replace(
            state="PrepareCommit" if commit else "PrepareAbort", previous_pid=txn.pid,
            version=version, updated_ms=self.now_ms, places=touched, waiting=touched,
        )  # fmt: skip

    # ------------------------------------------------------------ markers

    def pending(self) -> list[str]:
        """The transactional ids whose markers are missing."""
        return sorted(name for name, txn in self.txns.items() if txn.pending)

    def ongoing(self) -> list[str]:
        """The transactional ids with an open transaction."""
        return sorted(name for name, txn in self.txns.items() if txn.state == "Ongoing")

    def mark(self, name: str, refused: Set[Place] = frozenset()) -> None:
        """Markers where they get through; the transaction completes with the last of them."""
        txn = self.txns[name]
        for place in txn.waiting - refused:
            self._marked(place, txn)
        txn = txn._replace(waiting=txn.waiting & refused)
        if not txn.waiting:
            state = txn.state.replace("Prepare", "Complete")
            txn = txn._replace(state=state, previous_pid=txn.pid, places=frozenset())
            if txn.next_pid >= 0:
                txn = txn._replace(pid=txn.next_pid, epoch=0, next_pid=-1)
        self.txns[name] = txn

    def mark_all(self, refused: Set[Place] = frozenset()) -> None:
        """The markers that get through, of all that is decided."""
        for name in self.pending():
            self.mark(name, refused)

    def _marked(self, place: Place, txn: Txn) -> None:
        commit = txn.state == "PrepareCommit"
        known = self.producers.get((place, txn.pid), Producer())
        last = known.last if known.epoch == txn.epoch else None
        self.producers[place, txn.pid] = Producer(txn.epoch, last)
        asked = self.asked.get((place, txn.pid))
        if asked and not (asked.bumps and asked.epoch == txn.epoch):
            del self.asked[place, txn.pid]
        status = "committed" if commit else "aborted"
        if place in self.batches:
            self.batches[place] = tuple(
                batch._replace(status=status) if batch[::2] == (txn.pid, "open") else batch
                for batch in self.batches[place]
            )
        for group, partition, pid in list(self.pending_offsets):
            if pid == txn.pid and self.group_place[group] == place:
                offset = self.pending_offsets.pop((group, partition, pid))
                if commit:
                    self.offsets[group, partition] = offset

    # ------------------------------------------------------------ time and restarts

    def abort_timed_out(self) -> None:
        for name in self.ongoing():
            txn = self.txns[name]
            if txn.started_ms + txn.timeout_ms < self.now_ms:
                self.fence(name)

    def expire(self, idle_ms: int) -> None:
        for name, txn in list(self.txns.items()):
            idle = txn.updated_ms <= self.now_ms - idle_ms
            if idle and not txn.pending and txn.state != "Ongoing":
                del self.txns[name]

    def restart(self) -> None:
        """Forget what is only in memory: the epoch before the present one, and first batches that
        are not written yet. All markers get through."""
        self.asked.clear()
        self._next = self._end
        for name, txn in self.txns.items():
            updated_ms = self.now_ms if txn.pending else txn.updated_ms
            self.txns[name] = txn._replace(last_epoch=-1, updated_ms=updated_ms)
        self.mark_all()

    # ------------------------------------------------------------ reading

    def visible(self, place: Place) -> list[bytes]:
        """Return what read_committed sees: the committed values before the first open batch."""
        values: list[bytes] = []
        for batch in self.batches.get(place, ()):
            if batch.status == "open":
                break
            values += batch.values if batch.status == "committed" else ()
        return values

    def committed(self, group: str) -> dict[Place, Offset]:
        return {place: offset for (named, place), offset in self.offsets.items() if named == group}

    def unstable(self, group: str) -> set[Place]:
        """The partitions with an offset that is not decided."""
        return {partition for named, partition, _ in self.pending_offsets if named == group}
