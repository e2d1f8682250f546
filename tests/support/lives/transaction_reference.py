"""Kafka's transactions as plain rules: what every request is to be answered, and what readers see.

Written from Kafka's rules, independently of the broker: no records, no log, no effects. One object
holds all transactional ids, partitions and groups; time is a number. `refused` are places whose
markers do not get through for now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LAST = 32766
Place = tuple[str, int]
Identity = tuple[int, int]

FENCED, MAPPING = "PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING"
CONCURRENT, BAD_STATE = "CONCURRENT_TRANSACTIONS", "INVALID_TXN_STATE"
OLD_EPOCH, GAP = "INVALID_PRODUCER_EPOCH", "OUT_OF_ORDER_SEQUENCE_NUMBER"
ABORTABLE = "TRANSACTION_ABORTABLE"


@dataclass
class Txn:
    """One transactional id. `waiting` are places that still want the marker of the decision."""

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
    places: set[Place] = field(default_factory=set)
    waiting: set[Place] = field(default_factory=set)

    @property
    def pending(self) -> bool:
        return self.state.startswith("Prepare")


@dataclass
class Producer:
    """One producer id on one place."""

    epoch: int = -1
    last: tuple[int, int] | None = None
    open: bool = False


@dataclass
class Asked:
    """A first batch of a transaction that came to a place and is not in it yet."""

    epoch: int
    lowest: int
    bumps: bool


class Reference:
    """The whole broker."""

    def __init__(self, server_version: int) -> None:
        self.server_version = server_version
        self.txns: dict[str, Txn] = {}
        self.producers: dict[Place, dict[int, Producer]] = {}
        self.asked: dict[Place, dict[int, Asked]] = {}
        self.batches: dict[Place, list[list]] = {}
        self.pending_offsets: dict[tuple[str, int], int] = {}
        self.offsets: dict[str, int] = {}
        self.group_place: dict[str, Place] = {}
        self.refused: set[Place] = set()
        self.now_ms = 0
        self._next, self._end, self._blocks = 0, 0, 0

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
            txn = self.txns[name] = Txn(self.new_pid())
            return "NONE", self._begin_epoch(txn, txn.pid, 0, -1, timeout_ms)
        if txn.pending:
            return CONCURRENT, (-1, -1)
        if held and held[0] != txn.pid and not (held[0] == txn.previous_pid and held[1] >= LAST):
            return FENCED, (-1, -1)
        if txn.state == "Ongoing":
            self._fence(txn)
            return CONCURRENT, (-1, -1)
        epoch = txn.epoch if held is None else held[1]
        if txn.epoch >= LAST:
            if epoch != txn.epoch:
                return "UNKNOWN_SERVER_ERROR", (-1, -1)
            last = -1 if held is None else txn.epoch
            return "NONE", self._begin_epoch(txn, self.new_pid(), 0, last, timeout_ms)
        if epoch == txn.epoch:
            last = -1 if held is None else txn.epoch
            return "NONE", self._begin_epoch(txn, txn.pid, txn.epoch + 1, last, timeout_ms)
        if epoch == txn.last_epoch:
            return "NONE", self._begin_epoch(txn, txn.pid, txn.epoch, txn.last_epoch, timeout_ms)
        return FENCED, (-1, -1)

    def _begin_epoch(self, txn: Txn, pid: int, epoch: int, last: int, timeout_ms: int) -> Identity:
        txn.previous_pid, txn.pid, txn.epoch, txn.last_epoch = txn.pid, pid, epoch, last
        txn.state, txn.timeout_ms, txn.updated_ms = "Empty", timeout_ms, self.now_ms
        txn.places = set()
        return pid, epoch

    def _fence(self, txn: Txn) -> None:
        if self.server_version >= 2:
            self._decide(txn, False, 2)
        else:
            txn.epoch, txn.last_epoch = min(txn.epoch + 1, LAST + 1), -1
            self._decide(txn, False, 0)

    # ------------------------------------------------------------ joining

    def _refuse(self, name: str, held: Identity) -> str:
        txn = self.txns.get(name)
        if txn is None or txn.pid != held[0]:
            return MAPPING
        return "NONE" if txn.epoch == held[1] else FENCED

    def add(self, name: str, held: Identity, places: set[Place], version: int) -> str:
        txn = self.txns.get(name)
        if txn is not None and txn.pending:
            return CONCURRENT
        refusal = self._refuse(name, held)
        if refusal != "NONE" or txn is None:
            return refusal
        if txn.state == "Ongoing" and places <= txn.places:
            return "NONE"
        if txn.state != "Ongoing":
            txn.state, txn.started_ms, txn.places = "Ongoing", self.now_ms, set()
        txn.places |= places
        txn.previous_pid, txn.updated_ms, txn.version = txn.pid, self.now_ms, version
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
        """What the partition and then the coordinator say to the first write of a transaction."""
        pid, epoch = held
        known = self.producers.setdefault(place, {}).get(pid)
        if known and known.open and known.epoch == epoch:
            return "NONE"
        if known and epoch < known.epoch:
            return OLD_EPOCH
        asked = self.asked.setdefault(place, {}).setdefault(pid, Asked(epoch, sequence, adds))
        if epoch > asked.epoch:
            asked.epoch, asked.lowest = epoch, sequence
        elif epoch == asked.epoch:
            asked.lowest = min(asked.lowest, sequence)
        answer = self.add(name, held, {place}, 2) if adds else self.verify(name, held, place)
        return OLD_EPOCH if answer == FENCED else answer

    # ------------------------------------------------------------ writing

    def produce(
        self, name: str, held: Identity, place: Place, span: tuple[int, int], version: int
    ) -> str:
        answer = self._join(name, held, place, span[0], version >= 12)
        if answer == CONCURRENT and version < 12:
            return "NOT_ENOUGH_REPLICAS"
        if answer == ABORTABLE and version < 11:
            return BAD_STATE
        if answer != "NONE":
            return answer
        known = self.producers[place].get(held[0], Producer())
        if known.epoch == held[1] and known.last == span:
            return "NONE"  # a duplicate
        refusal = self._refuse_sequence(place, held, known, span[0])
        if refusal:
            return refusal
        self._wrote(place, held, span)
        self.batches.setdefault(place, []).append([held[0], "open"])
        return "NONE"

    def _refuse_sequence(self, place: Place, held: Identity, known: Producer, first: int) -> str:
        asked = self.asked.get(place, {}).get(held[0])
        if asked and ((asked.bumps and not known.last and first) or first > asked.lowest):
            return GAP
        if known.epoch == -1:
            return ""
        if known.epoch != held[1]:
            return GAP if first else ""
        return "" if first == (known.last[1] + 1 if known.last else 0) else GAP

    def _wrote(self, place: Place, held: Identity, span: tuple[int, int] | None) -> None:
        known = self.producers[place].setdefault(held[0], Producer())
        known.epoch, known.last, known.open = held[1], span, True
        self.asked.setdefault(place, {}).pop(held[0], None)

    def commit_offset(
        self, name: str, held: Identity, group: str, offset: int, version: int
    ) -> str:
        place = self.group_place[group]
        answer = self._join(name, held, place, -1, version >= 5)
        if answer == ABORTABLE and version < 4:
            return BAD_STATE
        if answer != "NONE":
            return answer
        known = self.producers[place].get(held[0])
        if known and known.epoch > held[1]:
            return OLD_EPOCH
        self._wrote(place, held, None)
        self.pending_offsets[group, held[0]] = offset
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
        txn = self.txns[name]
        if decides:
            self._decide(txn, commit, 2 if bumps else 0)
        if not bumps:
            return "NONE", (-1, -1)
        if txn.pending and txn.next_pid >= 0:
            return "NONE", (txn.next_pid, 0)
        return "NONE", (txn.pid, txn.epoch)

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

    def _decide(self, txn: Txn, commit: bool, version: int) -> None:
        touched = set(txn.places) if txn.state == "Ongoing" else set()
        txn.next_pid = -1
        if version >= 2:
            if txn.epoch >= LAST:
                txn.next_pid = self.new_pid()
            txn.last_epoch, txn.epoch = txn.epoch, min(txn.epoch + 1, LAST + 1)
        txn.state = "PrepareCommit" if commit else "PrepareAbort"
        txn.previous_pid, txn.version, txn.updated_ms = txn.pid, version, self.now_ms
        txn.places, txn.waiting = touched, set(touched)
        self._mark(txn)

    def _mark(self, txn: Txn) -> None:
        """Markers where they get through; the transaction completes with the last of them."""
        for place in sorted(txn.waiting - self.refused):
            self._marked(place, txn)
            txn.waiting.discard(place)
        if txn.waiting:
            return
        txn.state = txn.state.replace("Prepare", "Complete")
        txn.previous_pid, txn.places = txn.pid, set()
        if txn.next_pid >= 0:
            txn.pid, txn.epoch, txn.next_pid = txn.next_pid, 0, -1

    def _marked(self, place: Place, txn: Txn) -> None:
        commit = txn.state == "PrepareCommit"
        known = self.producers.setdefault(place, {}).setdefault(txn.pid, Producer())
        if known.epoch != txn.epoch:
            known.epoch, known.last = txn.epoch, None
        known.open = False
        asked = self.asked.setdefault(place, {}).get(txn.pid)
        if asked and not (asked.bumps and asked.epoch == txn.epoch):
            del self.asked[place][txn.pid]
        for batch in self.batches.get(place, []):
            if batch == [txn.pid, "open"]:
                batch[1] = "committed" if commit else "aborted"
        for group, pid in list(self.pending_offsets):
            if pid == txn.pid and self.group_place[group] == place:
                offset = self.pending_offsets.pop((group, pid))
                if commit:
                    self.offsets[group] = offset

    # ------------------------------------------------------------ time and restarts

    def heal(self) -> None:
        """Refusals end; the markers that waited are written."""
        self.refused.clear()
        for name in sorted(self.txns):
            if self.txns[name].pending:
                self._mark(self.txns[name])

    def abort_timed_out(self) -> None:
        for name in sorted(self.txns):
            txn = self.txns[name]
            if txn.state == "Ongoing" and txn.started_ms + txn.timeout_ms < self.now_ms:
                self._fence(txn)

    def expire(self, idle_ms: int) -> None:
        for name, txn in list(self.txns.items()):
            idle = txn.updated_ms <= self.now_ms - idle_ms
            if idle and not txn.pending and txn.state != "Ongoing":
                del self.txns[name]

    def restart(self) -> None:
        """What is only in memory is gone: the epoch before the present one, and what was asked."""
        self.asked.clear()
        self._next = self._end
        for txn in self.txns.values():
            txn.last_epoch = -1
            if txn.pending:
                txn.updated_ms = self.now_ms
        self.heal()

    # ------------------------------------------------------------ reading

    def visible(self, place: Place) -> int:
        """How many batches read_committed sees: the committed ones before the first open one."""
        count = 0
        for _, status in self.batches.get(place, []):
            if status == "open":
                break
            count += status == "committed"
        return count

    def is_unstable(self, group: str) -> bool:
        return any(pending == group for pending, _ in self.pending_offsets)
