"""A transactional Java producer that is fenced, too late or in error.

On transaction version 1, as Apache Kafka 3 has it, the epoch grows when a producer asks for it
(KIP-360), and not with each transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.apache_kafka import ApacheKafka
from support.brokers.probe import wait_until
from support.brokers.sim_broker import SimBroker
from support.clients.adapter import Writer
from support.clients.java_client import Java
from support.clients.librdkafka import create_topic
from support.harness.availability import check_available

pytestmark = pytest.mark.kafka

BROKERS = {"broker_sim": SimBroker, "apache_kafka": ApacheKafka}
READER = {"isolation_level": "read_committed"}


class Stage:
    """A broker's topic of one partition, a transactional id, and the Java client."""

    def __init__(self, client: Java, bootstrap: str, unique: Callable[[str], str]) -> None:
        self.client, self.bootstrap, self.id = client, bootstrap, unique("id")
        self.topic = create_topic(bootstrap, unique("topic"))
        self.admin = client.admin(bootstrap).made
        self.error = client.thrown_by

    def writer(self, suffix: str = "", **settings: object) -> Writer:
        """A producer with the transactional id."""
        return self.client.transactional(self.bootstrap, self.id + suffix, **settings)

    def send(self, writer: Writer, value: str) -> None:
        """Send a record and wait for its acknowledgement."""
        writer.sent(self.topic, value, partition=0)

    def described(self) -> Any:
        """The coordinator's description of the id."""
        return self.admin.describeTransactions([self.id]).all().get()[self.id]

    def state(self) -> str:
        """Its state."""
        return self.described().state().toString()

    def readable(self) -> list[str]:
        """Return the committed values, in order."""
        return [each.value.decode() for each in self.client.read(self.bootstrap, self.topic)]


@pytest.fixture
def made(java) -> Iterator[Java]:
    """The Java client."""
    with Java(java) as client:
        yield client


@pytest.fixture
def stage(made, bootstrap, unique) -> Stage:
    """Return a stage on a broker with transaction version 2."""
    return Stage(made, bootstrap, unique)


@pytest.fixture(scope="module", params=BROKERS)
def old_broker(request, tmp_path_factory) -> Iterator[SimBroker | ApacheKafka]:
    """A broker of each kind with transaction version 1."""
    check_available(request.param)
    folder = tmp_path_factory.mktemp(f"{request.param}-1")
    with BROKERS[request.param](folder, transaction_version=1) as broker:
        yield broker


@pytest.fixture
def old_stage(made, old_broker, unique) -> Stage:
    """Return a stage on the broker with transaction version 1."""
    return Stage(made, old_broker.bootstrap_servers, unique)


def a_zombie_is_fenced_whatever_it_does_next(on: Stage) -> dict[str, object]:
    zombie, idle = on.writer(), on.writer("-idle")
    zombie.begin()
    on.send(zombie, "zombie")
    heir, _ = on.writer(), on.writer("-idle")
    heir.begin()
    on.send(heir, "heir")
    seen = {"send": on.error(lambda: on.send(zombie, "late"))}
    seen |= {name: on.error(getattr(zombie, name)) for name in ("commit", "abort", "begin")}
    idle.begin()
    seen["first send"] = on.error(lambda: on.send(idle, "idle"))
    offsets = on.client.offsets({(on.topic, 0): (1, "")})
    group = on.client.own.consumer.ConsumerGroupMetadata(on.id)
    seen["offsets"] = on.error(lambda: idle.made.sendOffsetsToTransaction(offsets, group))
    heir.commit()
    return seen | {"readable": on.readable()}


def timed_out(on: Stage, first: str) -> dict[str, object]:
    """A transaction that the coordinator aborts because its time is over."""
    slow = on.writer(transaction_timeout_ms=1000)
    epoch = on.described().producerEpoch()
    slow.begin()
    on.send(slow, "slow")
    wait_until(lambda: on.state() == "CompleteAbort", "the coordinator's abort")
    seen: dict[str, object] = {"epoch grew": on.described().producerEpoch() > epoch}
    if first == "send":
        seen["send"] = on.error(lambda: on.send(slow, "late"))
    seen |= {name: on.error(getattr(slow, name)) for name in ("commit", "abort")}
    seen["again"] = on.error(lambda: slow.begin() or on.send(slow, "again") or slow.commit())
    return seen | {"readable": on.readable()}


def a_commit_after_the_timeout_is_refused_for_good(on: Stage) -> dict[str, object]:
    return timed_out(on, "commit")


def a_send_after_the_timeout_is_refused(on: Stage) -> dict[str, object]:
    return timed_out(on, "send")


def a_refused_record_makes_the_transaction_abortable(on: Stage) -> dict[str, object]:
    writer = on.writer(max_request_size=4_000_000)
    writer.begin()
    on.send(writer, "lost")
    epoch = on.described().producerEpoch()
    seen = {"send": on.error(lambda: on.send(writer, "x" * 2_000_000))}
    # The record's own error is told a moment before the transaction is in error.
    wait_until(lambda: "/RecordTooLarge" in on.error(writer.begin), "the error state")
    seen["commit"] = on.error(writer.commit)
    writer.abort()
    writer.transact(on.topic, "kept")
    wait_until(lambda: on.state() == "CompleteCommit", "the commit")
    grown = on.described().producerEpoch() - epoch
    return seen | {"epochs": grown, "readable": on.readable()}


def empty_and_unfinished_transactions_leave_nothing(on: Stage) -> dict[str, object]:
    writer = on.writer()
    writer.begin()
    writer.commit()
    seen: dict[str, object] = {"after an empty commit": on.state()}
    writer.begin()
    writer.abort()
    writer.begin()
    for number in range(3):
        writer.send(on.topic, f"flushed {number}")
        writer.flush()
    writer.commit()
    writer.begin()
    on.send(writer, "unfinished")
    writer.made.close()
    seen["after close"] = on.error(writer.begin)
    on.writer()
    return seen | {"after init": on.state(), "readable": on.readable()}


def offsets_need_the_group_s_present_generation_and_member(on: Stage) -> dict[str, object]:
    place = (on.topic, 0)
    offsets = on.client.offsets({place: (7, "from the transaction")})
    member, writer = on.client.consumer(on.bootstrap, on.id), on.writer()
    member.subscribe(on.topic)
    wait_until(lambda: not member.poll() and len(member.assignment()) == 1, "the assignment")
    # Its first question for a committed offset must be over, or it is answered once more.
    member.position(place)
    right = member.made.groupMetadata()

    def attempt(generation: int, member_id: str) -> str:
        metadata = on.client.own.consumer.ConsumerGroupMetadata
        wrong = metadata(on.id, generation, member_id, right.groupInstanceId())
        writer.begin()
        given = writer.made.sendOffsetsToTransaction
        error = on.error(lambda: given(offsets, wrong) or writer.commit())
        writer.abort()
        return error

    seen: dict[str, object] = {"stale": attempt(right.generationId() - 1, right.memberId())}
    seen["unknown"] = attempt(right.generationId(), "nobody")
    writer.begin()
    writer.made.sendOffsetsToTransaction(offsets, right)
    stored = on.admin.listConsumerGroupOffsets(on.id)
    seen["pending"] = len(stored.partitionsToOffsetAndMetadata().get())
    writer.commit()
    # A committed offset that is still pending is waited for by require_stable.
    return seen | {"committed": member.committed(place)}


def a_transaction_is_described_listed_and_seen_in_its_partition(on: Stage) -> dict[str, object]:
    admin, place, writer = on.admin, on.client.place((on.topic, 0)), on.writer()

    def producer() -> Any:
        found = admin.describeProducers([place]).all().get()[place]
        return found.activeProducers()[0]

    def listed(**filters: Any) -> set[str]:
        options = on.client.own.admin.ListTransactionsOptions()
        for name, value in filters.items():
            getattr(options, name)(value)
        return {each.transactionalId() for each in admin.listTransactions(options).all().get()}

    seen = {"empty": on.state()}
    writer.begin()
    on.send(writer, "v")
    opened, state = on.described(), on.client.own.admin.TransactionState.ONGOING
    seen["open"] = (
        opened.state().toString(), [each.toString() for each in opened.topicPartitions()],
        opened.transactionTimeoutMs(), opened.transactionStartTimeMs().getAsLong() > 0,
    ) == ("Ongoing", [f"{on.topic}-0"], 600_000, True)  # fmt: skip
    one = producer()
    seen["the same"] = one.producerId() == opened.producerId()
    seen["the same epoch"] = one.producerEpoch() == opened.producerEpoch()
    seen["sequence"] = one.lastSequence()
    seen["start"] = one.currentTransactionStartOffset().orElse(-1)
    seen["ongoing"] = on.id in listed(filterStates=[state])
    seen["by producer"] = listed(
        filterProducerIds=on.client.java.Told.longs(opened.producerId())
    ) == {on.id}
    seen["an hour old"] = on.id in listed(filterOnDuration=3_600_000)
    writer.commit()
    wait_until(lambda: on.state() == "CompleteCommit", "the commit's end")
    seen["start after"] = producer().currentTransactionStartOffset().orElse(-1)
    seen["epoch after"] = on.described().producerEpoch() - opened.producerEpoch()
    absent = admin.describeTransactions([f"{on.id}-absent"])
    return seen | {"absent": on.error(lambda: absent.all().get())}


def fence_producers_aborts_the_transaction_and_fences_the_producer(on: Stage) -> dict[str, object]:
    writer = on.writer()
    writer.begin()
    on.send(writer, "v")
    epoch = on.described().producerEpoch()
    on.admin.fenceProducers([on.id]).all().get()
    seen: dict[str, object] = {"commit": on.error(writer.commit)}
    grew = on.described().producerEpoch() > epoch
    return seen | {"epoch grew": grew, "readable": on.readable()}


INVALID, PRODUCER_FENCED = "InvalidProducerEpochException", "ProducerFencedException"
EXPECTED: dict[Callable[[Stage], dict[str, object]], tuple[dict, dict]] = {
    a_zombie_is_fenced_whatever_it_does_next: (
        # The partition knows the epoch only, the coordinator knows that there is an heir.
        {"send": INVALID, "commit": INVALID, "abort": PRODUCER_FENCED, "begin": PRODUCER_FENCED,
         "first send": INVALID, "offsets": INVALID, "readable": ["heir"]},
        # A partition is added by a request to the coordinator first.
        {"first send": PRODUCER_FENCED, "offsets": PRODUCER_FENCED},
    ),
    a_commit_after_the_timeout_is_refused_for_good: (
        {"epoch grew": True, "commit": "InvalidTxnStateException",
         "abort": "KafkaException/InvalidTxnStateException",
         "again": "KafkaException/InvalidTxnStateException", "readable": []},
        dict.fromkeys(("commit", "abort", "again"), PRODUCER_FENCED),
    ),
    a_send_after_the_timeout_is_refused: (
        # The producer goes on after an abort.
        {"epoch grew": True, "send": INVALID, "commit": INVALID, "abort": "none", "again": "none",
         "readable": ["again"]},
        {"abort": PRODUCER_FENCED, "again": PRODUCER_FENCED, "readable": []},
    ),
    a_refused_record_makes_the_transaction_abortable: (
        # One epoch for the abort, one for the commit.
        {"send": "RecordTooLargeException", "commit": "KafkaException/RecordTooLargeException",
         "epochs": 2, "readable": ["kept"]},
        {"epochs": 1},
    ),
    empty_and_unfinished_transactions_leave_nothing: (
        {"after an empty commit": "Empty", "after close": "IllegalStateException",
         "after init": "Empty", "readable": ["flushed 0", "flushed 1", "flushed 2"]},
        {},
    ),
    offsets_need_the_group_s_present_generation_and_member: (
        {"stale": "CommitFailedException", "unknown": "CommitFailedException", "pending": 0,
         "committed": (7, "from the transaction")},
        {},
    ),
    a_transaction_is_described_listed_and_seen_in_its_partition: (
        {"empty": "Empty", "open": True, "the same": True, "the same epoch": True, "sequence": 0,
         "start": 0, "ongoing": True, "by producer": True, "an hour old": False, "start after": -1,
         "epoch after": 1, "absent": "TransactionalIdNotFoundException"},
        {"epoch after": 0},
    ),
    fence_producers_aborts_the_transaction_and_fences_the_producer: (
        {"commit": PRODUCER_FENCED, "epoch grew": True, "readable": []},
        {},
    ),
}  # fmt: skip
"""Observations of each body on transaction version 2, then the differences of version 1."""
MOVES = pytest.mark.no_kill("a list lacks the transactions of a coordinator that moves")
BODIES = [
    pytest.param(each, id=each.__name__, marks=[MOVES] if "listed" in each.__name__ else [])
    for each in EXPECTED
]


@pytest.mark.parametrize("body", BODIES)
def test_on_transaction_version_2(stage, body):
    assert body(stage) == EXPECTED[body][0]


@pytest.mark.parametrize("body", BODIES)
def test_on_transaction_version_1(old_stage, body):
    assert body(old_stage) == EXPECTED[body][0] | EXPECTED[body][1]


def test_abort_transaction_ends_it_in_the_partition_only(stage):
    place, writer = stage.client.place((stage.topic, 0)), stage.writer()
    writer.begin()
    stage.send(writer, "v")

    def producer() -> Any:
        found = stage.admin.describeProducers([place]).all().get()[place]
        return found.activeProducers()[0]

    opened = producer()

    def abort(epoch: int) -> None:
        coordinator = max(0, opened.coordinatorEpoch().orElse(0))
        spec = stage.client.own.admin.AbortTransactionSpec
        asked = spec(place, opened.producerId(), epoch, coordinator)
        stage.admin.abortTransaction(asked).all().get()

    older = opened.producerEpoch() - 1
    assert older < 0 or stage.error(lambda: abort(older)) == INVALID
    abort(opened.producerEpoch())
    assert producer().currentTransactionStartOffset().orElse(-1) == -1
    assert stage.state() == "Ongoing"
    writer.commit()
    assert stage.readable() == []


@pytest.mark.no_kill("with acks=0 and 1, and no idempotence, records are lost and doubled then")
def test_a_producer_is_told_why_a_record_is_refused(stage):
    client = stage.client
    impatient = client.producer(stage.bootstrap, max_block_ms=700)
    late = stage.error(lambda: impatient.sent(stage.topic, "v", partition=9))
    assert late == "TimeoutException"
    writer = client.producer(stage.bootstrap)
    tomorrow = (int(time.time()) + 86_400) * 1000
    refused = stage.error(lambda: writer.sent(stage.topic, "v", timestamp=tomorrow))
    assert refused == "InvalidTimestampException"
    assert stage.error(lambda: writer.sent("a/b", "v")) == "InvalidTopicException"
    stage.send(writer, "goes on")
    assert stage.readable() == ["goes on"]
