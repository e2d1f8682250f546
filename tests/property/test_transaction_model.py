"""The transaction coordinator beside a dumb model: same answers, in any order, over crashes.

The model is written from KAFKA_RULES as plain if-chains over one transactional id; it knows no
record, no log, no marker. Beside the answers, what must hold of the logs holds after every rule:
one decision per transaction on all partitions, epochs that never fall or reach a client at 32767.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.coordinators import NOW_MS, ONE, ONE_V1, MemoryHost, World

from broker_sim.core.transaction.metadata import TransactionMetadata
from broker_sim.core.transaction.results import ProducerIdResult
from broker_sim.core.transaction.states import TransactionState
from txnlog_spark.wire import records
from txnlog_spark.wire.errors import ErrorCode

E = ErrorCode
LAST = 32766
TIMEOUT_MS = 40_000
PARTITIONS = [("a", 0), ("b", 0), ("c", 0)]
SETTLED = ("Empty", "CompleteCommit", "CompleteAbort")


@dataclass
class Model:
    """What Kafka would hold of `t`. `blocked`: markers wait, so a transition is pending."""

    server_version: int
    pid: int = -1
    epoch: int = -1
    last_epoch: int = -1
    previous_pid: int = -1
    state: str = "none"
    blocked: bool = False
    prepared: tuple[int, int] = (-1, -1)
    started_ms: int = 0
    partitions: frozenset = frozenset()

    def init(self, expected: tuple[int, int] | None) -> tuple[ErrorCode, str]:
        """(error, what happens: new / rotate / bump / retry / fence)."""
        if self.state == "none":
            return E.NONE, "new"
        if self.blocked:
            return E.CONCURRENT_TRANSACTIONS, ""
        known = expected is None or expected[0] == self.pid
        if not known and not (expected[0] == self.previous_pid and expected[1] >= LAST):
            return E.PRODUCER_FENCED, ""
        if self.state == "Ongoing":
            return E.CONCURRENT_TRANSACTIONS, "fence"
        wanted = None if expected is None else expected[1]
        if self.epoch >= LAST and wanted in (None, self.epoch):
            return E.NONE, "rotate"
        if self.epoch >= LAST:
            return E.UNKNOWN_SERVER_ERROR, ""
        if wanted in (None, self.epoch):
            return E.NONE, "bump"
        if wanted == self.last_epoch:
            return E.NONE, "retry"
        return E.PRODUCER_FENCED, ""

    def add(self, pid: int, epoch: int) -> ErrorCode:
        """AddPartitionsToTxn."""
        if self.state == "none":
            return E.INVALID_PRODUCER_ID_MAPPING
        if self.blocked:
            return E.CONCURRENT_TRANSACTIONS
        if pid != self.pid:
            return E.INVALID_PRODUCER_ID_MAPPING
        return E.NONE if epoch == self.epoch else E.PRODUCER_FENCED

    def end_v1(self, pid: int, epoch: int, commit: bool) -> tuple[ErrorCode, str]:
        """EndTxn below version 5."""
        # Version 1 looks at the identity first, and that is still the one of PREPARE.
        stored_pid, stored_epoch = self.prepared if self.blocked else (self.pid, self.epoch)
        if self.state == "none" or pid != stored_pid:
            return E.INVALID_PRODUCER_ID_MAPPING, ""
        if epoch != stored_epoch:
            return E.PRODUCER_FENCED, ""
        if self.blocked:
            return E.CONCURRENT_TRANSACTIONS, ""
        if self.state == "Ongoing":
            return E.NONE, "decide"
        same = self.state == ("CompleteCommit" if commit else "CompleteAbort")
        return (E.NONE if same else E.INVALID_TXN_STATE), ""

    def end_v2(self, pid: int, epoch: int, commit: bool) -> tuple[ErrorCode, str]:
        """EndTxn from version 5 on."""
        if self.state == "none":
            return E.INVALID_PRODUCER_ID_MAPPING, ""
        if self.blocked:
            return E.CONCURRENT_TRANSACTIONS, ""
        overflow = pid == self.previous_pid and epoch == LAST and self.epoch == 0
        if pid != self.pid and not overflow:
            return E.INVALID_PRODUCER_ID_MAPPING, ""
        retry = overflow or self.epoch == epoch + 1
        if self.state in ("Empty", "Ongoing"):
            if epoch != self.epoch:
                return E.PRODUCER_FENCED, ""
        elif not retry and epoch != self.epoch:
            return E.PRODUCER_FENCED, ""
        if self.state == "Ongoing" or (not commit and not retry):
            return E.NONE, "decide"
        same = self.state == ("CompleteCommit" if commit else "CompleteAbort")
        return (E.NONE, "retry") if retry and same else (E.INVALID_TXN_STATE, "")

    def decided(self, commit: bool, *, bump: bool, rotated_pid: int | None, blocked: bool) -> None:
        """A transaction was decided; `rotated_pid` when it used up the epoch."""
        previous = self.pid
        if rotated_pid is not None:
            self.last_epoch, self.pid, self.epoch = self.epoch, rotated_pid, 0
        elif bump:
            self.last_epoch, self.epoch = self.epoch, self.epoch + 1
        self.prepared = (previous, LAST + 1) if rotated_pid is not None else (self.pid, self.epoch)
        self.previous_pid = previous
        self.blocked = blocked
        name = "Commit" if commit else "Abort"
        self.state = f"Prepare{name}" if blocked else f"Complete{name}"

    def unblocked(self) -> None:
        """The last marker is written."""
        if self.blocked:
            self.blocked = False
            self.state = self.state.replace("Prepare", "Complete")


def _can_hold(pid: int, epoch: int) -> bool:
    """Whether a client may have been given these: 32767 is for fencing alone."""
    return pid >= 0 and 0 <= epoch <= LAST


class TransactionMachine(RuleBasedStateMachine):
    """Random requests, refusals, time and crashes on one transactional id."""

    @initialize(version=st.sampled_from([1, 2]), epoch=st.sampled_from([-1, 0, 32762, 32765]))
    def begin(self, version: int, epoch: int) -> None:
        self.config = ONE if version == 2 else ONE_V1
        self.model = Model(version)
        host = MemoryHost()
        if epoch >= 0:
            host = MemoryHost.holding(
                TransactionMetadata("t", 5, epoch, TIMEOUT_MS, TransactionState.EMPTY, NOW_MS)
            )
            self.model.pid, self.model.epoch, self.model.state = 5, epoch, "Empty"
        for partition in PARTITIONS:
            host.create(*partition)
        self.world = World(self.config, host=host)

    def _holder(self, which: str) -> tuple[int, int]:
        model = self.model
        return {
            "current": (model.pid, model.epoch),
            "last": (model.pid, model.last_epoch),
            "before": (model.pid, model.epoch - 1),
            "previous": (model.previous_pid, LAST),
            "stranger": (model.pid + 7, model.epoch),
            "future": (model.pid, model.epoch + 3),
        }[which]

    holders = st.sampled_from(
        ["current"] * 5 + ["last", "before", "previous", "stranger", "future"]
    )

    @rule(which=st.one_of(st.none(), holders))
    def init(self, which: str | None) -> None:
        expected = None if which is None else self._holder(which)
        if expected is not None and not _can_hold(*expected):
            return
        more = {}
        if expected is not None:
            more = {"producer_id": expected[0], "producer_epoch": expected[1]}
        model = self.model
        error, happens = model.init(expected)
        before = model.epoch
        answer = self.world.init(timeout_ms=TIMEOUT_MS, **more)
        assert answer.error is error, (happens, answer)
        if happens == "fence":
            self._after_fence()
        elif happens in ("new", "rotate"):
            keeps = expected is not None and happens == "rotate"
            model.previous_pid = answer.producer_id if happens == "new" else model.pid
            model.pid, model.epoch = answer.producer_id, 0
            model.last_epoch, model.state = (before if keeps else -1), "Empty"
            assert answer.producer_epoch == 0
        elif happens:
            if happens == "bump":
                model.last_epoch = before if expected is not None else -1
                model.epoch += 1
            model.previous_pid, model.state = model.pid, "Empty"
            assert (answer.producer_id, answer.producer_epoch) == (model.pid, model.epoch)
        if happens and happens != "fence":
            model.partitions = frozenset()

    def _after_fence(self) -> None:
        model = self.model
        v2 = model.server_version == 2
        rotates = v2 and model.epoch >= LAST
        described = self.world.transactions.describe("t")
        blocked = bool(model.partitions & set(self.world.host.refusals))
        pid = described.producer_id
        if rotates and blocked:
            pid = self.world.transactions._manager.find("t").entries["t"].pending.producer_id
        model.decided(False, bump=True, rotated_pid=pid if rotates else None, blocked=blocked)
        if not v2:
            model.last_epoch = -1

    @rule(which=holders, partition=st.sampled_from(PARTITIONS), version=st.sampled_from([0, 2]))
    def add(self, which: str, partition, version: int) -> None:
        pid, epoch = self._holder(which)
        if not _can_hold(pid, epoch):
            return
        error = self.model.add(pid, epoch)
        ids = ProducerIdResult(E.NONE, pid, epoch)
        assert self.world.begin(ids, partition, version=version) is error
        if error is E.NONE:
            model = self.model
            if model.state != "Ongoing":
                model.started_ms, model.partitions = self.world.now_ms, frozenset()
            if partition not in model.partitions:
                model.previous_pid = model.pid
            model.state, model.partitions = "Ongoing", model.partitions | {partition}
            self.world.produce(ids, *partition)

    @rule(which=holders, commit=st.booleans(), version=st.sampled_from([0, 2]))
    def end(self, which: str, commit: bool, version: int) -> None:
        model = self.model
        pid, epoch = self._holder(which)
        if (version == 2 and model.server_version == 1) or not _can_hold(pid, epoch):
            return
        decide = model.end_v2 if version == 2 else model.end_v1
        error, happens = decide(pid, epoch, commit)
        ids = ProducerIdResult(E.NONE, pid, epoch)
        answer = self.world.end(ids, commit=commit, version=version)
        assert answer.error is error, (model, answer)
        if happens == "decide":
            rotates = version == 2 and model.epoch >= LAST
            touched = model.partitions if model.state == "Ongoing" else frozenset()
            blocked = bool(touched & set(self.world.host.refusals))
            rotated = answer.producer_id if rotates else None
            model.decided(commit, bump=version == 2, rotated_pid=rotated, blocked=blocked)
        if error is E.NONE and version == 2:
            assert (answer.producer_id, answer.producer_epoch) == (model.pid, model.epoch)

    @rule(partition=st.sampled_from(PARTITIONS))
    def refuse(self, partition) -> None:
        self.world.host.refusals[partition] = E.NOT_ENOUGH_REPLICAS

    @rule()
    def heal(self) -> None:
        self.world.host.refusals.clear()
        self._pass(100)
        self.model.unblocked()

    @rule()
    def wait(self) -> None:
        self._pass(9_000)

    def _pass(self, duration_ms: int) -> None:
        swept = self.world.monotonic_ms // 10_000
        started, was = self.model.started_ms, self.model.state
        self.world.advance(duration_ms)
        last_sweep = self.world.monotonic_ms // 10_000
        sweep_ms = self.world.now_ms - self.world.monotonic_ms + last_sweep * 10_000
        if was == "Ongoing" and last_sweep > swept and started + TIMEOUT_MS < sweep_ms:
            self._after_fence()

    @precondition(lambda self: not self.world.host.refusals)
    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        """All that was answered is there again; what was under way is finished."""
        self.world = self.world.crashed(loses_unflushed=power)
        self.model.last_epoch = -1
        self.model.unblocked()

    @invariant()
    def same_state(self) -> None:
        described = self.world.transactions.describe("t")
        model = self.model
        if model.state == "none":
            assert described.error is E.TRANSACTIONAL_ID_NOT_FOUND
            return
        assert described.state == model.state
        if not model.blocked:
            assert (described.producer_id, described.producer_epoch) == (model.pid, model.epoch)

    @invariant()
    def epochs_never_fall_in_a_log(self) -> None:
        for partition in PARTITIONS:
            highest: dict[int, int] = {}
            for batch in self.world.host.logs[partition].stored:
                header = records.parse_header(batch)
                assert header.producer_epoch >= highest.get(header.producer_id, 0)
                highest[header.producer_id] = header.producer_epoch
                assert header.is_control or header.producer_epoch <= LAST

    @invariant()
    def settled_means_nothing_is_open(self) -> None:
        if self.model.state in SETTLED:
            assert not any(log.open_producers() for log in self.world.host.logs.values())
            assert self.world.transactions.incomplete == ()


TestTransactionModel = TransactionMachine.TestCase
TestTransactionModel.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
