"""A random life of transactions on three brokers: elections, deaths, pauses, lost and late
messages; and what must hold when all is well again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.core.broker_build import produce_request, request
from support.core.core_cluster import DATA, OFFSETS, STATE, coordinated
from support.core.log_build import build_batch
from support.lives.cluster_run import ClusterRun

from broker_sim.core.controller.registrations import NO_LEADER
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.topic_partition import TopicPartition

E = ErrorCode
RETRIED = frozenset(
    {
        E.NOT_COORDINATOR,
        E.COORDINATOR_NOT_AVAILABLE,
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.CONCURRENT_TRANSACTIONS,
        E.NOT_LEADER_OR_FOLLOWER,
        E.NOT_ENOUGH_REPLICAS,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        E.REQUEST_TIMED_OUT,
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.KAFKA_STORAGE_ERROR,
    }
)
PLACES = (STATE, OFFSETS, *DATA)


@dataclass
class Transaction:
    """What a client did and was told. `committed` is the answer, None where it has none."""

    number: int
    places: tuple[TopicPartition, ...]
    has_offsets: bool
    commits: bool
    written: list[TopicPartition] = field(default_factory=list)
    end_was_sent: bool = False
    committed: bool | None = None

    def value(self, place: TopicPartition) -> str:
        return f"{self.number} in {place.partition}"


class Client:
    """One transactional id: one request at a time, asked again until the answer is final."""

    def __init__(self, name: str, run: TransactionRun) -> None:
        self.name = name
        self.run = run
        self.identity: tuple[int, int] | None = None
        self.sequences: dict[TopicPartition, int] = {}
        self.present: Transaction | None = None
        self.transactions: list[Transaction] = []
        self.sent: tuple[int, int, tuple[int, int], str] | None = None
        """Broker, its start, key of the answer, and what was asked."""

    @property
    def group(self) -> str:
        return f"group of {self.name}"

    def act(self) -> None:
        """Take the answer if there is one, else ask what is next."""
        if self.sent is None:
            return self.ask()
        *asked, kind = self.sent
        answer, is_gone = self.run.answer_of(*asked)
        if answer is None and not is_gone and self.run.rng.random() > 0.02:
            return None
        self.sent = None
        if answer is not None:
            getattr(self, f"on_{kind}")(answer)
        return None

    def ask(self) -> None:
        kind, place, message, version = self.next()
        leader = self.run.cluster.leader(place)
        if leader == NO_LEADER or not self.run.works(leader):
            return
        broker = self.run.cluster.brokers[leader]
        key = broker.send(message, version, connection_id=hash(self.name) % 1000 + 5000)
        self.sent = leader, broker.starts, key, kind

    def next(self) -> tuple[str, TopicPartition, Any, int]:
        if self.identity is None:
            return "init", STATE, self.init(), 4
        if self.present is None:
            self.present = self.run.new_transaction()
            self.transactions.append(self.present)
        present = self.present
        left = [place for place in present.places if place not in present.written]
        if left:
            return "produce", left[0], self.produce(left[0]), 12
        if present.has_offsets and OFFSETS not in present.written:
            return "offsets", OFFSETS, self.offsets(present.number), 5
        present.end_was_sent = True
        return "end", STATE, self.end(present.commits), 5

    # ------------------------------------------------------------------ requests

    def init(self) -> Any:
        return request(
            ApiKey.INIT_PRODUCER_ID,
            transactional_id=self.name,
            transaction_timeout_ms=20_000,
            producer_id=-1,
            producer_epoch=-1,
        )

    def produce(self, place: TopicPartition) -> Any:
        assert self.identity and self.present
        producer = (*self.identity, self.sequences.get(place, 0))
        records = build_batch(self.present.value(place), producer=producer, transactional=True)
        return produce_request({tuple(place): records}, transactional_id=self.name)

    def offsets(self, number: int) -> Any:
        assert self.identity
        place = {"partition_index": 0, "committed_offset": number}
        return request(
            ApiKey.TXN_OFFSET_COMMIT,
            transactional_id=self.name,
            group_id=self.group,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            topics=[{"name": "orders", "partitions": [place]}],
        )

    def end(self, commits: bool) -> Any:
        assert self.identity
        return request(
            ApiKey.END_TXN,
            transactional_id=self.name,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            committed=commits,
        )

    # ------------------------------------------------------------------ answers

    def on_init(self, answer: Any) -> None:
        if answer.error_code == 0:
            self.take(answer)

    def take(self, answer: Any) -> None:
        self.identity = answer.producer_id, answer.producer_epoch
        self.sequences = {}

    def on_produce(self, answer: Any) -> None:
        (topic,) = answer.responses
        (part,) = topic.partition_responses
        place = TopicPartition(topic.name, part.index)
        assert self.present
        if part.error_code == 0:
            self.present.written.append(place)
            self.sequences[place] = self.sequences.get(place, 0) + 1
        else:
            self.refused(E(part.error_code))

    def on_offsets(self, answer: Any) -> None:
        error = E(answer.topics[0].partitions[0].error_code)
        assert self.present
        if error is E.NONE:
            self.present.written.append(OFFSETS)
        else:
            self.refused(error)

    def on_end(self, answer: Any) -> None:
        assert self.present
        if answer.error_code:
            return self.refused(E(answer.error_code))
        self.present.committed = self.present.commits
        self.present = None
        return self.take(answer)

    def refused(self, error: ErrorCode) -> None:
        """Again, or a new start that fences what is left."""
        if error not in RETRIED:
            self.run.refusals.add(error.name)
            self.identity = self.present = None


class TransactionRun(ClusterRun):
    """Draws what happens."""

    at_once = 3
    passes_ms = (10, 10, 100, 300, 600, 1200)

    def __init__(self, seed: int, clients: int = 3) -> None:
        super().__init__(seed, coordinated(), PLACES)
        self.made = 0
        self.refusals: set[str] = set()
        self.clients = [Client(f"t{number}", self) for number in range(clients)]
        self.seen: dict[TopicPartition, set[str]] = {place: set() for place in DATA}
        """What read_committed consumers have got."""

    def new_transaction(self) -> Transaction:
        self.made += 1
        places = self.rng.sample(DATA, self.rng.randint(1, len(DATA)))
        commits, offsets = self.rng.random() < 0.75, self.rng.random() < 0.5
        return Transaction(self.made, tuple(places), offsets, commits)

    def live(self, count: int) -> None:
        actions = (
            [self.act] * 10
            + [self.deliver] * 14
            + [self.answer] * 14
            + [self.read_metadata] * 3
            + [self.consume, self.decide, self.decide, self.lose]
            + [self.pass_time] * 4
        )
        for _ in range(count):
            drawn = self.rng.random()
            if drawn < 0.008:
                self.elect()
            elif drawn < 0.013:
                self.one_falls()
            elif drawn < 0.020:
                self.one_rises()
            else:
                self.rng.choice(actions)()

    # ------------------------------------------------------------------ what happens

    def act(self) -> None:
        for client in self.clients:
            if self.rng.random() < 0.5:
                client.act()

    def one_falls(self) -> None:
        number = self.any_working()
        if number is not None and len(self.working) > 1:
            self.fall(number, dies=self.rng.random() < 0.5)

    def one_rises(self) -> None:
        fallen = [n for n in self.cluster.brokers if not self.works(n)]
        if fallen:
            self.rise(self.rng.choice(fallen))

    def consume(self) -> None:
        place = self.rng.choice(DATA)
        for broker in self.working:
            self.seen[place].update(self.cluster.seen(broker.node_id, place) or ())

    # ------------------------------------------------------------------ what must hold

    def finish(self) -> None:
        """All come back; nobody asks for more. What was begun ends by its timeout."""
        self.all_back()
        for _ in range(8):
            self.cluster.settle()
            self.cluster.advance(10_000)
        self.cluster.settle()
        for client in self.clients:
            if client.sent and client.sent[3] == "end":
                client.act()
        for place in (*DATA, OFFSETS):
            assert self.cluster.is_settled(place), f"{place} is not decided or not replicated"
        for client in self.clients:
            state = self.cluster.state(self.cluster.leader(STATE), client.name)
            done = {"Empty", "CompleteCommit", "CompleteAbort", "TRANSACTIONAL_ID_NOT_FOUND"}
            assert state in done, state
        self.check_records()
        self.check_offsets()

    def check_records(self) -> None:
        final = {place: self.cluster.committed(place) for place in DATA}
        for place, values in final.items():
            assert len(values) == len(set(values)), f"twice in {place}"
            assert self.seen[place] <= set(values), f"read, and not there any more: {place}"
        for client in self.clients:
            for each in client.transactions:
                there = [place for place in each.places if each.value(place) in final[place]]
                if each.committed or (there and self.may_be_committed(each)):
                    assert len(there) == len(each.places), f"in part: {each}"
                else:
                    assert not there, f"not committed, and there: {each}"

    @staticmethod
    def may_be_committed(each: Transaction) -> bool:
        """It was asked for, and the answer is not known."""
        return each.commits and each.end_was_sent and each.committed is None

    def check_offsets(self) -> None:
        groups = self.cluster.brokers[self.cluster.leader(OFFSETS)].parts.groups
        for client in self.clients:
            expected = -1
            for each in client.transactions:
                place = each.places[0]
                if each.has_offsets and each.value(place) in self.cluster.committed(place):
                    expected = each.number
            fetched = groups.offset_fetch(client.group, {"orders": [0]}, require_stable=True)
            found = fetched.offsets[0]
            assert (found.error, found.committed_offset) == (E.NONE, expected)
