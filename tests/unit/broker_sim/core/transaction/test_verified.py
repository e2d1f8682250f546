"""A leader asks the coordinator on another broker before a transaction begins on its partition."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.broker_build import produce_request, request
from support.core.core_cluster import DATA, OFFSETS, STATE, CoreCluster, coordinated
from support.raw.raw import RawProducer

from broker_sim.core.controller.registrations import NO_LEADER
from broker_sim.core.coordinator.partition_writer import PartitionMarker
from broker_sim.core.coordinator.peer_batches import REQUEST_TIMEOUT_MS
from broker_sim.core.transaction.add_retries import BACKOFF_MS, RETRIES_MS_MAX
from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import MarkerType, TransactionMarker
from txnlog_kafka.wire.topic_partition import TopicPartition

VERIFY = ApiKey.ADD_PARTITIONS_TO_TXN
VERSIONS = (11, 12)


@pytest.fixture
def cluster() -> CoreCluster:
    return coordinated()


@pytest.fixture
def producer(cluster: CoreCluster) -> RawProducer:
    made = cluster.producer()
    assert made.init() == "NONE"
    return made


def send(
    cluster: CoreCluster, producer: RawProducer, *places: TopicPartition, version: int = 12
) -> tuple[int, tuple[int, int]]:
    """Produce to partitions of one leader; that leader and the answer's key."""
    leader = cluster.leader(places[0])
    batches = {tuple(place): producer.batch("v", sequence=0) for place in places}
    message = produce_request(batches, transactional_id=producer.transactional_id)
    message.timeout_ms = 10_000
    return leader, cluster.brokers[leader].send(message, version, connection_id=50)


def told(cluster: CoreCluster, sent: tuple[int, tuple[int, int]]) -> list[str] | None:
    """Return the errors in the answer, or None while there is no answer."""
    leader, key = sent
    answer = cluster.brokers[leader].asked.answers.get(key)
    if answer is None:
        return None
    parts = [part for topic in answer.responses for part in topic.partition_responses]
    return [error_name(part.error_code) for part in parts]


def questions(cluster: CoreCluster, number: int) -> list[Any]:
    """Return the broker's questions to the coordinator; they leave in the broker's next step."""
    cluster.brokers[number].advance(0)
    return cluster.of(number, VERIFY)


def end_of(cluster: CoreCluster, place: TopicPartition) -> int:
    return cluster.brokers[cluster.leader(place)].log(*place).log_end_offset


def mark(cluster: CoreCluster, place: TopicPartition, producer: RawProducer) -> None:
    """An ABORT of the producer's transaction is written at the leader."""
    broker = cluster.brokers[cluster.leader(place)]
    ids = producer.producer_id, producer.producer_epoch
    marker = PartitionMarker(place, TransactionMarker(*ids, MarkerType.ABORT, 0), 1)
    broker.cause(lambda effects: broker.parts.markers.append_here(marker, lambda *_: None, effects))


# --------------------------------------------------------------------------- what is asked


def test_version_2_adds_the_partition_and_the_batch_is_appended_when_that_is_answered(
    cluster, producer
) -> None:
    sent = send(cluster, producer, DATA[2])
    (asked,) = questions(cluster, 2)
    (transaction,) = asked.send.message.transactions
    assert (asked.send.peer, transaction.transactional_id, transaction.verify_only) == (
        0, "t", False,
    )  # fmt: skip
    assert end_of(cluster, DATA[2]) == 0
    cluster.run(1_200)
    assert told(cluster, sent) == ["NONE"]
    assert cluster.brokers[0].parts.transactions.describe("t").partitions == (DATA[2],)


def test_a_leader_asks_again_while_the_markers_of_the_transaction_before_are_on_their_way(
    cluster, producer
) -> None:
    sent = send_behind_commit(cluster, producer)
    cluster.run(BACKOFF_MS)
    assert told(cluster, sent) is None
    cluster.is_stuck = lambda _asked: False
    cluster.run(1_200)
    assert told(cluster, sent) == ["NONE"]


def test_a_producer_is_told_when_the_markers_do_not_come_in_time(cluster, producer) -> None:
    sent = send_behind_commit(cluster, producer)
    cluster.run(2 * RETRIES_MS_MAX)
    assert told(cluster, sent) == ["CONCURRENT_TRANSACTIONS"]


def send_behind_commit(cluster: CoreCluster, producer: RawProducer) -> tuple[int, tuple[int, int]]:
    """Commit a transaction whose markers do not arrive, and produce in the next one."""
    assert producer.produce(*DATA[1], "v", version=12) == "NONE"
    cluster.is_stuck = lambda asked: type(asked.send.message).__name__ == "WriteTxnMarkersRequest"
    assert producer.end(commit=True, version=5) == "NONE"
    return send(cluster, producer, DATA[1])


def test_an_older_version_is_verified_and_refused_where_its_partition_was_not_added(
    cluster, producer
) -> None:
    sent = send(cluster, producer, DATA[2], version=11)
    (asked,) = questions(cluster, 2)
    assert asked.send.message.transactions[0].verify_only
    cluster.run(1_200)
    assert told(cluster, sent) == ["TRANSACTION_ABORTABLE"]
    old = send(cluster, producer, DATA[2], version=10)
    cluster.run(1_200)
    assert told(cluster, old) == ["INVALID_TXN_STATE"]
    assert end_of(cluster, DATA[2]) == 0
    assert producer.add_partitions("orders", 2) == "NONE"
    assert producer.produce(*DATA[2], "v", version=11) == "NONE"


def test_a_partition_in_which_the_transaction_is_open_needs_no_question(cluster, producer) -> None:
    assert producer.produce(*DATA[2], "a", version=12) == "NONE"
    cluster.run(1_200)
    before = len(cluster.of(2, VERIFY))
    assert producer.produce(*DATA[2], "b", version=12) == "NONE"
    assert len(questions(cluster, 2)) == before == 0


def test_questions_to_one_coordinator_go_together_while_one_is_under_way(cluster) -> None:
    producers = [cluster.producer(name) for name in "abc"]
    assert [each.init() for each in producers] == ["NONE"] * 3
    first = send(cluster, producers[0], DATA[2])
    (asked,) = questions(cluster, 2)
    others = [send(cluster, each, DATA[2]) for each in producers[1:]]
    assert questions(cluster, 2) == [asked]
    cluster.deliver(asked)
    while not cluster.answer(asked):
        cluster.replicate(0, 1, 2, times=1)
        cluster.advance(50)
    (following,) = cluster.of(2, VERIFY)
    asked_for = [each.transactional_id for each in following.send.message.transactions]
    assert asked_for == ["b", "c"]
    cluster.run(1_200)
    assert [told(cluster, each) for each in (first, *others)] == [["NONE"]] * 3


def test_of_one_transaction_the_newest_question_waits_and_the_others_are_answered(
    cluster, producer
) -> None:
    other = cluster.producer("other")
    assert other.init() == "NONE"
    send(cluster, other, DATA[2])
    questions(cluster, 2)  # so that those of `t` have to wait
    first = send(cluster, producer, DATA[2])
    second = send(cluster, producer, DATA[2])
    assert (told(cluster, first), told(cluster, second)) == (["NOT_ENOUGH_REPLICAS"], None)
    producer.producer_epoch += 1
    third = send(cluster, producer, DATA[2])
    assert (told(cluster, second), told(cluster, third)) == (["INVALID_PRODUCER_EPOCH"], None)
    producer.producer_epoch -= 1
    assert told(cluster, send(cluster, producer, DATA[2])) == ["INVALID_PRODUCER_EPOCH"]
    assert told(cluster, third) is None


# --------------------------------------------------------------------------- no answer


@pytest.mark.parametrize("version", VERSIONS)
def test_a_lost_connection_to_the_coordinator_has_the_client_try_again(
    cluster, producer, version
) -> None:
    sent = send(cluster, producer, DATA[2], version=version)
    (asked,) = questions(cluster, 2)
    cluster.lose(asked)
    assert told(cluster, sent) == ["NOT_ENOUGH_REPLICAS"]
    assert end_of(cluster, DATA[2]) == 0


def test_a_coordinator_that_does_not_answer_has_the_client_try_again_after_its_time(
    cluster, producer
) -> None:
    sent = send(cluster, producer, DATA[2])
    (asked,) = questions(cluster, 2)
    cluster.brokers[2].advance(REQUEST_TIMEOUT_MS - 1)
    assert told(cluster, sent) is None
    cluster.brokers[2].advance(1)
    assert told(cluster, sent) == ["NOT_ENOUGH_REPLICAS"]
    cluster.deliver(asked)
    cluster.run(1_200)  # the answer comes now, and is not heard
    assert end_of(cluster, DATA[2]) == 0


def test_without_a_coordinator_and_while_it_loads_the_client_tries_again(cluster, producer) -> None:
    cluster.change(*STATE, leader=NO_LEADER)
    assert told(cluster, send(cluster, producer, DATA[2])) == ["NOT_ENOUGH_REPLICAS"]
    cluster.change(*STATE, leader=1)
    sent = send(cluster, producer, DATA[2])
    (asked,) = questions(cluster, 2)
    cluster.deliver(asked)
    cluster.answer(asked)
    assert cluster.brokers[1].parts.transactions.describe("t").error != 0
    assert told(cluster, sent) == ["NOT_ENOUGH_REPLICAS"]
    cluster.run(1_200)
    assert producer.produce(*DATA[2], "v", version=12) == "NONE"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fenced_producer_learns_it_from_the_coordinator(cluster, producer, version) -> None:
    zombie = RawProducer(producer.connection, "t", *producer.identity, retries=False)
    assert producer.init() == "NONE"
    assert zombie.produce(*DATA[2], "v", version=version) == "INVALID_PRODUCER_EPOCH"
    assert end_of(cluster, DATA[2]) == 0


# --------------------------------------------------------------------------- what came between


@pytest.mark.parametrize("version", VERSIONS)
def test_a_marker_that_comes_before_the_answer_keeps_the_batch_out(
    cluster, producer, version
) -> None:
    """Otherwise the batch would begin a transaction without an end (KIP-890)."""
    assert producer.add_partitions("orders", 2) == "NONE"
    sent = send(cluster, producer, DATA[2], version=version)
    (asked,) = questions(cluster, 2)
    cluster.deliver(asked)
    producer.producer_epoch += 1 if version == 12 else 0
    mark(cluster, DATA[2], producer)
    cluster.run(1_200)
    expected = "INVALID_PRODUCER_EPOCH" if version == 12 else "INVALID_TXN_STATE"
    assert told(cluster, sent) == [expected]
    assert cluster.brokers[2].log(*DATA[2]).first_unstable_offset is None


def test_an_answer_to_an_earlier_question_is_not_one_to_a_later_one(cluster, producer) -> None:
    """Verified, aborted, begun anew elsewhere, and asked again: the first answer is stale."""
    assert producer.add_partitions("orders", 2) == "NONE"
    first = send(cluster, producer, DATA[2], version=11)
    (asked,) = questions(cluster, 2)
    cluster.deliver(asked)
    mark(cluster, DATA[2], producer)
    later = send(cluster, producer, DATA[2], version=11)
    cluster.answer(asked)
    assert told(cluster, first) == ["INVALID_TXN_STATE"]
    assert told(cluster, later) is None
    assert end_of(cluster, DATA[2]) == 1


def test_a_partition_whose_transaction_ends_while_another_one_is_asked_about_is_refused(
    cluster, producer
) -> None:
    cluster.change(*DATA[1], leader=2)
    cluster.settle()
    assert producer.produce(*DATA[1], "a", version=12) == "NONE"
    cluster.run(1_200)
    leader = cluster.leader(DATA[1])
    batches = {tuple(DATA[1]): producer.batch("b", sequence=1)}
    batches |= {tuple(DATA[2]): producer.batch("v", sequence=0)}
    message = produce_request(batches, transactional_id="t")
    message.timeout_ms = 10_000
    key = cluster.brokers[leader].send(message, 11, connection_id=50)
    mark(cluster, DATA[1], producer)
    cluster.run(1_200)
    # The other one is not in the transaction: version 11 does not add it.
    assert told(cluster, (leader, key)) == ["INVALID_TXN_STATE", "TRANSACTION_ABORTABLE"]


def test_a_partition_that_moves_while_the_coordinator_is_asked_is_not_written_here(
    cluster, producer
) -> None:
    sent = send(cluster, producer, DATA[2])
    questions(cluster, 2)
    cluster.change(*DATA[2], leader=1)
    cluster.run(1_200)
    assert told(cluster, sent) == ["NOT_LEADER_OR_FOLLOWER"]
    assert producer.produce(*DATA[2], "v", version=12) == "NONE"
    assert producer.end(commit=True, version=5) == "NONE"
    cluster.settle()
    assert cluster.committed(DATA[2]) == ["v"]


# --------------------------------------------------------------------------- offsets of groups


def committed_offset(cluster: CoreCluster) -> int:
    groups = cluster.brokers[cluster.leader(OFFSETS)].parts.groups
    fetched = groups.offset_fetch("g", {"orders": [0]}, require_stable=False)
    return int(fetched.offsets[0].committed_offset)


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_join_a_transaction_that_another_broker_coordinates(
    cluster, producer, commit
) -> None:
    assert producer.commit_offset("g", "orders", 0, 5, version=5) == "NONE"
    assert committed_offset(cluster) == -1
    assert producer.end(commit=commit, version=5) == "NONE"
    cluster.settle()
    assert committed_offset(cluster) == (5 if commit else -1)
    cluster.change(*OFFSETS, leader=2)
    cluster.settle()
    assert committed_offset(cluster) == (5 if commit else -1)


def test_offsets_of_older_clients_are_verified_at_the_other_broker(cluster, producer) -> None:
    assert producer.commit_offset("g", "orders", 0, 5, version=4) == "TRANSACTION_ABORTABLE"
    assert producer.commit_offset("g", "orders", 0, 5, version=3) == "INVALID_TXN_STATE"
    assert producer.add_offsets("g") == "NONE"
    assert producer.commit_offset("g", "orders", 0, 5, version=3) == "NONE"
    assert producer.end(commit=True, version=4) == "NONE"
    cluster.settle()
    assert committed_offset(cluster) == 5


def send_offsets(cluster: CoreCluster, number: int, producer: RawProducer, version: int):
    """TxnOffsetCommit to this broker, which is not answered yet."""
    place = {"partition_index": 0, "committed_offset": 5}
    message = request(
        ApiKey.TXN_OFFSET_COMMIT, transactional_id="t", group_id="g",
        producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
        topics=[{"name": "orders", "partitions": [place]}],
    )  # fmt: skip
    return number, cluster.brokers[number].send(message, version, connection_id=60)


def told_offsets(cluster: CoreCluster, sent: tuple[int, tuple[int, int]]) -> str | None:
    answer = cluster.brokers[sent[0]].asked.answers.get(sent[1])
    return None if answer is None else error_name(answer.topics[0].partitions[0].error_code)


def test_offsets_are_refused_where_the_group_is_not_coordinated(cluster, producer) -> None:
    for number in (0, 2):
        sent = send_offsets(cluster, number, producer, 5)
        assert told_offsets(cluster, sent) == "NOT_COORDINATOR"
    assert cluster.brokers[0].parts.transactions.describe("t").partitions == ()


def test_a_lost_question_about_offsets_has_the_client_ask_the_same_broker_again(
    cluster, producer
) -> None:
    sent = send_offsets(cluster, 1, producer, 5)
    (asked,) = questions(cluster, 1)
    cluster.lose(asked)
    assert told_offsets(cluster, sent) == "COORDINATOR_LOAD_IN_PROGRESS"


@pytest.mark.parametrize("version", [4, 5])
def test_a_marker_that_comes_before_the_answer_keeps_the_offsets_out(
    cluster, producer, version
) -> None:
    assert producer.add_offsets("g") == "NONE"
    sent = send_offsets(cluster, 1, producer, version)
    (asked,) = questions(cluster, 1)
    cluster.deliver(asked)
    producer.producer_epoch += 1 if version == 5 else 0
    mark(cluster, OFFSETS, producer)
    cluster.run(1_200)
    expected = "INVALID_PRODUCER_EPOCH" if version == 5 else "INVALID_TXN_STATE"
    assert told_offsets(cluster, sent) == expected
    assert cluster.brokers[1].log(*OFFSETS).first_unstable_offset is None


def test_a_group_that_moves_while_the_coordinator_is_asked_is_written_by_the_next_one(
    cluster, producer
) -> None:
    sent = send_offsets(cluster, 1, producer, 5)
    questions(cluster, 1)
    cluster.change(*OFFSETS, leader=2)
    cluster.run(1_200)
    assert told_offsets(cluster, sent) == "NOT_COORDINATOR"
    assert producer.commit_offset("g", "orders", 0, 5, version=5) == "NONE"
