"""A whole broker beside a dumb reference: same answers, same records, in any order, over restarts.

The reference (`support.models.transactions`) is written from Kafka's rules and knows no record,
log or effect. Several transactional ids share partitions and groups; some begin near their last
epoch, by what is in the log. Markers are refused for a while, time passes, the broker restarts.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.brokers.hanging import list_transactions
from support.core.broker_build import BrokerOnDisk, request, struct
from support.histories.transaction_presets import (
    INTERNAL_CLIENT_ID,
    LOG_TOPIC,
    Preset,
    preset_batch,
)
from support.models.transactions import LAST, Identity, Place, Reference, Txn
from support.raw.raw import RawProducer, fetch_offsets

from broker_sim.core.coordinator.runtime import partition_for
from broker_sim.core.transaction import TransactionState
from broker_sim.core.transaction.add_retries import RETRIES_MS_MAX
from txnlog_kafka.wire.error_codes import ErrorCode, error_name
from txnlog_kafka.wire.messages import ApiKey, api_of
from txnlog_kafka.wire.records import decode_records, iter_batches

NAMES = ("alpha", "beta", "gamma")
GROUPS = ("g", "h")
TOPIC = "data"
PLACES = ((TOPIC, 0), (TOPIC, 1))
TIMEOUT_MS, ABORT_MS, EXPIRE_MS, IDLE_MS, RETRY_MS = 5_000, 1_000, 5_000, 30_000, 100
CONFIG = {
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": ABORT_MS,
    "transaction.remove.expired.transaction.cleanup.interval.ms": EXPIRE_MS,
    "transactional.id.expiration.ms": IDLE_MS,
}
STATES = {"Empty": TransactionState.EMPTY, "Ongoing": TransactionState.ONGOING,
          "CompleteCommit": TransactionState.COMPLETE_COMMIT}  # fmt: skip

names = st.sampled_from(("alpha", "alpha", "alpha", "beta", "gamma"))
places = st.sampled_from(PLACES)
holders = st.tuples(
    st.sampled_from((0, 0, 0, 0, 0, 1, 2, -1)), st.sampled_from((0, 0, 0, 0, 0, 0, -1, 1))
)
"""(which identity: 0 the newest, 1 and 2 older, -1 a stranger's; what is added to its epoch)"""
presets = st.one_of(
    st.none(),
    st.tuples(st.sampled_from((0, LAST - 2, LAST - 1, LAST, LAST + 1)), st.sampled_from([*STATES])),
)


class TransactionMachine(RuleBasedStateMachine):
    """Random requests, refusals, time and restarts."""

    @initialize(version=st.sampled_from((1, 2)), found=st.tuples(presets, presets, presets))
    def begin(self, version: int, found: tuple) -> None:
        self.model = Reference(version)
        self.refused: set[Place] = set()
        self.written = 0
        self.broker = BrokerOnDisk(CONFIG | {"transaction.version": version})
        self.broker.create_topic(TOPIC, 2)
        for key, key_type in ((NAMES[0], 1), (GROUPS[0], 0)):
            message = request(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=[key])
            self.broker.ask(message, 4)
        for group in GROUPS:
            place = ("__consumer_offsets", partition_for(group, 2))
            self.model.group_place[group] = place
        self.given: dict[str, list[Identity]] = {name: [] for name in NAMES}
        self.model.now_ms = self.broker.now_ms
        for name, preset in zip(NAMES, found, strict=True):
            if preset is not None:
                self._preset(name, *preset)
        self.broker.kill()
        self.model.restart()
        self._started()
        # Two of the names are begun with; the third may be unknown for a while.
        for name in NAMES[:2]:
            if name not in self.model.txns:
                self.init(name, None)

    def _preset(self, name: str, epoch: int, state: str) -> None:
        idempotent = RawProducer(self.broker, retries=False)
        assert idempotent.init() == "NONE"
        pid = self.model.new_pid()
        assert idempotent.identity == (pid, 0)
        of = PLACES[:1] if state == "Ongoing" else ()
        preset = Preset(name, epoch, STATES[state], of, TIMEOUT_MS, client_version=0)
        batch = preset_batch(preset, pid, self.model.now_ms)
        self.broker.client_id = INTERNAL_CLIENT_ID
        self.broker.produce_bytes({(LOG_TOPIC, 0): batch})
        self.broker.client_id = "test"
        now_ms = self.model.now_ms
        self.model.txns[name] = Txn(
            pid, epoch, previous_pid=pid, state=state, timeout_ms=TIMEOUT_MS, started_ms=now_ms,
            updated_ms=now_ms, places=frozenset(of),
        )  # fmt: skip
        self.given[name].append((pid, epoch))

    def _started(self) -> None:
        """The sweeps count from the start, and markers go through the refusals."""
        self.started_ms = self.broker.now_ms
        host = self.broker.broker.parts.markers
        append = host.append_marker

        def refusing(what: Any, reply: Any, effects: Any) -> None:
            if tuple(what.place) in self.refused:
                reply(ErrorCode.NOT_ENOUGH_REPLICAS, effects)
            else:
                append(what, reply, effects)

        host.append_marker = refusing

    def _holder(self, name: str, holder: tuple[int, int]) -> tuple[RawProducer, Identity]:
        which, drift = holder
        given = self.given[name] or [(0, 0)]
        pid, epoch = given[max(-1 - max(which, 0), -len(given))]
        held = (pid + 10**6 * (which < 0), min(max(epoch + drift, 0), LAST + 1))
        return RawProducer(self, name, *held, retries=False), held

    def ask(self, message: Any, version: int) -> Any:
        """The answer; while markers are missing, the leader asks again before it answers."""
        key = self.broker.send(message, version)
        if key not in self.broker.asked.answers:
            assert api_of(message).key is ApiKey.PRODUCE
            self._pass(RETRIES_MS_MAX)
        return self.broker.asked.answers[key]

    def _give(self, name: str, identity: Identity) -> None:
        assert 0 <= identity[1] <= LAST, "32767 is nobody's"
        if identity in self.given[name]:
            self.given[name].remove(identity)
        self.given[name].append(identity)

    # ------------------------------------------------------------ requests

    @rule(name=names, holder=st.one_of(st.none(), st.none(), holders))
    def init(self, name: str, holder: tuple[int, int] | None) -> None:
        producer, held = self._holder(name, holder or (0, 0))
        expected = self.model.init(name, TIMEOUT_MS, held if holder else None)
        self.model.mark_all(self.refused)
        error = producer.init(TIMEOUT_MS, resume=holder is not None)
        assert error == expected[0]
        if error == "NONE":
            assert producer.identity == expected[1]
            self._give(name, producer.identity)

    @rule(name=names, holder=holders, of=st.sampled_from([PLACES[:1], PLACES[1:], PLACES]))
    def add(self, name: str, holder: tuple[int, int], of: tuple) -> None:
        producer, held = self._holder(name, holder)
        expected = self.model.add(name, held, set(of), 0)
        assert producer.add_partitions(TOPIC, *(partition for _, partition in of)) == expected

    @rule(name=names, holder=holders, group=st.sampled_from(GROUPS))
    def add_offsets(self, name: str, holder: tuple[int, int], group: str) -> None:
        producer, held = self._holder(name, holder)
        expected = self.model.add(name, held, {self.model.group_place[group]}, 0)
        assert producer.add_offsets(group) == expected

    @rule(
        name=names, holder=holders, place=places, version=st.sampled_from((10, 11, 12, 12)),
        wanted=st.sampled_from(("next", "next", "next", "again", "gap", "zero")),
    )  # fmt: skip
    def produce(self, name: str, holder: tuple[int, int], place, version: int, wanted: str) -> None:
        producer, held = self._holder(name, holder)
        known = self.model.producers.get((place, held[0]))
        last = known.last if known and known.epoch == held[1] else None
        first = last[1] + 1 if last else 0
        first = {"gap": first + 3, "zero": 0}.get(wanted, first)
        # Of an older batch it depends on the restarts whether it is still known as a duplicate.
        first = last[0] if wanted in ("again", "zero") and last else first
        self.written += 1
        values = f"x{self.written}", f"y{self.written}"
        sent = (value.encode() for value in values)
        expected = self.model.produce(name, held, place, first, sent, version)
        batch = producer.batch(*values, sequence=first)
        assert producer.produce_bytes(*place, batch, version) == expected

    @rule(
        name=names, holder=holders, group=st.sampled_from(GROUPS),
        version=st.sampled_from((3, 4, 5, 5)), offset=st.integers(0, 99),
    )  # fmt: skip
    def commit_offset(
        self, name: str, holder: tuple[int, int], group: str, version: int, offset: int
    ) -> None:
        producer, held = self._holder(name, holder)
        offsets = {(TOPIC, 0): (offset, "")}
        expected = self.model.commit_offsets(name, held, group, offsets, version)
        assert producer.commit_offset(group, TOPIC, 0, offset, version=version) == expected

    @rule(name=names, holder=holders, commit=st.booleans(), version=st.sampled_from((1, 4, 5, 5)))
    def end(self, name: str, holder: tuple[int, int], commit: bool, version: int) -> None:
        producer, held = self._holder(name, holder)
        expected, identity = self.model.end(name, held, commit, version)
        self.model.mark_all(self.refused)
        if version < 2 and expected == "PRODUCER_FENCED":
            expected = "INVALID_PRODUCER_EPOCH"
        assert producer.end(commit=commit, version=version) == expected
        if expected == "NONE" and version >= 5:
            assert producer.identity == identity
            if identity[1] > LAST:
                # The abort that a cluster of version 1 fenced at the last epoch, ended again in
                # the words of version 2: Kafka says the reserved epoch there, and so do we.
                assert self.model.server_version == 1 or held[1] > LAST
            elif held[1] <= LAST:
                self._give(name, identity)

    @rule(name=names, place=places, commit=st.booleans(), version=st.sampled_from((4, 5, 5)))
    def transaction(self, name: str, place, commit: bool, version: int) -> None:
        """A whole one of the present holder, so that there is something to retry."""
        self.produce(name, (0, 0), place, 12, "next")
        self.end(name, (0, 0), commit, version)

    @rule(name=names, flips=st.booleans(), version=st.sampled_from((4, 5, 5)))
    def end_again(self, name: str, flips: bool, version: int) -> None:
        """The end before once more, its answer having been lost, or its very opposite."""
        txn = self.model.txns.get(name)
        if txn is not None and txn.state.endswith(("Commit", "Abort")):
            which = 1 if len(self.given[name]) > 1 and txn.version >= 2 else 0
            self.end(name, (which, 0), txn.state.endswith("Commit") != flips, version)

    # ------------------------------------------------------------ faults and time

    @rule(place=st.sampled_from([*PLACES, ("__consumer_offsets", 0), ("__consumer_offsets", 1)]))
    def refuse(self, place) -> None:
        self.refused.add(place)

    @rule()
    def heal(self) -> None:
        self._pass(RETRY_MS, heals=True)

    @rule(duration_ms=st.sampled_from((100, 1_000, 6_000)))
    def wait(self, duration_ms: int) -> None:
        self._pass(duration_ms)

    @rule()
    def sleep(self) -> None:
        self._pass(IDLE_MS + EXPIRE_MS)

    def _pass(self, duration_ms: int, *, heals: bool = False) -> None:
        """Time in both worlds: at one instant first timeouts, then markers, then expiry."""
        start_ms = self.model.now_ms
        if heals:
            self.refused.clear()
        self.broker.advance(duration_ms)
        for now_ms in range(start_ms + RETRY_MS, start_ms + duration_ms + 1, RETRY_MS):
            self.model.now_ms = now_ms
            passed_ms = now_ms - self.started_ms
            if passed_ms % ABORT_MS == 0:
                self.model.abort_timed_out()
            self.model.mark_all(self.refused)
            if passed_ms % EXPIRE_MS == 0:
                self.model.expire(IDLE_MS)

    @rule(cleanly=st.booleans())
    def restart(self, cleanly: bool) -> None:
        self.refused.clear()
        if cleanly:
            self.broker.stop()
        self.broker.kill()
        self.model.restart()
        self._started()

    # ------------------------------------------------------------ what must hold

    @invariant()
    def the_coordinator_shows_the_same(self) -> None:
        described = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[*NAMES])
        for shown in self.broker.ask(described, 0).transaction_states:
            txn = self.model.txns.get(shown.transactional_id)
            if txn is None:
                assert error_name(shown.error_code) == "TRANSACTIONAL_ID_NOT_FOUND"
                continue
            assert shown.transaction_state == txn.state
            assert (shown.producer_id, shown.producer_epoch) == (txn.pid, txn.epoch)
            topics = {(t.topic, p) for t in shown.topics for p in t.partitions}
            assert topics == (txn.waiting if txn.pending else txn.places)
        rows = sorted((name, txn.state) for name, txn in self.model.txns.items())
        assert list_transactions(self.broker) == ("NONE", rows)

    @invariant()
    def readers_see_the_same(self) -> None:
        for place in PLACES:
            answer = self._fetch(place)
            data = bytes(answer.records or b"")
            aborted = {(a.producer_id, a.first_offset) for a in answer.aborted_transactions or []}
            assert _committed_values(data, aborted) == self.model.visible(place)
            is_open = any(batch.status == "open" for batch in self.model.batches.get(place, ()))
            assert (answer.last_stable_offset < answer.high_watermark) == is_open

    def _fetch(self, place) -> Any:
        message = request(
            ApiKey.FETCH, max_wait_ms=0, min_bytes=0, max_bytes=2**20, isolation_level=1,
            session_id=0, session_epoch=-1, forgotten_topics_data=[], rack_id="",
        )  # fmt: skip
        partition = struct(
            message, "FetchPartition", partition=place[1], current_leader_epoch=-1,
            fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1, partition_max_bytes=2**20,
        )  # fmt: skip
        message.topics = [struct(message, "FetchTopic", topic=place[0], partitions=[partition])]
        return self.broker.ask(message, 12).responses[0].partitions[0]

    @invariant()
    def groups_see_the_same(self) -> None:
        for group in GROUPS:
            _, latest = fetch_offsets(self.broker, group, require_stable=False)
            latest = {place: found for place, found in latest.items() if found[0] >= 0}
            assert latest == self.model.committed(group)
            if self.model.unstable(group):
                message = request(ApiKey.OFFSET_FETCH, require_stable=True)
                asked = struct(message, "OffsetFetchRequestGroup", group_id=group, topics=None)
                message.groups = [asked]
                shown = self.broker.ask(message, 8).groups[0].topics
                codes = {p.error_code for t in shown for p in t.partitions}
                assert codes <= {int(ErrorCode.UNSTABLE_OFFSET_COMMIT)}


def _committed_values(data: bytes, aborted: set[tuple[int, int]]) -> list[bytes | None]:
    """Return the values that a read_committed consumer keeps, by the aborted transactions."""
    kept: list[bytes | None] = []
    dropping: set[int] = set()
    for header, at in iter_batches(data):
        if header.is_control:
            dropping.discard(header.producer_id)
            continue
        dropping |= {pid for pid, first in aborted if first == header.base_offset}
        if header.producer_id not in dropping:
            kept += [record.value for record in decode_records(data, at, header)]
    return kept


TestTransactionModel = TransactionMachine.TestCase
TestTransactionModel.settings = settings(max_examples=60, stateful_step_count=50)
